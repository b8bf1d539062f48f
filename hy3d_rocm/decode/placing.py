"""Where the frames of a decode go as they are made: a tensor, or a sink (output.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.precision import NonFiniteError
from hy3d_rocm.frames.output import scratch

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.frames.output import Sink

_AT_ONCE = 32  # frames handed to a sink at a time from what was put together beside it


class Placing:
    """Takes frames in order of time, or a tensor that tiles are added up in.

    out: the caller's own tensor, or None. sink: instead of a tensor.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, out: Tensor | None, sink: Sink | None
    ) -> None:
        self.shape, self.dtype, self.result, self.sink = shape, dtype, out, sink
        self._come = [0] * shape[0]  # frames of each sample

    def begin(self, made: dict[str, Any]) -> None:
        """A way starts. made: what its frames depend on; a sink that has frames of another making
        throws them away."""
        if self.sink is not None:
            self.sink.begin(self.shape, self.dtype, made)
            self.result = None  # a sink that began anew has another buffer
        self._come = [self.first_wanted(sample) for sample in range(self.shape[0])]

    def first_wanted(self, sample: int) -> int:
        """The first frame that is not there yet."""
        return 0 if self.sink is None else self.sink.first_wanted(sample)

    def put(self, sample: int, first: int, frames: Tensor) -> None:
        """frames (1, C, t, H, W), on any device. NonFiniteError where they hold NaN or infinity."""
        check_finite(frames, first)
        self._come[sample] = first + frames.shape[2]
        if self.sink is not None:
            self.sink.put(sample, first, frames)
            return
        on_host = frames.device.type == "cpu"
        if self.result is None and on_host and tuple(frames.shape) == self.shape:
            self.result = frames.to(self.dtype)
            return
        whole = self.whole()
        whole[sample : sample + 1, :, first : first + frames.shape[2]].copy_(frames)

    def whole(self) -> Tensor:
        """All frames as a tensor to be written in place; finished by put_whole()."""
        if self.result is None and self.sink is not None:
            folder, self.result = self.sink.folder, self.sink.buffer
            if self.result is None and folder is not None:
                self.result = scratch(folder, self.shape, self.dtype)
        if self.result is None:
            self.result = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        return self.result

    def put_whole(self, sample: int) -> None:
        """The sample's part of whole() is complete."""
        whole = self.whole()
        self._come[sample] = self.shape[2]
        for first in range(self.first_wanted(sample), self.shape[2], _AT_ONCE):
            frames = whole[sample : sample + 1, :, first : first + _AT_ONCE]
            check_finite(frames, first)
            if self.sink is not None and self.sink.buffer is None:
                self.sink.put(sample, first, frames)

    def finish(self) -> Any:
        """The tensor, or what the sink gives."""
        if any(n != self.shape[2] for n in self._come):
            raise RuntimeError(
                f"the decode made {self._come} frames of its samples where {self.shape[2]} each "
                "were due: this is a defect of hy3d_rocm, please report it with the VAE's class"
            )
        return self.whole() if self.sink is None else self.sink.finish()


def check_finite(frames: Tensor, first: int) -> None:
    """NonFiniteError (a sentence) unless all values are finite. A frame at a time, by its least and
    largest value (NaN is both), which takes no memory of the size of the frames."""
    ends = [torch.aminmax(frames[:, c, t]) for t in range(frames.shape[2])
            for c in range(frames.shape[1])]  # fmt: skip
    if not bool(torch.stack([value for pair in ends for value in pair]).isfinite().all()):
        raise NonFiniteError(
            f"frames {first} to {first + frames.shape[2] - 1} hold NaN or infinite values"
        )
