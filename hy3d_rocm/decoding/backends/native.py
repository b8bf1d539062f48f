"""NativeBackend: layers by the C convolution."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm import _native
from hy3d_rocm.aliasing import overlaps
from hy3d_rocm.conv import functional
from hy3d_rocm.conv.prepared import cache
from hy3d_rocm.conv.protection import note
from hy3d_rocm.decoding import geometry
from hy3d_rocm.decoding.backends.statistics import NAMES, Affine
from hy3d_rocm.decoding.backends.torch_ops import (
    TorchBackend,
    check_affine,
    finished,
    not_fused,
    own_norm,
)
from hy3d_rocm.decoding.layers import Conv, Moments, Norm, Pieces, Range, Weights


def refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why no layer of this type can be computed on this device, in a few words, or None."""
    if device.type != "cpu":
        return f"the C convolution runs on the CPU, not on {device.type}"
    if dtype not in NAMES:
        return f"the C convolution has no fused {dtype}"
    if not _native.available:
        return f"the C core is not there ({_native.missing})"
    blas = _native.blas_info()
    return None if blas["available"] else f"the C core has no BLAS library ({blas['error']})"


class NativeBackend(TorchBackend):
    """Layers by the C convolution, with norm, activation, up-sampling and padding in its input and
    bias and residual in its result. Results are contiguous (1, C, T, H, W).

    What it can't compute goes to TorchBackend; `delegated` counts those calls by reason. cancel: a
    CancelFlag that ends a convolution under way; check: called before each, may raise. compute:
    instead of functional.fused_conv3d. Nothing is written to `add` before all memory that the call
    needs is there, so a call that ran out of it may be made again. workspace() is of what goes to
    TorchBackend: the rest the core knows (hy3d_place).
    """

    cancel: Any = None
    check: Callable[[], object] | None = None
    compute: Callable[..., Tensor] | None = None

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        # The module is kept with the tensor: its id stays taken for as long as it is a key.
        self._kernels: dict[int, tuple[Any, Tensor, Tensor]] = {}

    def convolve(
        self, layer: Conv, source: Pieces, frames: Range, *, affine: Affine | None = None,
        add: Tensor | None = None, moments: bool = False, out: Tensor | None = None,
    ) -> tuple[Tensor, Moments | None]:  # fmt: skip
        """See TorchBackend.convolve; without a shuffle the result is made in `out`."""
        check_affine(layer, affine)
        if self.check is not None:
            self.check()
        reason = self._refusal(layer, source)
        if reason is not None:
            self.delegated[reason] = self.delegated.get(reason, 0) + 1
            return super().convolve(layer, source, frames, affine=affine, add=add, out=out)
        added = target = None
        if layer.shuffle is not None:
            add, added = None, add
        else:
            target = add if out is None else out
        kernel, x, norm = self._kernel(layer), source.tensors[0], layer.norm
        numbers = geometry.frame_numbers(layer, source, frames, kernel.shape[2])
        read, scale, shift = geometry.frames_of(source, numbers), None, None
        if norm is not None and norm.kind == "group" and affine is not None:
            flat = (a.detach().reshape(-1) for a in affine)
            scale, shift = (a.to("cpu", torch.float32).contiguous() for a in flat)
        elif norm is not None:
            read = self._normalised(read, norm)
        made_size = geometry.own_size(layer, (x.shape[3], x.shape[4]), geometry.kernel_size(kernel))
        size = (1, len(kernel), frames[1] - frames[0], *made_size)
        if add is not None and tuple(add.shape) != size:
            raise ValueError(f"a residual of {tuple(add.shape)} for a result of {size}")
        unfit = target is None or target.dtype is not x.dtype or target.is_neg()
        if target is None or unfit or overlaps(target):
            target = x.new_empty(size)
        (_, top, left), (_, bottom, right) = layer.before, layer.after  # time's is among the frames
        compute: Any = self.compute or functional.fused_conv3d
        start = time.perf_counter()
        with torch.no_grad():
            made: Tensor = compute(
                read, kernel, self.weights.of(layer.module, "bias"),
                padding=((0, 0), (top, bottom), (left, right)),
                padding_mode=("zeros", *layer.modes[1:]), stride=layer.stride,
                upsample=layer.up[1:], scale=scale, shift=shift, activation=layer.act,
                residual=None if add is None else add.to(x.dtype).resolve_neg(),
                out=target, cancel=self.cancel,
            )  # fmt: skip
        if made.device.type != "meta":
            read_size = (1, x.shape[1], len(numbers), *x.shape[3:])
            note(read_size, size[1], x.dtype, "cpu, fused", time.perf_counter() - start)
        if layer.shuffle is not None:
            made = finished(made, layer.shuffle, frames, added, out)
        elif out is not None and made is not out:
            made = out.copy_(made)
        return made, None

    def is_native(self, layer: Conv) -> bool:
        """Whether the C convolution computes it: the core knows what that takes."""
        known = self._weight(layer).dtype in NAMES
        return known and not_fused(layer, Pieces((), 0, None), "") is None

    def _refusal(self, layer: Conv, source: Pieces) -> str | None:
        """Why this layer can't be computed by the C convolution, in a few words, or None."""
        dtype = source.tensors[0].dtype
        if dtype not in NAMES or any(t.dtype is not dtype for t in source.tensors):
            return f"the C convolution has no fused {dtype}"
        if any(t.device.type not in ("cpu", "meta") for t in source.tensors):
            return "the source is not in host memory"
        return not_fused(layer, source, "the C convolution")

    def _kernel(self, layer: Conv) -> Tensor:
        """The weight (O, C, kt, kh, kw), the same tensor each time: prepared weights are kept by
        it. The parameter itself where it is the weight: it outlives the decode, and so does what is
        prepared of it."""
        weight = self._weight(layer)
        known = self._kernels.get(id(layer.module))
        if known is not None and known[1] is weight:
            return known[2]
        own, kernel = getattr(layer.module, "weight", None), weight
        if isinstance(own, torch.Tensor) and own.device.type == "cpu" == weight.device.type:
            kernel = own if own.dtype is weight.dtype and own.is_set_to(weight) else weight
        if kernel.dim() != 5:
            kernel = weight.detach().view(*weight.shape[:2], *geometry.kernel_size(weight))
        self._kernels[id(layer.module)] = (layer.module, weight, kernel)
        return kernel

    def _normalised(self, read: list[Tensor | None], norm: Norm) -> list[Tensor | None]:
        """The frames after a norm of theirs alone, each once."""
        made = {id(frame): frame for frame in read if frame is not None}
        for key, frame in made.items():
            made[key] = torch.empty_like(frame, memory_format=torch.contiguous_format)
            own_norm(frame[:, None], norm, self.weights, made[key][:, None])
        return [None if frame is None else made[id(frame)] for frame in read]


def growth_bytes(wanted: Iterable[tuple[Any, int, int]]) -> int:
    """By how much the cache grows if all that is `wanted` is kept, (module, layout or 0, bytes): no
    further than its limit."""
    kept = cache()
    held = kept.stats()
    missing = {
        (id(module), layout): nbytes for module, layout, nbytes in wanted
        if layout and not kept.holds(getattr(module, "weight", None), layout)
    }  # fmt: skip
    return max(min(sum(missing.values()), held.limit_bytes - held.bytes), 0)
