"""PipelineProxy: a diffusers pipeline whose caller may place inputs and make generators wrongly.

What makes a batch: all calls from one call site in one run of the calling function, or everything
inside `with proxy.batch():`. A node that runs again with the same seed is a new run, hence a new
batch, hence the same pictures.

Which numbers are drawn does not depend on the device: a freshly seeded generator of an accelerator
is replaced by one on the CPU with its seed, and what a multiview pipeline's `encode_images` draws
from the global state comes from a private CPU generator of the same seed. So "stream" gives on
every device the noise that upstream gives on the CPU.

A call that brings a generator leaves the global random states as it found them. The reseeding that
`generator=torch.manual_seed(seed)` does happens before the call can know of it; `batch()` puts that
right too. A call without a generator, or with one that is in use (drawn from since it was seeded),
draws as its author wants. "legacy" changes nothing about generators but a device that would raise.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from hy3d_rocm import _rng
from hy3d_rocm.conv import attention
from hy3d_rocm.device import as_device, resolve_device
from hy3d_rocm.offload.components import unwrap
from hy3d_rocm.pipeline import batches, hooks
from hy3d_rocm.seed import SeedMode, check_first_index, check_mode, seeded

logger = logging.getLogger("hy3d_rocm")

OnStep = Callable[[int, int], object]  # (steps done, steps in all)

_CALLBACK = "callback_on_step_end"
_OWN = "_hy3d_"  # attributes of the proxy; every other one is the pipeline's
# Wrappers between a loop and its call that are no loop themselves.
_TRANSPARENT_FILES = (__file__, torch.utils._contextlib.__file__)


class PipelineProxy:
    """Stands for `pipeline`: attributes, `isinstance` and methods are the pipeline's own.

    `device` is where the pipeline executes, so that `torch.Generator(device=proxy.device)` and
    `tensor.to(proxy.device)` are right under offload too. Calls are corrected as the module says.
    default_device: for a pipeline that tells no device; its `main_device` where it has one.
    seed_mode: "stream" (one generator for a batch), "per_image" (image i has the seed
    `seed_image(seed, i)`; so has view i of a multiview call) or "legacy" (generators as they are,
    and `device` is the pipeline's own answer wherever a generator can be made there).
    label: what the line "<label>: Using input device: <device>" begins with.
    first_index: the number of a batch's first image or view, for "per_image" and a split batch.
    on_step: called as on_step(steps done, steps in all) after each step of a pipeline that takes
    `callback_on_step_end`; what it raises ends the call.
    """

    def __init__(
        self,
        pipeline: Any,
        default_device: torch.device | str | None = None,
        seed_mode: SeedMode = "stream",
        label: str = "Hy3DDelightImage",
        first_index: int = 0,
        on_step: OnStep | None = None,
    ) -> None:
        pipeline = unwrap(pipeline)
        if not callable(pipeline):
            raise TypeError(f"{type(pipeline).__name__} cannot be called; give a pipeline")
        self._hy3d_pipeline = pipeline
        self._hy3d_default = default_device
        self._hy3d_mode = check_mode(seed_mode)
        self._hy3d_label = label
        self._hy3d_first = check_first_index(first_index, self._hy3d_mode)
        self._hy3d_on_step = on_step
        self._hy3d_local = threading.local()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the pipeline with its inputs on the execution device and the batch's generator.

        A call that fails or is cancelled leaves the pipeline ready for the next one.
        """
        batch = self._hy3d_batch()
        target = resolve_device(self._hy3d_pipeline, self._hy3d_default)
        if not batch.announced:
            batch.announced = True
            logger.info(
                "%s: Using input device: %s (rule: %s)",
                self._hy3d_label, target.device, target.rule,
            )  # fmt: skip
        args = tuple(place(list(args), target.device))
        kwargs = place(kwargs, target.device)
        kwargs = watched(self._hy3d_pipeline, args, kwargs, self._hy3d_on_step)
        given = given_generator(args, kwargs)
        pipeline = self._hy3d_pipeline
        with _cleaned_up(pipeline), hooks.readable(pipeline), attention.unfused():
            if given is None:
                return pipeline(*args, **kwargs)
            views = views_of(kwargs)
            with self._hy3d_drawing(batch, given, target.device, views) as chosen:
                args, kwargs = with_generator(args, kwargs, chosen)
                return pipeline(*args, **kwargs)

    @contextmanager
    def batch(self, first_index: int | None = None) -> Iterator[PipelineProxy]:
        """Everything inside is one batch; global random states are put back at the end.

        first_index is the number of the first image, if not the one the proxy was made with. In
        "legacy" the states stay as the calls inside leave them, as they do upstream.
        """
        first = self._hy3d_first if first_index is None else first_index
        check_first_index(first, self._hy3d_mode)
        outer = getattr(self._hy3d_local, "batch", None)
        self._hy3d_local.batch = batches.Batch(None, first)
        try:
            with nullcontext() if self._hy3d_mode == "legacy" else _rng.kept():
                yield self
        finally:
            self._hy3d_local.batch = outer

    @property
    def device(self) -> torch.device:
        """The device on which the pipeline executes, whatever its own `.device` says.

        In "legacy": its own `.device`, on which upstream makes its generators, if one can be made.
        Callers make generators on the answer, so a kind of device that has none (DirectML's) is
        answered with the CPU: its generators serve everywhere, and a call moves its tensors anyway.
        """
        own = _own_generator_device(self._hy3d_pipeline) if self._hy3d_mode == "legacy" else None
        if own is not None:
            return own
        return _with_generators(resolve_device(self._hy3d_pipeline, self._hy3d_default).device)

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
        parts = (
            self._hy3d_pipeline, self._hy3d_default, self._hy3d_mode, self._hy3d_label,
            self._hy3d_first, self._hy3d_on_step,
        )  # fmt: skip
        return PipelineProxy, parts

    def _hy3d_batch(self) -> batches.Batch:
        """The batch that this call belongs to; a new one if the call site or its run is new."""
        current: batches.Batch | None = getattr(self._hy3d_local, "batch", None)
        if current is not None and current.site is None:
            return current  # inside batch()
        site = batches.call_site(_TRANSPARENT_FILES)
        if current is None or current.site != site:
            current = self._hy3d_local.batch = batches.Batch(site, self._hy3d_first)
        return current

    @contextmanager
    def _hy3d_drawing(
        self, batch: batches.Batch, given: Any, device: torch.device, views: int | None
    ) -> Iterator[torch.Generator | list[torch.Generator]]:
        """Yields the generator(s) to use instead of `given`; keeps the global states."""
        mode, given = self._hy3d_mode, fitting(given, device)
        one = isinstance(given, torch.Generator)
        if mode == "legacy" or not one or not _rng.is_fresh(given):
            leave = mode == "legacy" or (one and _rng.is_global(given))
            with nullcontext() if leave else _rng.kept():
                yield batches.stand_in_for(mode, given) or given
            return
        chosen = batch.generators(mode, given, views)
        encoding = batches.redrawn(self._hy3d_pipeline, *batch.encoding(mode, chosen, views))
        before, used = _rng.capture(), _rng.GlobalStates()
        try:
            with batch.retried(), encoding:
                batch.enter(mode)
                yield chosen
        finally:
            used = _rng.put_back(before)
        batch.leave(views or 1, used)


def seed_mode_of(pipeline: Any) -> SeedMode | None:
    """The seed mode of a proxy; None for anything else."""
    return pipeline._hy3d_mode if type(pipeline) is PipelineProxy else None


@contextmanager
def _cleaned_up(pipeline: Any) -> Iterator[None]:
    """A call that ends early gives the offload hooks what its own last line would have given."""
    try:
        yield
    except BaseException:
        try:
            free = getattr(pipeline, "maybe_free_model_hooks", None)
            if callable(free):
                free()
            hooks.put_away(pipeline)
        except Exception as error:  # noqa: BLE001  (the first error is the one to tell)
            logger.warning("the pipeline could not free its models after an error: %s", error)
        raise


def _with_generators(device: torch.device) -> torch.device:
    """`device`, or the CPU if torch makes no generator for this kind of device."""
    if device.type in ("cpu", "cuda", "mps", "xpu"):
        return device
    try:
        torch.Generator(device=device)
    except (RuntimeError, TypeError):
        return torch.device("cpu")
    return device


def _own_generator_device(pipeline: Any) -> torch.device | None:
    """The pipeline's own `.device`, if it tells one and a generator can be made there."""
    try:
        device = as_device(pipeline.device)
        if device is not None:
            torch.Generator(device=device)
    except Exception:  # noqa: BLE001  (a strange pipeline's property may raise anything)
        return None
    return device


def place(value: Any, device: torch.device) -> Any:
    """`value` with every tensor in it on `device`; lists, tuples and dicts are looked into.

    Whatever needs no move is returned as the same object. Meta tensors have no data to move.
    """
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else value.to(device)
    if type(value) is dict:
        placed: Any = {key: place(item, device) for key, item in value.items()}
        moved = any(placed[key] is not value[key] for key in value)
    elif type(value) in (list, tuple):
        placed = type(value)(place(item, device) for item in value)
        moved = any(new is not old for new, old in zip(placed, value, strict=True))
    else:
        return value
    return placed if moved else value


def given_generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The generator, or list of generators, among the arguments; None if there is none."""
    candidates = [kwargs.get("generator"), *args]
    given = next((value for value in candidates if _is_generator(value)), None)
    one = isinstance(given, (list, tuple)) and len(given) == 1
    return given[0] if one and given is not None else given


def with_generator(
    args: tuple[Any, ...], kwargs: dict[str, Any], chosen: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with `chosen` in the generator's place."""
    if _is_generator(kwargs.get("generator")):
        return args, {**kwargs, "generator": chosen}
    return tuple(chosen if _is_generator(value) else value for value in args), kwargs


def fitting(given: Any, device: torch.device) -> Any:
    """`given` with each generator replaced that cannot draw for `device`.

    A CPU generator serves every device (diffusers draws on the CPU and moves the numbers); one of
    an accelerator serves only its own kind. Its replacement on the CPU starts from its seed.
    """
    if isinstance(given, (list, tuple)):
        return [fitting(item, device) for item in given]
    if given.device.type in ("cpu", device.type):
        return given
    logger.info(
        "a generator on %s cannot draw for %s: one on the CPU with its seed %d takes its place",
        given.device, device, given.initial_seed(),
    )  # fmt: skip
    return seeded(given.initial_seed(), "cpu")


def views_of(kwargs: dict[str, Any]) -> int | None:
    """How many views a multiview call makes (its `num_in_batch`); None for any other call."""
    views = kwargs.get("num_in_batch")
    return views if type(views) is int and views > 0 else None


def _is_generator(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(item, torch.Generator) for item in value)
    return isinstance(value, torch.Generator)


def watched(
    pipeline: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_step: OnStep | None
) -> dict[str, Any]:
    """`kwargs` with a callback that reports to `on_step`; as they are if the call has one.

    A pipeline that does not name the argument in its `__call__` is not given it.
    """
    if on_step is None or kwargs.get(_CALLBACK) is not None:
        return kwargs
    position = _position(type(pipeline).__call__)
    if position is None or len(args) > position:
        return kwargs
    steps = kwargs.get("num_inference_steps")
    expected = steps if type(steps) is int else 0

    def report(running: Any, step: int, timestep: Any, state: dict[str, Any]) -> dict[str, Any]:
        on_step(step + 1, getattr(running, "num_timesteps", None) or expected or step + 1)
        return state  # the same tensors: the picture cannot change

    return {**kwargs, _CALLBACK: report}


@functools.lru_cache(maxsize=32)  # reading a signature takes longer than all the rest
def _position(call: Any) -> int | None:
    """Where the argument stands in a class's `__call__`; None if it has none."""
    try:
        names = list(inspect.signature(call).parameters)
    except (TypeError, ValueError):  # a callable without a signature
        return None
    return names.index(_CALLBACK) - 1 if _CALLBACK in names else None
