"""Progress of a decode on a terminal: frames, time left, memory, strategy."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hy3d_rocm.decode.frames.output import ALL, Shape, Sink
from hy3d_rocm.decode.memory.meter import resident_bytes
from hy3d_rocm.decode.plan import format_bytes

if TYPE_CHECKING:
    from types import TracebackType

    import torch
    from torch import Tensor

    from hy3d_rocm.decode.report import Step

_LINE_SECONDS = 10.0  # between lines in a log file
_TERMINAL_SECONDS = 0.2


class WatchedSink:
    """A sink that counts what goes through it, and writes a line about it to `stream`: over and
    over the same one on a terminal, a new one now and then elsewhere."""

    def __init__(self, sink: Sink, device: torch.device, stream: IO[str]) -> None:
        self.sink = sink
        self.device = device
        self.stream = stream
        self.there_before = 0
        self._shape: Shape | None = None
        self._strategy = ""
        self._began = time.monotonic()
        self._last = self._began
        self._terminal = stream.isatty()
        self._shown = 0

    def __enter__(self) -> WatchedSink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._terminal and self._shown:
            self.stream.write("\n")

    def begin(
        self, shape: Shape, dtype: torch.dtype, plan: Mapping[str, Any] | None = None
    ) -> None:
        self.sink.begin(shape, dtype, plan)
        if self._shape is None:
            self.there_before = sum(self.sink.first_wanted(b) for b in range(shape[0]))
        self._shape = shape
        self._strategy = str((plan or {}).get("strategy", ""))

    def host_bytes(self, shape: Shape) -> int:
        return self.sink.host_bytes(shape)

    def first_wanted(self, sample: int) -> int:
        return self.sink.first_wanted(sample)

    def put(
        self, sample: int, first: int, frames: Tensor, rows: slice = ALL, columns: slice = ALL
    ) -> None:
        self.sink.put(sample, first, frames, rows, columns)
        self._show("", None)

    def finish(self) -> Any:
        return self.sink.finish()

    def abort(self) -> None:
        self.sink.abort()

    @property
    def buffer(self) -> Tensor | None:
        return self.sink.buffer

    @property
    def folder(self) -> Path | None:
        return self.sink.folder

    def progress(self, done: int, total: int, step: Step) -> None:
        """As decode() calls it after each grain."""
        self._show(f"{step.kind} {done}/{total}", (done, total))

    def _show(self, grain: str, share: tuple[int, int] | None) -> None:
        now = time.monotonic()
        if now - self._last < (_TERMINAL_SECONDS if self._terminal else _LINE_SECONDS):
            return
        self._last = now
        text = ", ".join(filter(None, [
            self._frames(), grain, self._left(now, share), self._memory(), self._strategy,
        ]))  # fmt: skip
        if self._terminal:
            self.stream.write("\r" + text.ljust(self._shown))
            self._shown = len(text)
        else:
            self.stream.write(text + "\n")
        self.stream.flush()

    def _frames(self) -> str:
        if self._shape is None:
            return ""
        done = sum(self.sink.first_wanted(b) for b in range(self._shape[0]))
        return f"frames {done}/{self._shape[0] * self._shape[2]}"

    def _left(self, now: float, share: tuple[int, int] | None) -> str:
        if share is None or not 0 < share[0] <= share[1]:
            return ""
        seconds = (now - self._began) * (share[1] - share[0]) / share[0]
        return f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"

    def _memory(self) -> str:
        if self.device.type == "cuda":
            import torch

            return f"{format_bytes(torch.cuda.memory_allocated(self.device))} on the GPU"
        return f"{format_bytes(resident_bytes())} resident"
