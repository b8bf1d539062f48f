"""Which exceptions belong to the caller: cancels, and what a caller's own function has raised.

Pure Python: log files are diagnosed without torch too.
"""

from __future__ import annotations

import contextlib

_MARK = "_hy3d_rocm_callers"
# ComfyUI's InterruptProcessingException is an Exception up to 0.3 and a BaseException later.
# The words are those of concurrent.futures, asyncio and most hosts.
_WORDS = ("interrupt", "cancel")


def mark(error: BaseException) -> None:
    """Notes that a function of the caller (a listener) has raised it."""
    with contextlib.suppress(AttributeError, TypeError):  # a class with __slots__
        setattr(error, _MARK, True)


def is_cancel(error: BaseException) -> bool:
    """Whether no tier is to blame, and the caller has to see it unchanged."""
    if not isinstance(error, Exception) or getattr(error, _MARK, False):
        return True
    if type(error).__name__ == "Hy3dError":  # of our C core: cancelled by protect(cancel=)
        return "cancel" in str(error).lower()
    names = (c.__name__.lower() for c in type(error).__mro__ if c.__module__ != "builtins")
    return any(word in name for name in names for word in _WORDS)
