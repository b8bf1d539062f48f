"""Our frames out of the traceback of an error that other people's code has raised.

Who reads "hy3d_rocm" in the traceback of a node that has failed by itself looks in the wrong place.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

_OURS = str(Path(__file__).resolve().parents[2])
_RAISE = dis.opmap["RAISE_VARARGS"]


def without_ours(error: BaseException, original: Callable[..., Any]) -> TracebackType | None:
    """The traceback of `error` without this package's frames; as it is where the error is ours.

    original: what stood where we stand. An error is ours if it did not come out of that, or if a
    `raise` of ours has made it; what a function of C raised that we called is not. To be set as
    `error.__traceback__` before a bare `raise`, which adds no frame.
    """
    kept = list(_entries(error.__traceback__))
    code = getattr(inspect.unwrap(original), "__code__", None)
    if not any(entry.tb_frame.f_code is code for entry in kept) or _raised_by_us(kept[-1]):
        return error.__traceback__
    found: TracebackType | None = None
    for entry in reversed(kept):
        if not _is_ours(entry):
            found = TracebackType(found, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return found


def _entries(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _is_ours(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_OURS)


def _raised_by_us(last: TracebackType) -> bool:
    code = last.tb_frame.f_code.co_code
    return _is_ours(last) and code[last.tb_lasti] == _RAISE
