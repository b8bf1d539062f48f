"""One convolution call, read from whatever positional and keyword style it was written in."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch

from hy3d_rocm import _native
from hy3d_rocm.conv import functional
from hy3d_rocm.conv.problem import Problem, triple

_Ints = tuple[int, ...]
PLAIN = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
PLAIN_DEFAULTS: tuple[Any, ...] = (None, None, None, 1, 0, 1, 1)

_DTYPE_NAMES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
}
_DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}
_CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


@dataclass(frozen=True)
class Signature:
    """An entry point of PyTorch that computes a forward convolution.

    `names` are its positional parameters; those that are not in PLAIN do not matter here.
    `ndim` is 2 or 3, or 0 where the weight decides.
    """

    ndim: int
    names: tuple[str, ...]


def _signatures() -> dict[Callable[..., Any], Signature]:
    aten = torch.ops.aten
    vendor = ("input", "weight", "bias", "padding", "stride", "dilation", "groups")
    general = (*PLAIN[:6], "transposed", "output_padding", "groups")
    table: dict[Callable[..., Any], Signature] = {
        torch.conv2d: Signature(2, PLAIN),
        torch.conv3d: Signature(3, PLAIN),
        torch.convolution: Signature(0, general),
        # ComfyUI calls this one itself on NVIDIA cards (comfy/ops.py).
        torch.cudnn_convolution: Signature(0, ("input", "weight", *vendor[3:])),
        torch.miopen_convolution: Signature(0, vendor),
        aten.convolution: Signature(0, general),
        aten.convolution.default: Signature(0, general),
    }
    for ndim, packet in ((2, aten.conv2d), (3, aten.conv3d)):
        for op in (packet, packet.default, packet.padding):
            table[op] = Signature(ndim, PLAIN)
    return table


SIGNATURES = _signatures()


def read_arguments(
    signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """The seven values of PLAIN in order, or None where this is not an ordinary convolution."""
    if signature.names is PLAIN and not kwargs:
        return (*args, *PLAIN_DEFAULTS[len(args) :]) if 2 <= len(args) <= 7 else None
    values = dict(zip(PLAIN, PLAIN_DEFAULTS, strict=True))
    found = dict(zip(signature.names, args, strict=False))
    if found.keys() & kwargs.keys() or len(args) > len(signature.names):
        return None
    found.update(kwargs)
    if found.get("out") is not None:  # PyTorch writes into it, and resizes it
        return None
    if "self" in found:
        found["input"] = found.pop("self")
    if found.get("transposed"):
        return None
    values.update((k, v) for k, v in found.items() if k in values)
    return tuple(values[name] for name in PLAIN)


@dataclass(frozen=True)
class ConvSpec:
    """A well-formed convolution in one form: batched sizes, tuples of `ndim`, pads per side.

    Sizes are (N, C, [T,] H, W); `dtype` is that of the computation (autocast applied). Padding is
    zeros; with "same" there may be one more behind than before.
    """

    ndim: int
    batched: bool
    x_size: _Ints
    weight_size: _Ints
    has_bias: bool
    stride: _Ints
    pad_before: _Ints
    pad_after: _Ints
    dilation: _Ints
    groups: int
    out_size: _Ints
    dtype: torch.dtype
    device: torch.device
    channels_last: bool
    # What tiers worked out for this call and look up at the next one. Not part of its value.
    notes: dict[Hashable, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False, hash=False
    )

    @property
    def problem(self) -> Problem:
        """In three dimensions: of a 2D one T is 1."""
        # No cached_property: that makes all other attributes slower to read.
        found: Problem | None = self.notes.get("problem")
        if found is None:
            ones = self.kernel, self.stride, self.dilation
            kernel, stride, dilation = (triple(numbers) for numbers in ones)
            found = self.notes["problem"] = Problem(
                self.x_size[0], self.weight_size[1], self.weight_size[0] // self.groups,
                self.groups, triple(self.x_size[2:]), kernel, stride, dilation,
                triple(self.pad_before, 0), triple(self.pad_after, 0), self.dtype.itemsize,
            )  # fmt: skip
        return found

    @property
    def op(self) -> str:
        return f"conv{self.ndim}d"

    @property
    def memory_format(self) -> torch.memory_format:
        return _CHANNELS_LAST[self.ndim] if self.channels_last else torch.contiguous_format

    @property
    def result_size(self) -> _Ints:
        """The size that the caller gets: without the batch where the input had none."""
        return self.out_size if self.batched else self.out_size[1:]

    @property
    def out_bytes(self) -> int:
        return math.prod(self.out_size) * self.dtype.itemsize

    @property
    def flops(self) -> int:
        """Floating-point operations: two for each product, padding counted as data."""
        return 2 * math.prod(self.out_size) * math.prod(self.weight_size[1:])

    @property
    def kernel(self) -> _Ints:
        return self.weight_size[2:]

    @property
    def is_view(self) -> bool:
        """A 1x1 convolution without stride or padding: the input is its own im2col matrix."""
        ones = all(k == 1 for k in self.kernel) and all(s == 1 for s in self.stride)
        return ones and not any(self.pad_before) and not any(self.pad_after)

    @property
    def is_padded_plainly(self) -> bool:
        """Padding that PyTorch's operators have: the same on both sides."""
        return self.pad_before == self.pad_after

    def column_elems(self) -> int:
        """Elements of the im2col matrix of one sample and one group."""
        taps = self.weight_size[1] * math.prod(self.kernel)
        return taps * math.prod(self.out_size[2:])

    def to_json(self) -> dict[str, Any]:
        """Plain types only (lists, numbers, strings), so that another process can rebuild it."""
        data = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in data.items()}
        return {**plain, "dtype": dtype_name(self.dtype), "device": str(self.device)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The spec that to_json gave."""
        values: dict[str, Any] = dict(data)
        values.update({k: tuple(v) for k, v in data.items() if isinstance(v, list)})
        values.update(dtype=_DTYPES[data["dtype"]], device=torch.device(data["device"]))
        return cls(**values)


def dtype_name(dtype: torch.dtype) -> str:
    return _DTYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def size_text(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


def _geometry(values: Sequence[Any], x_size: _Ints, w_size: _Ints) -> tuple[_Ints, ...] | None:
    """Stride, dilation, padding before and after, and the output's size; None where PyTorch would
    refuse them."""
    stride, padding, dilation = values[3:6]
    if not isinstance(padding, (int, str)) and not all(isinstance(n, int) for n in padding):
        return None
    ndim = len(x_size) - 2
    flat = (1,) * (3 - ndim)
    size, kernel = flat + x_size[2:], flat + w_size[2:]
    try:
        found = functional.geometry_of(ndim, kernel, stride, padding, dilation)
        if min(*found[0], *found[1]) < 1 or min(found[2]) < 0:
            return None
        out = _native.conv3d_out_size(size, kernel, *found)
    except (TypeError, ValueError, OverflowError):
        return None
    return tuple(numbers[3 - ndim :] for numbers in (*found, out))


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta


def _prefers_channels_last(x: torch.Tensor, weight: torch.Tensor, ndim: int) -> bool:
    kept = _CHANNELS_LAST[ndim]
    plain = (t for t in (x, weight) if t.dim() == ndim + 2 and not t.is_contiguous())
    return any(t.is_contiguous(memory_format=kept) for t in plain)


def _compute_dtype(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.dtype | None:
    """The dtype that PyTorch would compute in, or None where it would refuse, or is not a float
    that a tier knows."""
    dtype = tensors[0].dtype
    is_autocast = torch.is_autocast_enabled(device.type)
    if is_autocast and all(t.is_floating_point() and t.dtype != torch.float64 for t in tensors):
        dtype = torch.get_autocast_dtype(device.type)
    elif any(t.dtype != dtype for t in tensors):
        return None
    return dtype if dtype in _DTYPE_NAMES else None


def _sizes(values: Sequence[Any], ndim: int) -> tuple[_Ints, _Ints] | None:
    """Batched size of the input and size of the weight, where they and the groups fit."""
    x, weight, bias, groups = *values[:3], values[6]
    if weight.dim() != ndim + 2 or x.dim() not in (ndim + 1, ndim + 2):
        return None
    if not isinstance(groups, int) or groups < 1:
        return None
    x_size = tuple(x.shape) if x.dim() == ndim + 2 else (1, *x.shape)
    w_size = tuple(weight.shape)
    if min(w_size) < 1 or min(x_size[1:]) < 1 or w_size[1] * groups != x_size[1]:
        return None
    if w_size[0] % groups or (bias is not None and tuple(bias.shape) != w_size[:1]):
        return None
    return x_size, w_size


def make_spec(values: Sequence[Any], ndim: int) -> ConvSpec | None:
    """The spec of a call (the values of PLAIN), or None where PyTorch itself has to judge it.

    None for everything that PyTorch would refuse (shape, dtype or device that do not fit), so
    that the caller sees PyTorch's own error, and for tensors that are not plain dense floats.
    """
    x, weight, bias = values[:3]
    tensors = [t for t in (x, weight, bias) if t is not None]
    if not all(_is_dense(t) and t.device == x.device for t in tensors):
        return None
    dtype, sizes = _compute_dtype(tensors, x.device), _sizes(values, ndim)
    geometry = sizes and _geometry(values, *sizes)
    if dtype is None or not sizes or not geometry:
        return None
    (x_size, w_size), (stride, dilation, before, after, out) = sizes, geometry
    return ConvSpec(
        ndim=ndim, batched=x.dim() == ndim + 2, x_size=x_size, weight_size=w_size,
        has_bias=bias is not None, stride=stride, pad_before=before, pad_after=after,
        dilation=dilation, groups=values[6], out_size=(x_size[0], w_size[0], *out), dtype=dtype,
        device=x.device, channels_last=_prefers_channels_last(x, weight, ndim),
    )  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What a tier may use: `budget` bytes of workspace, and a share of what is free."""

    budget: int | None = None
    memory_threshold: float = 0.8


@dataclass(frozen=True)
class ConvCall:
    """A call as a tier sees it: the spec, and the tensors as the caller gave them."""

    spec: ConvSpec
    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    run_current: Callable[[], torch.Tensor]
    limits: Limits = Limits()

    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Batched and in the dtype of the computation (autocast does that in PyTorch's door)."""
        dtype = self.spec.dtype
        x = self.x if self.spec.batched else self.x.unsqueeze(0)
        weight, bias = self.weight, self.bias
        if x.dtype is dtype and weight.dtype is dtype and (bias is None or bias.dtype is dtype):
            return x, weight, bias  # `to` would return them too, and take longer
        return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)

    def values(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The operands without autograd, with their values in memory (x.conj().imag is a view
        whose sign is a flag of the tensor, which a kernel that reads its memory does not see)."""
        x, weight, bias = self.operands()
        return _plain(x), _plain(weight), None if bias is None else _plain(bias)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.detach() if tensor.requires_grad else tensor
