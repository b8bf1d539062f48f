"""One convolution over the slices of a video, grain by grain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.engines.sliced import ConvPlan, Grain, Sliced, frames_of, pieces_of

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.engines.slice_engine import SliceEngine
    from hy3d_rocm.decode.engines.spill import Slice
    from hy3d_rocm.decode.layers import Conv


class ConvRun:
    """`layer` on x, with the residual `add`. add may be x itself."""

    def __init__(self, engine: SliceEngine, x: Sliced, layer: Conv, add: Sliced | None) -> None:
        weight = engine.backend.weights.of(layer.module, "weight")
        if weight is None:
            raise ValueError(f"{type(layer.module).__name__} has no weight to convolve with")
        cuts = [s.stop for s in add.slices] if add is not None else ()
        self.plan = ConvPlan(layer, x.shape, x.dtype, weight, engine.slice_bytes, cuts)
        if add is not None and add.shape != self.plan.shape:
            raise ValueError(
                f"the residual is {add.shape}, the layer's result {self.plan.shape}: they can't be "
                "added"
            )
        self.engine = engine
        self.x = x
        self.layer = layer
        self.residual = add
        self.out = Sliced(self.plan.shape, x.dtype)
        self.affine: Any = None
        self._index = 0

    @property
    def next(self) -> Grain | None:
        grains = self.plan.grains
        return grains[self._index] if self._index < len(grains) else None

    @property
    def need(self) -> int:
        """The first frame of x that a grain still to come reads."""
        grain = self.next
        if grain is None:
            return self.x.shape[1]
        return min(grain.reads[0], grain.result[0]) if self.residual is self.x else grain.reads[0]

    def pass_first(self) -> None:
        """The frames that pass by the convolution."""
        passed = self.plan.passed
        if not passed:
            return
        reads = self.x.covering((0, passed))
        adds = self._adds((0, passed))
        step = self.engine.step("conv", self.out, (0, passed))

        def work(tensors: list[Tensor]) -> Tensor:
            frames = frames_of(reads, tensors[: len(reads)], (0, passed), copy=True)
            extra = self._extra((0, passed), adds, tensors[len(reads) :])
            return frames if extra is None else frames + extra

        making = passed * self.out.frame_bytes
        pieces = [*reads, *adds]
        result = self.engine.run(step, lambda: self.engine.held(pieces, making, work))
        self._let_go(passed)
        self.engine.finish(self.out, result, None, step)

    def advance(self) -> None:
        """The next grain."""
        grain = self.next
        assert grain is not None
        reads, adds = self._needed(grain)
        self._index += 1
        then = [p for some in self._needed(self.next) for p in some]
        step = self.engine.step("conv", self.out, grain.result)

        def work(tensors: list[Tensor]) -> Any:
            return self._convolve(grain, reads, adds, tensors)

        making = (grain.result[1] - grain.result[0] + grain.drop) * self.out.frame_bytes
        pieces = [*reads, *adds]
        result, moments = self.engine.run(
            step, lambda: self.engine.held(pieces, making, work, then)
        )
        self._let_go(grain.result[1])
        self.engine.finish(self.out, result, moments, step)

    def _convolve(
        self, grain: Grain, reads: list[Slice], adds: list[Slice], tensors: list[Tensor]
    ) -> Any:
        """Result and moments. What is written in place is written by the last operation, so that a
        failed grain can be made again."""
        engine = self.engine
        source = pieces_of(reads, tensors[: len(reads)], self.plan.base, self.plan.total)
        extra = self._extra(grain.result, adds, tensors[len(reads) :])
        if not grain.drop:
            return engine.backend.convolve(
                self.layer, source, grain.own, affine=self.affine, add=extra, moments=engine.gather
            )
        result, _ = engine.backend.convolve(self.layer, source, grain.own, affine=self.affine)
        result = result[:, :, grain.drop :]
        return (result.clone() if extra is None else extra.add_(result)), None

    def _needed(self, grain: Grain | None) -> tuple[list[Slice], list[Slice]]:
        if grain is None:
            return [], []
        return self.x.covering(grain.reads), self._adds(grain.result)

    def _adds(self, frames: tuple[int, int]) -> list[Slice]:
        return [] if self.residual is None else self.residual.covering(frames)

    def _extra(
        self, frames: tuple[int, int], adds: list[Slice], tensors: list[Tensor]
    ) -> Tensor | None:
        """The residual of some frames, which may be overwritten."""
        if not adds:
            return None
        ours = all(p.owned for p in adds) and self.residual is not self.x
        return frames_of(adds, tensors, frames, copy=not ours)

    def _let_go(self, stop: int) -> None:
        if self.residual is not None and self.residual is not self.x:
            self.engine.release(self.residual, stop)
