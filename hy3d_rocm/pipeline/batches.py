"""Which calls make a batch, and the generators that its images draw from.

A multiview pipeline's `encode_images` has a `posterior.sample()` that takes no generator, so what
it draws depends on the global generator of the device: other numbers on every accelerator, and a
global state that is used up. `redrawn` has it draw from a generator instead.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from hy3d_rocm import _native, _rng
from hy3d_rocm.scopes import global_draws
from hy3d_rocm.seed import SeedMode, seeded

# Accelerators' generators that callers keep using, each with the CPU generator that draws for it.
# A few strong references: torch 2.11 has no weak ones to a generator. The oldest pair goes.
_stand_ins: deque[tuple[torch.Generator, torch.Generator]] = deque(maxlen=16)


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


def call_site(transparent: Container[str]) -> tuple[object, int]:
    """Equal for two calls exactly if one run of a function made both from one place.

    transparent: files whose frames stand between a loop and its call and are no loop themselves.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in transparent:
        frame = frame.f_back
    if frame is None:
        return object(), 0
    mark = frame.f_trace
    if not isinstance(mark, _FrameMark):
        mark = frame.f_trace = _FrameMark(mark)
    # A dead reference equals nothing but itself, so a later frame at the same address differs.
    return weakref.ref(mark), frame.f_lasti


class Batch:
    """The calls that share one stream. `index` is the number of the image that comes next.

    stream: what the images of mode "stream" draw from. posterior: what `encode_images` draws
    from in the global generator's place: the stream itself if the caller gave the global one,
    else another of the same seed, since upstream seeds both. inner: the global states that the
    pipeline has changed itself, as its last image left them.
    """

    def __init__(self, site: object, first_index: int = 0) -> None:
        self.site = site
        self.first_index = first_index
        self.announced = False
        self.seed: int | None = None
        self.stream: torch.Generator | None = None
        self.start(None)

    def start(self, seed: int | None, stream: torch.Generator | None = None) -> None:
        """A new seed: its first image comes next."""
        self.seed = seed
        self.stream = stream
        self.posterior: torch.Generator | None = None
        self.index = self.first_index
        self.inner = _rng.GlobalStates()

    def generators(
        self, mode: SeedMode, given: torch.Generator, views: int | None
    ) -> torch.Generator | list[torch.Generator]:
        """What the next call draws from; `given` is freshly seeded, the answer is on the CPU."""
        seed = given.initial_seed()
        if self.seed != seed or self.stream is None:
            everyones = _rng.is_global(given)
            own = given.device.type == "cpu" and not everyones
            self.start(seed, given if own else seeded(seed))
            self.posterior = self.stream if everyones else seeded(seed)
        assert self.stream is not None  # start has set it
        if mode == "stream":
            _stand_in(given, self.stream)
            return self.stream
        made = [self.image_generator(view) for view in range(views or 1)]
        return made[0] if views is None else made

    @contextmanager
    def retried(self) -> Iterator[None]:
        """If what is inside fails, the next attempt draws the same numbers."""
        drawn_from = [item for item in (self.stream, self.posterior) if item is not None]
        before = [item.get_state() for item in drawn_from]
        try:
            yield
        except BaseException:
            for generator, state in zip(drawn_from, before, strict=True):
                generator.set_state(state)
            raise

    def encoding(
        self, mode: SeedMode, chosen: Any, views: int | None
    ) -> tuple[torch.Generator, list[torch.Generator] | None]:
        """What `encode_images` draws from in the next call: for the whole, and for each view."""
        assert self.seed is not None
        assert self.posterior is not None
        if mode == "stream":
            return self.posterior, None
        if views is None:
            shared = self.posterior is self.stream
            return chosen if shared else self.image_generator(), None
        # The reference image is the same for every part of a split call.
        return seeded(self.seed), [self.image_generator(view) for view in range(views)]

    def image_generator(self, view: int = 0) -> torch.Generator:
        """A new generator for the image `view` after the next one, in mode "per_image"."""
        assert self.seed is not None
        return seeded(_native.seed_image(self.seed, self.index + view))

    def enter(self, mode: SeedMode) -> None:
        """Global states for an image after the first, should the pipeline draw from them itself."""
        if mode == "stream":
            _rng.restore(self.inner)
        elif mode == "per_image" and self.index and self.seed is not None:
            _rng.seed_all(_native.seed_image(self.seed, self.index))

    def leave(self, images: int, used: _rng.GlobalStates) -> None:
        """A call that made `images` images has ended well; `used`: global states it has changed."""
        self.inner = _rng.merged(used, self.inner)
        self.index += images


def stand_in_for(mode: SeedMode, given: Any) -> torch.Generator | None:
    """The CPU generator that took the place of `given` and goes on for it; None if none did."""
    if mode == "legacy" or not isinstance(given, torch.Generator):
        return None
    found = next((stream for owner, stream in list(_stand_ins) if owner is given), None)
    return found if found is not None and found.initial_seed() == given.initial_seed() else None


def _stand_in(given: torch.Generator, stream: torch.Generator) -> None:
    """Notes that `stream` draws for `given`, and that `given` is in use from now on.

    Otherwise a caller who keeps one generator for several loops would look like one who reseeds.
    """
    if given.device.type == "cpu" or _rng.is_global(given):
        return
    _stand_ins.appendleft((given, stream))
    torch.empty(1, device=given.device).normal_(generator=given)


_NAME = "encode_images"
_lock = threading.Lock()


@contextmanager
def redrawn(
    pipeline: Any, whole: torch.Generator, views: list[torch.Generator] | None = None
) -> Iterator[None]:
    """While open, this thread's `pipeline.encode_images(images)` draws from `whole`.

    views: a generator for each view. The first call encodes the reference image and draws from
    `whole`; a later one whose images are (1, N, C, H, W) with N views is made view by view, each
    drawing from its own, so that a view's numbers do not depend on its neighbours.
    A pipeline without the method is left as it is.
    """
    if not callable(getattr(type(pipeline), _NAME, None)):
        yield
        return
    calls = itertools.count()

    def encode(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        images: Any = args[0] if args else kwargs.get("images")
        if views is None or next(calls) == 0 or not _has_views(images, len(views)):
            with global_draws(whole):
                return original(*args, **kwargs)
        parts = []
        for view, generator in enumerate(views):
            with global_draws(generator):
                parts.append(original(images[:, view : view + 1]))
        return torch.cat(parts, dim=1)

    own = vars(pipeline)
    with _lock:
        found = own.get(_NAME)
        if not isinstance(found, _Replacement):
            found = own[_NAME] = _Replacement(getattr(pipeline, _NAME), found)
        found.users += 1
    outer = getattr(found.local, "encode", None)
    found.local.encode = encode
    try:
        yield
    finally:
        found.local.encode = outer
        with _lock:
            found.users -= 1
            if not found.users and own.get(_NAME) is found:
                del own[_NAME]
                if found.kept is not None:
                    own[_NAME] = found.kept


class _Replacement:
    """Stands in a pipeline's `__dict__`; passes through in threads that have no scope open."""

    def __init__(self, original: Callable[..., Any], kept: object) -> None:
        self.original = original
        self.kept = kept
        self.users = 0
        self.local = threading.local()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        encode = getattr(self.local, "encode", None)
        if encode is None:
            return self.original(*args, **kwargs)
        return encode(self.original, *args, **kwargs)


def _has_views(images: Any, count: int) -> bool:
    return isinstance(images, torch.Tensor) and images.dim() == 5 and images.shape[:2] == (1, count)
