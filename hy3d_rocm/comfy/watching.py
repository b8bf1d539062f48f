"""A cancel that is seen without being taken away from ComfyUI.

ComfyUI's interrupt is a flag that is reset by whoever raises for it
(throw_exception_if_processing_interrupted). What computes in parts only needs to know: a Watcher
reads the flag, and once the work has ended by that, ComfyUI's own exception is raised, which resets
the flag and ends the prompt as any other node would.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

import comfy.model_management as management

from hy3d_rocm import _native

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["INTERVAL_S", "Watcher"]

# The C convolution's flag is set so much later than ComfyUI's at most, plus a switch of threads.
INTERVAL_S = 0.05


class Watcher:
    """A scope around work that can be cancelled; an instance is for one scope at a time.

        with Watcher() as watcher:
            decode(..., cancel=watcher)

    `requested` (and `cancelled()`) is ComfyUI's flag as it is now. `flag` is the C core's: a thread
    sets it INTERVAL_S after ComfyUI's at the latest, so that a long convolution on the CPU ends,
    too. What leaves the scope while the flag is up, if it is an Exception, becomes ComfyUI's own
    InterruptProcessingException; a result that was ready by then is kept, and the executor sees the
    flag before the next node.
    """

    def __init__(self) -> None:
        self.flag = _native.CancelFlag()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="hy3d-cancel")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if isinstance(error, Exception) and self.cancelled():
            error.__traceback__ = None  # whose frames hold the decode's tensors
            self.throw()

    @property
    def requested(self) -> bool:
        """See cancelled()."""
        return self.cancelled()

    def cancelled(self) -> bool:
        """Whether the user has cancelled; nothing is reset."""
        return bool(self.flag.requested) or _is_interrupted()

    def throw(self, *_: Any) -> None:
        """Raises ComfyUI's exception, and resets its flag, if the user has cancelled; usable as a
        listener of protect()."""
        management.throw_exception_if_processing_interrupted()
        if self.flag.requested:  # somebody has reset ComfyUI's flag meanwhile
            raise management.InterruptProcessingException

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            if _is_interrupted():
                self.flag.request()
                return


def _is_interrupted() -> bool:
    return bool(management.processing_interrupted())
