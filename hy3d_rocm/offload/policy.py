"""Offload or not: the decision, from figures alone. Pure; needs no torch.

The weights of a pipeline either stay on the accelerator ("resident"), or each component is moved
there when it runs and back afterwards ("offloaded"). Resident is faster by the transfers and needs
all weights and the activations at once. "auto" is resident where that fits:

    weights + activations + headroom <= free

docs/offload.md says what headroom is made of, and what is taken for activations that were never
measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hy3d_rocm.units import MB, size_text

Policy = Literal["off", "auto", "on"]
POLICIES: tuple[Policy, ...] = ("off", "auto", "on")

# For other programs and the driver; for what torch's allocator takes beside live tensors.
HEADROOM_BYTES = (600 + 400) * MB


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
