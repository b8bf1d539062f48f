"""Frames in a memory-mapped .npy file, larger than memory if it must be."""

from __future__ import annotations

import logging
import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.frames.claim import Claim
from hy3d_rocm.decode.frames.output import (
    ALL,
    OutputError,
    Shape,
    settle,
    told,
)
from hy3d_rocm.decode.frames.resume import Parts

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("hy3d_rocm")

# How many frames a killed decode of an array loses at most.
CHECKPOINT_FRAMES = 32
_PASSED_BYTES = 8 << 20  # written before the pages are let go
_STORED = {torch.float16: "float16", torch.float32: "float32", torch.float64: "float64"}


class MemmapSink:
    """Frames (B, C, T, H, W) in -1..1 as a .npy file of float16, float32 or float64; bfloat16,
    which NumPy lacks, becomes float32.

    All blocks of the file are reserved at begin(): on a disk that fills up, writing to mapped
    memory kills the process instead of failing. Pages are let go as they are written, so the
    process does not grow with the file. claim: of Parts for a decode that can go on; frames that
    came whole and in order are recorded there once they are on the disk.
    """

    def __init__(self, path: Path, claim: Claim | None = None) -> None:
        self.path = path
        self.claim = claim or Claim(path)
        self.parts = claim if isinstance(claim, Parts) else None
        self._is_taken = False
        self._data = self.claim.folder / "frames.npy"
        self._map: mmap.mmap | None = None
        self._file: Any = None
        self._frames: Tensor | None = None
        self._next: list[int] = []
        self._recorded = 0
        self._plan: Mapping[str, Any] | None = None
        self._dtype: torch.dtype | None = None
        self._in_order = True  # nothing but whole frames by put()
        self._published = False

    def begin(
        self, shape: Shape, dtype: torch.dtype, plan: Mapping[str, Any] | None = None
    ) -> None:
        stored = _STORED.get(dtype, "float32")
        if self._frames is not None:
            if plan == self._plan:
                return
            self._let_go()
            if self.parts is not None:
                self.parts.begin_again(shape, stored, plan)
        if not self._is_taken:
            self.claim.take()
            self._is_taken = True
        self._plan, self._dtype = plan, dtype
        if dtype not in _STORED:
            logger.info("%s: %s frames are stored as float32, NumPy has no such type",
                        self.path, dtype)  # fmt: skip
        done = 0
        if self.parts is not None:
            done = self.parts.settle(shape, stored, plan)
            if done and not self._data.exists():
                # Killed between the file's renaming and the folder's end.
                self._published = done == shape[0] * shape[2] and self.parts.is_published
                done = done if self._published else 0
        self._next = [min(max(done - b * shape[2], 0), shape[2]) for b in range(shape[0])]
        self._recorded = done
        if self._published:
            return
        try:
            with told(self._data):
                self._open(shape, stored, keep=done > 0)
        except BaseException:
            self._let_go()
            self._release()
            raise

    def _open(self, shape: Shape, stored: str, *, keep: bool) -> None:
        import numpy as np

        if not keep:
            np.lib.format.open_memmap(self._data, "w+", np.dtype(stored), tuple(shape))
        self._file = open(self._data, "r+b")  # noqa: SIM115  closed in _let_go()
        found, kind = self._header()
        offset = self._file.tell()
        if found != tuple(shape) or kind != np.dtype(stored):
            raise OutputError(f"{self._data} is of shape {found}: start again with --restart")
        size = os.fstat(self._file.fileno()).st_size
        if size != offset + math.prod(shape) * kind.itemsize:
            raise OutputError(f"{self._data} is cut at {size} bytes: start again with --restart")
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file.fileno(), 0, size)
        self._map = mmap.mmap(self._file.fileno(), size)
        array = np.frombuffer(self._map, kind, offset=offset).reshape(shape)
        self._frames = torch.from_numpy(array)

    def _header(self) -> tuple[tuple[int, ...], Any]:
        """Shape and type of the open file, which is then behind them."""
        import numpy as np

        try:
            version = np.lib.format.read_magic(self._file)
            read = np.lib.format.read_array_header_1_0
            found, _, kind = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(
                self._file
            )
        except ValueError as error:
            raise OutputError(
                f"{self._data} is damaged ({error}): start again with --restart"
            ) from error
        return tuple(found), kind

    def host_bytes(self, shape: Shape) -> int:
        return max(_PASSED_BYTES, math.prod(shape[3:]) * shape[1] * 8) + (4 << 20)

    def first_wanted(self, sample: int) -> int:
        return self._next[sample] if self._next else 0

    def put(
        self, sample: int, first: int, frames: Tensor, rows: slice = ALL, columns: slice = ALL
    ) -> None:
        if self._published:
            return
        whole = (rows, columns) == (ALL, ALL)
        stop = first + frames.shape[2]
        if whole and first < self._next[sample]:  # there already
            frames = frames[:, :, self._next[sample] - first :]
            first = min(self._next[sample], stop)
        self._in_order &= whole
        place = self._opened()[sample : sample + 1, :, first:stop, rows, columns]
        frame_bytes = place[:, :, :1].numel() * place.element_size()
        step = max(_PASSED_BYTES // max(frame_bytes, 1), 1)
        for at in range(0, place.shape[2], step):
            place[:, :, at : at + step].copy_(frames[:, :, at : at + step])
            self._pass_pages()
        if whole and first == self._next[sample]:
            self._next[sample] = max(stop, first)
        if self.parts is not None and self._done() - self._recorded >= CHECKPOINT_FRAMES:
            self._record()

    def _done(self) -> int:
        """Frames that are there from the start, all samples one after another."""
        total = self._opened().shape[2]
        count = 0
        for following in self._next:
            count += following
            if following < total:
                break
        return count

    def _record(self) -> None:
        assert self.parts is not None
        done = self._done()
        self._settle()
        self.parts.record(done)
        self._recorded = done

    def _settle(self) -> None:
        assert self._map is not None
        with told(self._data):
            self._map.flush()
            settle(self._file)

    def _pass_pages(self) -> None:
        """Written pages leave this process (they stay in the system's cache, and get to disk)."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def finish(self) -> Path:
        if not self._published:
            self._publish()
        if self.parts is not None:
            self.parts.remove()
        self._release()
        return self.path

    def _release(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self.claim.release()

    def _publish(self) -> None:
        count = self._opened().shape[0] * self._opened().shape[2]
        if self._in_order and self._done() != count:
            raise RuntimeError(f"{self.path}: {self._done()} of {count} frames came")
        self._settle()
        if self.parts is not None:
            self.parts.record(count)
        self._let_go()
        self.claim.publish(self._data)

    def abort(self) -> None:
        try:
            if self._frames is not None and self.parts is not None:
                self._record()
                logger.info(
                    "%s: stopped; %d frames are in %s, --resume goes on behind them",
                    self.path, self._recorded, self.parts.folder,
                )  # fmt: skip
            elif self._frames is not None:
                logger.info("%s: stopped, nothing is left", self.path)
        finally:
            self._let_go()
            self._release()

    def _let_go(self) -> None:
        self._frames = self._map = None  # unmapped with the last tensor that looks at it
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def buffer(self) -> Tensor | None:
        if self._frames is None or self._frames.dtype != self._dtype:
            return None
        self._in_order = False
        return self._frames

    @property
    def folder(self) -> Path:
        return self.path.parent

    def _opened(self) -> Tensor:
        if self._frames is None:
            raise RuntimeError("a sink was used before begin() or after its end")
        return self._frames


def scratch(folder: Path, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Zeros on the disk instead of in memory, in a file without a name in `folder`: for tiles of a
    video that is written when all are added up. It goes with its last tensor, also in a kill."""
    import tempfile

    size = math.prod(shape) * dtype.itemsize
    with told(folder / "scratch"):
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  mapped beyond its end
        with file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=dtype).view(shape)
