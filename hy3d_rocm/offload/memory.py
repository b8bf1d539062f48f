"""How much memory a pipeline needs: weights counted from its tensors, activations if measured. And
whether that means that it is offloaded (docs/offload.md).

Activations are everything that a call allocates beside the pipeline's weights: latents, what layers
hold, a library's workspace that comes from torch's allocator. What a call needs with all weights
resident is their sum S plus the activations' peak A. It is kept in memory only.

Under model offload each transfer calls a component's `to`; so the peak is taken for each stretch
between two transfers, with the weights W that lie on the device then, and

    A = max over stretches of (peak of the stretch - W).

Where not every component can be watched there is one peak P for the whole call, and a bound. At the
moment t at which the activations are largest, some component is on the device: the one that
computes, or computed last and still lies there. So P >= W(t) + A >= (smallest component) + A, and

    A <= P - smallest component that ran,    resident need S + A <= S + P - smallest.

If activations peak before the first component has come (then they are inputs only), W(t) is 0 and
P >= A; P is then at least that component plus the inputs, unless they are dropped before it comes.
That case, and memory of others that is freed during the call, are outside of the bound.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hy3d_rocm.offload.components import (
    bytes_on,
    components_of,
    count_components,
    current_mode,
    indexed,
    unwrap,
)
from hy3d_rocm.offload.transfer import Listener, watched
from hy3d_rocm.units import MB, size_text

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("hy3d_rocm")

Policy = Literal["off", "auto", "on"]
POLICIES: tuple[Policy, ...] = ("off", "auto", "on")

# For other programs and the driver; for what torch's allocator takes beside live tensors.
HEADROOM_BYTES = (600 + 400) * MB

Size = tuple[int, ...]
Key = tuple[str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True)
class Estimate:
    """Memory that a pipeline needs, in bytes.

    parameter_bytes: all weights (parameters and buffers, shared ones once).
    component_bytes: the same by component; the values sum up to parameter_bytes.
    activation_bytes: peak of everything else during a call; None if it was never measured.
    source: where activation_bytes comes from, for people ("measured at 512x512", "not measured").
    """

    parameter_bytes: int
    component_bytes: dict[str, int] = field(default_factory=dict)
    activation_bytes: int | None = None
    source: str = "not measured"

    @property
    def assumed_activation_bytes(self) -> int:
        """activation_bytes, or where that is unknown as much as all weights."""
        return self.parameter_bytes if self.activation_bytes is None else self.activation_bytes

    @property
    def resident_bytes(self) -> int:
        """Need with all weights on the device."""
        return self.parameter_bytes + self.assumed_activation_bytes

    @property
    def largest_component(self) -> tuple[str, int]:
        """Name and bytes of the largest component; ("", 0) if there is none."""
        return max(self.component_bytes.items(), key=lambda item: item[1], default=("", 0))


@dataclass(frozen=True)
class Decision:
    """Whether to offload, and a sentence with the figures that decided."""

    offload: bool
    reason: str


def check_policy(policy: str) -> Policy:
    """`policy` if it is one; else a ValueError that names the three."""
    for known in POLICIES:
        if policy == known:
            return known
    raise ValueError(f"offload policy is {policy!r}; give one of {', '.join(POLICIES)}")


def decide(
    policy: Policy, estimate: Estimate, free_bytes: int | None, total_bytes: int | None,
    headroom_bytes: int = HEADROOM_BYTES,
) -> Decision:  # fmt: skip
    """Whether the pipeline of `estimate` is offloaded.

    free_bytes: what the pipeline could get on the device if none of it were there yet; None if
    nobody can tell ("auto" then offloads). Never counted beyond total_bytes. total_bytes: the
    device's memory, None if unknown.
    "on" and "off" are obeyed. What is impossible is not done: "off" with weights that are larger
    than the whole device, "on" with nothing to offload. More free memory never turns offload on;
    more weights or activations never turn it off.
    """
    check_policy(policy)
    for name, value in (("free_bytes", free_bytes), ("headroom_bytes", headroom_bytes)):
        if value is not None and value < 0:
            raise ValueError(f"{name} is {value}; give a number of bytes, 0 or more")
    if estimate.parameter_bytes == 0:
        return Decision(False, "no weights were found: there is nothing to offload")
    if free_bytes is not None and total_bytes is not None:
        free_bytes = min(free_bytes, total_bytes)
    if policy == "auto":
        return _automatic(estimate, free_bytes, headroom_bytes)
    if policy == "on":
        return Decision(True, f"the setting is on: offloaded ({_need(estimate)})")
    if total_bytes is not None and estimate.parameter_bytes > total_bytes:
        return Decision(
            True,
            f"the setting is off, but {size_text(estimate.parameter_bytes)} of weights cannot "
            f"stay on a device of {size_text(total_bytes)}: offloaded",
        )
    fits = free_bytes is None or estimate.resident_bytes + headroom_bytes <= free_bytes
    warning = "" if fits else f", though {_comparison(estimate, free_bytes, headroom_bytes, False)}"
    return Decision(False, f"the setting is off: resident{warning}")


def _automatic(estimate: Estimate, free_bytes: int | None, headroom_bytes: int) -> Decision:
    if free_bytes is None:
        return Decision(True, f"{_need(estimate)}; free memory is unknown: offloaded")
    fits = estimate.resident_bytes + headroom_bytes <= free_bytes
    sentence = _comparison(estimate, free_bytes, headroom_bytes, fits)
    if fits:
        return Decision(False, f"{sentence}: resident")
    name, largest = estimate.largest_component
    if estimate.activation_bytes is not None and largest + estimate.activation_bytes > free_bytes:
        sentence += (
            f"; {name} alone, {size_text(largest)}, with its activations does not fit either: "
            "free memory first, or use a smaller picture"
        )
    return Decision(True, f"{sentence}: offloaded")


def _comparison(estimate: Estimate, free_bytes: int | None, headroom_bytes: int, fits: bool) -> str:
    return (
        f"{_need(estimate)} {'fit' if fits else 'do not fit'} into {size_text(free_bytes)} free "
        f"less {size_text(headroom_bytes)} headroom"
    )


def _need(estimate: Estimate) -> str:
    weights = f"{size_text(estimate.parameter_bytes)} of weights"
    if estimate.activation_bytes is None:
        return f"{weights} + as much again for activations (not measured yet)"
    return f"{weights} + {size_text(estimate.activation_bytes)} of activations ({estimate.source})"


# What a pipeline needs.


def estimate(pipeline: Any, size: Size | None = None) -> Estimate:
    """Bytes of the pipeline's weights by component, and of its activations where known.

    Parameters and buffers count with the bytes that they take when moved. What is shared, inside
    a component or between two, counts once, for the first that has it. Weights that sequential
    offload keeps elsewhere count too. Not seen: weights inside torch.ao's packed modules, which
    run on a CPU only.
    size: (height, width) of the picture to come. Activations are then those measured at this size
    or, for want of it, at a larger one; without `size` the largest ever measured.
    """
    component_bytes = count_components(pipeline)
    activations = recorded(pipeline, component_bytes, size)
    return Estimate(sum(component_bytes.values()), component_bytes, *activations)


def needed_bytes(pipeline: Any, device: torch.device, size: Size | None = None) -> int:
    """Bytes that must be free on `device` for a call of the pipeline as its weights are placed now.

    Resident: weights, activations and headroom, less what lies there already. Under model offload
    the largest component in place of all weights. 0 under sequential offload, whose need nobody
    has estimated. Activations that were not measured count as much as all weights, as in decide().
    """
    mode = current_mode(pipeline)
    if mode == "sequential":
        return 0
    known = estimate(pipeline, size)
    if known.parameter_bytes == 0:
        return 0
    beside = known.assumed_activation_bytes + HEADROOM_BYTES
    if mode == "model":
        return known.largest_component[1] + beside
    return max(known.parameter_bytes + beside - bytes_on(components_of(pipeline), device), 0)


_lock = threading.Lock()
_records: dict[Key, dict[Size | None, int]] = {}


def activation_bound(peak_bytes: int, ran_component_bytes: Iterable[int]) -> int:
    """Most that the activations can have been in an offloaded run with this peak.

    peak_bytes: the run's peak, weights included. ran_component_bytes: weights of the components
    that ran; too many of them only loosen the bound. See the module's text for the derivation.
    """
    return max(peak_bytes - min((b for b in ran_component_bytes if b > 0), default=0), 0)


def recorded(
    pipeline: Any, component_bytes: dict[str, int], size: Size | None = None
) -> tuple[int | None, str]:
    """Peak of everything but the weights during a call of this kind of pipeline, with weights of
    these sizes, and where the figure comes from; None if nothing is known.

    size: (height, width), or with more in front, as (views, height, width). Taken is what was
    measured at that size, or for want of it at the next larger one; nothing is extrapolated to a
    larger picture. Without `size`: the largest measured.
    """
    with _lock:
        known = dict(_records.get(_key(pipeline, component_bytes), {}))
    if size is not None:
        known = {at: peak for at, peak in known.items() if at is not None and _covers(at, size)}
    if not known:
        return None, "not measured"
    choose = max if size is None else min
    at, peak = choose(known.items(), key=lambda item: item[1])
    return peak, "measured" if at is None else f"measured at {'x'.join(map(str, at))}"


def record(
    pipeline: Any, component_bytes: dict[str, int], size: Size | None, activation_bytes: int
) -> None:
    """Remembers a measurement; of several at one size the largest counts."""
    with _lock:
        known = _records.setdefault(_key(pipeline, component_bytes), {})
        known[size] = max(activation_bytes, known.get(size, 0))


def _key(pipeline: Any, component_bytes: dict[str, int]) -> Key:
    kind = type(unwrap(pipeline))
    return f"{kind.__module__}.{kind.__qualname__}", tuple(component_bytes.items())


def _covers(at: Size, size: Size) -> bool:
    return len(at) == len(size) and all(have >= want for have, want in zip(at, size, strict=True))


@contextmanager
def measuring(
    pipeline: Any, device: torch.device | str, size: Size | None = None,
    counters: Any = None,
) -> Iterator[None]:  # fmt: skip
    """Measures the calls made inside; afterwards estimate() knows the activations' peak.

    size: as for recorded(). counters: torch.cuda on such a device, unless given. Resets the
    allocator's peak counter, of which there is one a device. Nothing is recorded on a CPU, under
    sequential offload (weights come and go layer by layer), or if the body raises. One call or
    one thread at a time on the device, or the others' memory is counted too.
    """
    target, mode = indexed(device), current_mode(pipeline)
    if counters is None and target.type == "cuda":
        import torch

        counters = torch.cuda
    if counters is None or mode == "sequential":
        why = "sequential offload is active" if mode == "sequential" else f"the device is {target}"
        logger.debug("activations are not measured: %s", why)
        yield
        return
    meter = _Meter(pipeline, target, counters)
    with watched(pipeline, Listener(before=meter.before, after=meter.after)) as complete:
        meter.start()
        yield
    peak = meter.stop(by_stretches=complete)
    record(pipeline, count_components(pipeline), size, peak)


class _Meter:
    """Peak of the activations, from counters and from where the weights are."""

    def __init__(self, pipeline: Any, device: torch.device, counters: Any) -> None:
        self._pipeline, self._device, self._counters = pipeline, device, counters
        self._activations = self._peak = 0

    def start(self) -> None:
        self._modules = components_of(self._pipeline)
        self._weights = bytes_on(self._modules, self._device)
        self._others = self._counters.memory_allocated(self._device) - self._weights
        self._counters.reset_peak_memory_stats(self._device)

    def before(self) -> None:
        peak = self._most()
        self._activations = max(self._activations, peak - self._weights)

    def after(self) -> None:
        self._most()
        self._weights = bytes_on(self._modules, self._device)
        self._counters.reset_peak_memory_stats(self._device)

    def _most(self) -> int:
        """Since the last transfer, without what is not the pipeline's."""
        peak: int = self._counters.max_memory_allocated(self._device) - self._others
        self._peak = max(self._peak, peak)
        return peak

    def stop(self, by_stretches: bool) -> int:
        """The activations' peak, or a bound of it where weights moved unseen."""
        self.before()
        unseen = bytes_on(self._modules, self._device) != self._weights
        if by_stretches and not unseen:
            return self._activations
        return activation_bound(self._peak, count_components(self._pipeline).values())
