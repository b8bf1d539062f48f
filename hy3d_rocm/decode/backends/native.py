"""NativeBackend: layers.Backend by the C convolution."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm import _native
from hy3d_rocm.conv import functional
from hy3d_rocm.conv.prepared import cache
from hy3d_rocm.conv.router import note
from hy3d_rocm.decode.backends.torch_ops import (
    TorchBackend,
    finished,
    moments_after,
    not_fused,
    overlaps,
    own_norm,
)
from hy3d_rocm.decode.geometry import (
    frame_numbers,
    frames_of,
    kernel_size,
    own_size,
    padded_size,
    read_frames,
)
from hy3d_rocm.decode.layers import Conv, Moments, Norm, Pieces, Range, Triple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from hy3d_rocm.decode.layers import Weights

NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
DTYPES = tuple(NAMES)


def refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why no layer of this type can be computed on this device, in a few words, or None."""
    if device.type != "cpu":
        return f"the C convolution runs on the CPU, not on {device.type}"
    if dtype not in DTYPES:
        return f"the C convolution has no fused {dtype}"
    if not _native.available:
        return f"the C core is not there ({_native.missing})"
    if not hasattr(functional, "fused_conv3d"):
        return "this C core has no fused convolution"
    blas = _native.blas_info()
    return None if blas["available"] else f"the C core has no BLAS library ({blas['error']})"


class NativeBackend(TorchBackend):
    """Layers by the C convolution, with norm, activation, up-sampling and padding in its input and
    bias and residual in its result. Results are contiguous (1, C, T, H, W).

    What it can't compute goes to TorchBackend; `delegated` counts those calls by reason. cancel: a
    CancelFlag that ends a convolution under way; check: called before each, may raise. compute:
    instead of functional.fused_conv3d. Nothing is written to `add` before all memory that the call
    needs is there, so a call that ran out of it may be made again. What it takes the core knows
    (hy3d_host_layers); workspace_bytes() is of what goes to TorchBackend.
    """

    def __init__(
        self, weights: Weights, cancel: Any = None, compute: Callable[..., Tensor] | None = None
    ) -> None:
        super().__init__(weights)
        self.cancel = cancel
        self.check: Callable[[], object] | None = None
        self._compute = compute
        self.delegated: dict[str, int] = {}
        # The module is kept with the tensor: its id stays taken for as long as it is a key.
        self._kernels: dict[int, tuple[Any, Tensor, Tensor]] = {}

    def convolve(
        self, layer: Conv, source: Pieces, frames: Range, *,
        affine: tuple[Tensor, Tensor] | None = None, add: Tensor | None = None,
        moments: bool = False,
    ) -> tuple[Tensor, Moments | None]:  # fmt: skip
        """See Backend.convolve. ValueError (a sentence) where `source` lacks frames."""
        if self.check is not None:
            self.check()
        reason = self._refusal(layer, source)
        if reason is not None:
            self.delegated[reason] = self.delegated.get(reason, 0) + 1
            return super().convolve(layer, source, frames, affine=affine, add=add, moments=moments)
        if layer.norm is not None and layer.norm.kind == "group" and affine is None:
            raise ValueError("a group norm was asked for without the moments of its video (affine)")
        if layer.shuffle is not None:
            made = self._convolved(layer, source, frames, affine, None)
            return finished(made, layer.shuffle, frames, add, moments)
        made = self._convolved(layer, source, frames, affine, add)
        return made, moments_after(made, add) if moments else None

    def _refusal(self, layer: Conv, source: Pieces) -> str | None:
        """Why this layer can't be computed by the C convolution, in a few words, or None."""
        tensors = source.tensors
        dtype = tensors[0].dtype
        if dtype not in DTYPES or any(t.dtype is not dtype for t in tensors):
            return f"the C convolution has no fused {dtype}"
        if any(t.device.type not in ("cpu", "meta") for t in tensors):
            return "the source is not in host memory"
        return not_fused(layer, source, "the C convolution")

    def _kernel(self, layer: Conv) -> Tensor:
        """The weight (O, C, kt, kh, kw), the same tensor each time: prepared weights are kept by
        it."""
        weight = self._weight(layer)
        known = self._kernels.get(id(layer.module))
        if known is not None and known[1] is weight:
            return known[2]
        own = getattr(layer.module, "weight", None)
        kernel = own if isinstance(own, torch.Tensor) and _is_same(own, weight) else weight
        if kernel.dim() != 5:
            kernel = weight.detach().view(*weight.shape[:2], *kernel_size(weight))
        self._kernels[id(layer.module)] = (layer.module, weight, kernel)
        return kernel

    def _convolved(
        self, layer: Conv, source: Pieces, frames: Range, affine: tuple[Tensor, Tensor] | None,
        add: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """The convolution before any shuffle, over `add` where that is given."""
        kernel = self._kernel(layer)
        numbers = frame_numbers(layer, source, frames, int(kernel.shape[2]))
        read = frames_of(source, numbers)
        if layer.norm is None or layer.norm.kind != "group":
            affine = None
        if layer.norm is not None and layer.norm.kind != "group":
            read = self._normalised(read, layer.norm)
        bias = self.weights.of(layer.module, "bias")
        scale, shift = (None, None) if affine is None else (_floats(a) for a in affine)
        x = source.tensors[0]
        rows, columns = own_size(layer, (int(x.shape[3]), int(x.shape[4])), kernel_size(kernel))
        size = (1, int(kernel.shape[0]), frames[1] - frames[0], rows, columns)
        if add is not None and tuple(add.shape) != size:
            raise ValueError(f"a residual of {tuple(add.shape)} for a result of {size}")
        over = add is not None and add.dtype is x.dtype and not add.is_neg() and not overlaps(add)
        target = add if over else x.new_empty(size)
        (_, top, left), (_, bottom, right) = layer.before, layer.after  # time's is among the frames
        pads = (0, 0), (top, bottom), (left, right)
        residual = None if add is None else add.to(x.dtype).resolve_neg()
        compute: Any = self._compute or vars(functional)["fused_conv3d"]
        start = time.perf_counter()
        with torch.no_grad():
            made: Tensor = compute(
                read, kernel, bias, padding=pads, padding_mode=("zeros", *layer.modes[1:]),
                stride=layer.stride, upsample=layer.up[1:], scale=scale, shift=shift,
                activation=layer.act, residual=residual, out=target, cancel=self.cancel,
            )  # fmt: skip
        if made.device.type != "meta":
            read_size = (1, x.shape[1], len(numbers), *x.shape[3:])
            note(read_size, size[1], x.dtype, "cpu, fused", time.perf_counter() - start)
        return made

    def _normalised(self, read: list[Tensor | None], norm: Norm) -> list[Tensor | None]:
        """The frames after a norm of theirs alone, each once."""
        own = {id(frame): frame for frame in read if frame is not None}
        made: dict[int, Tensor] = {}
        for key, frame in own.items():
            made[key] = torch.empty_like(frame, memory_format=torch.contiguous_format)
            own_norm(frame[:, None], norm, self.weights, made[key][:, None])
        return [None if frame is None else made[id(frame)] for frame in read]


def _is_same(own: Tensor, weight: Tensor) -> bool:
    """Whether `weight` is the parameter itself, which outlives the decode, and so does what is
    prepared of it."""
    return (
        own.device.type == "cpu" == weight.device.type
        and own.dtype is weight.dtype
        and own.shape == weight.shape
        and own.stride() == weight.stride()
        and own.data_ptr() == weight.data_ptr()
    )


def _floats(values: Tensor) -> Tensor:
    return values.detach().reshape(-1).to("cpu", torch.float32).contiguous()


# The layouts of prepared weights, before anything runs


def prepared_layout(
    layer: Conv, weight: tuple[int, ...], size: tuple[int, int], frames: Range, dtype: torch.dtype
) -> tuple[int, int]:
    """Number (0: none of its own) and bytes of the layout that the call may keep its weights in."""
    return _layout(_call(layer, weight, size, frames, dtype))


def growth_bytes(decoder: Any, wanted: Iterable[tuple[int, int, int]]) -> int:
    """By how much the cache grows if all that is `wanted` is kept, (id of a module, layout, bytes):
    no further than its limit."""
    kept = cache()
    held = kept.stats()
    modules = {id(module): module for module in decoder.modules()}
    missing = sum(
        nbytes for name, layout, nbytes in wanted
        if name not in modules or not kept.holds(getattr(modules[name], "weight", None), layout)
    )  # fmt: skip
    return max(min(missing, held.limit_bytes - held.bytes), 0)


def _call(
    layer: Conv, weight: tuple[int, ...], size: tuple[int, int], frames: Range, dtype: torch.dtype
) -> tuple[Any, ...]:
    """What the C core is asked with."""
    kernel: Triple = ((1,) * 3 + weight[2:])[-3:]  # type: ignore[assignment]
    first, last = read_frames(layer, frames, kernel[0])
    rows, columns = padded_size(layer, size)
    (_, top, left), (_, bottom, right) = layer.before, layer.after
    inner = (last - first, rows - top - bottom, columns - left - right)
    return (
        inner, weight[1], weight[0], kernel, layer.stride, (1, 1, 1), (0, top, left),
        (0, bottom, right), ("zeros", layer.modes[1], layer.modes[2]), 1, NAMES[dtype], "fast",
        (1, layer.up[1], layer.up[2]), 1,
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _layout(call: tuple[Any, ...]) -> tuple[int, int]:
    """Number (0: none of its own) and bytes of the layout that the weights are prepared in."""
    number, _, nbytes = _native.conv3d_format(*call)
    return number, nbytes
