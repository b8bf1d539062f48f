"""A multiview pipeline's `encode_images`, drawing from a generator instead of the global state.

`posterior.sample()` in it takes no generator, so what it draws depends on the global generator of
the device: other numbers on every accelerator, and a global state that is used up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hy3d_rocm.scopes import global_draws

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
    replacement = _install(pipeline)
    outer = getattr(replacement.local, "draws", None)
    replacement.local.draws = _Draws(whole, views)
    try:
        yield
    finally:
        replacement.local.draws = outer
        _remove(pipeline, replacement)


class _Draws:
    """The generators of one call."""

    def __init__(self, whole: torch.Generator, views: list[torch.Generator] | None) -> None:
        self.whole = whole
        self.views = views
        self.calls = 0

    def encode(self, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        self.calls += 1
        images: Any = args[0] if args else kwargs.get("images")
        views = self.views
        if views is None or self.calls == 1 or not _has_views(images, len(views)):
            with global_draws(self.whole):
                return original(*args, **kwargs)
        parts = []
        for view, generator in enumerate(views):
            with global_draws(generator):
                parts.append(original(images[:, view : view + 1]))
        return torch.cat(parts, dim=1)


class _Replacement:
    """Stands in a pipeline's `__dict__`; passes through in threads that have no scope open."""

    def __init__(self, original: Callable[..., Any], kept: object) -> None:
        self.original = original
        self.kept = kept
        self.users = 0
        self.local = threading.local()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        draws = getattr(self.local, "draws", None)
        if draws is None:
            return self.original(*args, **kwargs)
        return draws.encode(self.original, args, kwargs)


def _has_views(images: Any, count: int) -> bool:
    return isinstance(images, torch.Tensor) and images.dim() == 5 and images.shape[:2] == (1, count)


def _install(pipeline: Any) -> _Replacement:
    with _lock:
        own = vars(pipeline)
        found = own.get(_NAME)
        if not isinstance(found, _Replacement):
            found = own[_NAME] = _Replacement(getattr(pipeline, _NAME), found)
        found.users += 1
        return found


def _remove(pipeline: Any, replacement: _Replacement) -> None:
    with _lock:
        replacement.users -= 1
        if replacement.users or vars(pipeline).get(_NAME) is not replacement:
            return
        if replacement.kept is None:
            del vars(pipeline)[_NAME]
        else:
            vars(pipeline)[_NAME] = replacement.kept
