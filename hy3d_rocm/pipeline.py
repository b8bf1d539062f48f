"""PipelineProxy: a diffusers pipeline whose caller may place inputs and make generators wrongly.

The proxy stands where the pipeline stood and holds no line of the caller's code. At each call it
puts tensors on the device where the pipeline computes, and it gives a loop that reseeds once an
image one generator for the whole batch.

What makes a batch: all calls from one call site in one run of the calling function, or everything
inside `with proxy.batch():`. A node that runs again with the same seed is a new run, hence a new
batch, hence the same pictures.

What is promised about the global random states: a call that brings a generator leaves them as it
found them. The reseeding that `generator=torch.manual_seed(seed)` does happens before the call can
know of it; `batch()` puts that right too: at its end the states are what they were at its start. A
call without a generator, or with a global one that is in use (drawn from since it was seeded),
draws from the global state as its author wants. "legacy" changes nothing about generators but a
device that would raise.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch

from hy3d_rocm import _native, _rng
from hy3d_rocm.device import ResolvedDevice, resolve_device
from hy3d_rocm.seed import SeedMode, check_mode, seeded

logger = logging.getLogger("hy3d_rocm")

_OWN = "_hy3d_"  # attributes of the proxy; every other one is the pipeline's
# Wrappers between a loop and its call that are no loop themselves.
_TRANSPARENT_FILES = (__file__, torch.utils._contextlib.__file__)


class _FrameMark:
    """Left in a frame's `f_trace`, where it lives exactly as long as that run of the function.

    A debugger or coverage tool that traces the frame is called as before.
    """

    def __init__(self, traced_by: Callable[..., Any] | None) -> None:
        self.traced_by = traced_by

    def __call__(self, frame: FrameType, event: str, arg: object) -> _FrameMark:
        if self.traced_by is not None:
            self.traced_by = self.traced_by(frame, event, arg)
        return self  # anything else would take the mark out of the frame


class _Batch:
    """The calls that share one stream."""

    def __init__(self, site: object, first_index: int = 0) -> None:
        self.site = site
        self.first_index = first_index
        self.announced = False
        self.start(None, None)

    def start(self, seed: int | None, stream: torch.Generator | None) -> None:
        """A new seed: its first image comes next."""
        self.seed = seed
        self.stream = stream
        self.index = self.first_index
        self.inner: _rng.GlobalStates | None = None


class PipelineProxy:
    """Stands for `pipeline`: attributes, `isinstance` and methods are the pipeline's own.

    `device` is where the pipeline executes, so that `torch.Generator(device=proxy.device)` and
    `tensor.to(proxy.device)` are right under offload too. Calls are corrected as the module says.
    seed_mode: "stream" (one generator for a batch), "per_image" (image i has the seed
    `seed_image(seed, i)`) or "legacy" (the caller's generators as they are).
    label: what the line "<label>: Using input device: <device>" begins with.
    """

    _hy3d_pipeline: Any
    _hy3d_default: torch.device | str | None
    _hy3d_mode: SeedMode
    _hy3d_label: str
    _hy3d_local: threading.local

    def __init__(
        self,
        pipeline: Any,
        default_device: torch.device | str | None = None,
        seed_mode: SeedMode = "stream",
        label: str = "Hy3DDelightImage",
    ) -> None:
        if type(pipeline) is PipelineProxy:
            pipeline = pipeline._hy3d_pipeline
        if not callable(pipeline):
            raise TypeError(f"{type(pipeline).__name__} cannot be called; give a pipeline")
        self._hy3d_pipeline = pipeline
        self._hy3d_default = default_device
        self._hy3d_mode = check_mode(seed_mode)
        self._hy3d_label = label
        self._hy3d_local = threading.local()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the pipeline with its inputs on the execution device and the batch's generator."""
        target = self._hy3d_resolve()
        batch = self._hy3d_batch()
        if not batch.announced:
            batch.announced = True
            logger.info(
                "%s: Using input device: %s (rule: %s)",
                self._hy3d_label, target.device, target.rule,
            )  # fmt: skip
        args = tuple(_place(list(args), target.device))
        kwargs = _place(kwargs, target.device)
        given = _given_generator(args, kwargs)
        if given is None:
            return self._hy3d_pipeline(*args, **kwargs)
        with self._hy3d_drawing(batch, given, target.device) as chosen:
            args, kwargs = _replaced(args, kwargs, chosen)
            return self._hy3d_pipeline(*args, **kwargs)

    @contextmanager
    def batch(self, first_index: int = 0) -> Iterator[PipelineProxy]:
        """Everything inside is one batch; global random states are put back at the end.

        first_index is the number of the first image, for "per_image" and a batch that is split.
        """
        if first_index < 0 or (first_index and self._hy3d_mode != "per_image"):
            raise ValueError(
                f"first_index is {first_index} with seed_mode {self._hy3d_mode!r}; "
                "give 0, or a positive number with 'per_image'"
            )
        outer, states = getattr(self._hy3d_local, "batch", None), _rng.capture()
        self._hy3d_local.batch = _Batch(None, first_index)
        try:
            yield self
        finally:
            self._hy3d_local.batch = outer
            _rng.restore(states)

    @property
    def device(self) -> torch.device:
        """The device on which the pipeline executes, whatever its own `.device` says."""
        return self._hy3d_resolve().device

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """`pipeline.to(...)`; what returned the pipeline returns the proxy."""
        result = self._hy3d_pipeline.to(*args, **kwargs)
        return self if result is self._hy3d_pipeline else result

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._hy3d_pipeline)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_OWN):  # not made yet, as in copy and pickle
            raise AttributeError(name)
        return getattr(self._hy3d_pipeline, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith(_OWN):
            object.__setattr__(self, name, value)
        else:
            setattr(self._hy3d_pipeline, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._hy3d_pipeline, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._hy3d_pipeline), "batch"})

    def __repr__(self) -> str:
        return f"PipelineProxy({self._hy3d_pipeline!r}, seed_mode={self._hy3d_mode!r})"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        parts = (self._hy3d_pipeline, self._hy3d_default, self._hy3d_mode, self._hy3d_label)
        return PipelineProxy, parts

    def _hy3d_resolve(self) -> ResolvedDevice:
        return resolve_device(self._hy3d_pipeline, self._hy3d_default)

    def _hy3d_batch(self) -> _Batch:
        """The batch that this call belongs to; a new one if the call site or its run is new."""
        current: _Batch | None = getattr(self._hy3d_local, "batch", None)
        if current is not None and current.site is None:
            return current  # inside batch()
        site = _call_site()
        if current is None or current.site != site:
            current = self._hy3d_local.batch = _Batch(site)
        return current

    @contextmanager
    def _hy3d_drawing(
        self, batch: _Batch, given: Any, device: torch.device
    ) -> Iterator[torch.Generator | list[torch.Generator]]:
        """Yields the generator to use instead of `given`; keeps the global states as they are."""
        fitting = _fitting(given, device)
        fresh = isinstance(fitting, torch.Generator) and _rng.is_fresh(fitting)
        if self._hy3d_mode == "legacy" or not fresh:
            in_use = isinstance(fitting, torch.Generator) and _rng.is_global(fitting)
            leave = self._hy3d_mode == "legacy" or in_use
            with nullcontext() if leave else _states_kept():
                yield fitting
            return
        chosen = self._hy3d_next(batch, fitting)
        before = chosen.get_state()
        with _states_kept():
            self._hy3d_enter(batch)
            try:
                yield chosen
            except BaseException:
                chosen.set_state(before)  # a retry draws the same noise
                raise
            batch.inner = _rng.capture()
            batch.index += 1

    def _hy3d_next(self, batch: _Batch, given: torch.Generator) -> torch.Generator:
        """The generator of the batch's next image; `given` is freshly seeded."""
        seed = given.initial_seed()
        if batch.seed != seed or batch.stream is None:
            private = seeded(seed, given.device) if _rng.is_global(given) else given
            batch.start(seed, private)
        assert batch.stream is not None  # start has set it
        if self._hy3d_mode == "stream":
            return batch.stream
        return seeded(_native.seed_image(seed, batch.index), given.device)

    def _hy3d_enter(self, batch: _Batch) -> None:
        """Global states for an image after the first, should the pipeline draw from them itself."""
        if self._hy3d_mode == "stream" and batch.inner is not None:
            _rng.restore(batch.inner)
        elif self._hy3d_mode == "per_image" and batch.index and batch.seed is not None:
            torch.manual_seed(_native.seed_image(batch.seed, batch.index))


@contextmanager
def _states_kept() -> Iterator[None]:
    states = _rng.capture()
    try:
        yield
    finally:
        _rng.restore(states)


def _call_site() -> tuple[object, int]:
    """Equal for two calls exactly if one run of a function made both from one place."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _TRANSPARENT_FILES:
        frame = frame.f_back
    if frame is None:
        return object(), 0
    mark = frame.f_trace
    if not isinstance(mark, _FrameMark):
        mark = frame.f_trace = _FrameMark(mark)
    # A dead reference equals nothing but itself, so a later frame at the same address differs.
    return weakref.ref(mark), frame.f_lasti


def _place(value: Any, device: torch.device) -> Any:
    """`value` with every tensor in it on `device`; lists, tuples and dicts are looked into.

    Whatever needs no move is returned as the same object. Meta tensors have no data to move.
    """
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else value.to(device)
    if type(value) is dict:
        placed: Any = {key: _place(item, device) for key, item in value.items()}
        moved = any(placed[key] is not value[key] for key in value)
    elif type(value) in (list, tuple):
        placed = type(value)(_place(item, device) for item in value)
        moved = any(new is not old for new, old in zip(placed, value, strict=True))
    else:
        return value
    return placed if moved else value


def _is_generator(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(item, torch.Generator) for item in value)
    return isinstance(value, torch.Generator)


def _given_generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The generator, or list of generators, among the arguments; None if there is none."""
    candidates = [kwargs.get("generator"), *args]
    given = next((value for value in candidates if _is_generator(value)), None)
    one = isinstance(given, (list, tuple)) and len(given) == 1
    return given[0] if one and given is not None else given


def _replaced(
    args: tuple[Any, ...], kwargs: dict[str, Any], chosen: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with `chosen` in the generator's place."""
    if _is_generator(kwargs.get("generator")):
        return args, {**kwargs, "generator": chosen}
    return tuple(chosen if _is_generator(value) else value for value in args), kwargs


def _fitting(given: Any, device: torch.device) -> Any:
    """`given` with each generator replaced that cannot draw for `device`.

    A CPU generator serves every device (diffusers draws on the CPU and moves the numbers); one of
    an accelerator serves only its own kind. Its replacement on the CPU starts from its seed.
    """
    if isinstance(given, (list, tuple)):
        return [_fitting(item, device) for item in given]
    if given.device.type in ("cpu", device.type):
        return given
    logger.info(
        "a generator on %s cannot draw for %s: one on the CPU with its seed %d takes its place",
        given.device, device, given.initial_seed(),
    )  # fmt: skip
    return seeded(given.initial_seed(), "cpu")
