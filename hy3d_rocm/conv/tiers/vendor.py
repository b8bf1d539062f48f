"""MIOpen on AMD, cuDNN on NVIDIA: by their operators, whatever the process' switches say."""

from __future__ import annotations

import math

import torch

from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.problem import Triple
from hy3d_rocm.conv.tiers import products, windows
from hy3d_rocm.conv.tiers.base import empty_result, shortage

# Both libraries have kernels that count in 32 bits; larger tensors are cut.
_MAX_ELEMS = (1 << 31) - 1
# What a library takes beside its copies of the operands in a layout of its own (seen: 20 MB).
_OWN_BYTES = 64 << 20


class VendorTier:
    """aten.miopen_convolution or aten.cudnn_convolution.

    `torch.backends.cudnn.enabled = False`, which ComfyUI sets on RDNA3 and newer, does not matter
    here, and is not changed. benchmark, deterministic and allow_tf32 are passed on as they are set.
    """

    name = "vendor"

    def label(self, call: ConvCall) -> str:
        return library_name()

    def workspace_bytes(self, spec: ConvSpec) -> int:
        """An estimate: both libraries choose their workspace themselves. What they usually take is
        a copy of input, output and weights in another layout; a padded copy is ours."""
        if min(spec.out_size) == 0:
            return 0
        steps = _steps(spec)
        lanes = 8 if products.is_half(spec.dtype) else 1
        read = math.prod(spec.x_size[2:]) * spec.x_size[0]
        wrote = math.prod(spec.out_size[2:]) * spec.x_size[0]
        elems = read * windows.aligned(spec.x_size[1], lanes)
        elems += wrote * windows.aligned(spec.out_size[1], lanes)
        elems += 2 * math.prod(spec.weight_size)
        return (elems + _copied_elems(spec, steps)) * spec.dtype.itemsize + _OWN_BYTES

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        spec = call.spec
        reason = library_refusal(spec, spec.dilation)
        if reason is not None or min(spec.out_size) == 0:
            return reason
        steps = _steps(spec)
        if steps is None:
            return "one output row of it is more than 2^31 elements"
        must = _copied_elems(spec, steps) * spec.dtype.itemsize + spec.out_bytes
        return shortage(must, limits, spec.device, "its padded input and output")

    def run(self, call: ConvCall) -> torch.Tensor:
        spec = call.spec
        if min(spec.out_size) == 0:
            return empty_result(spec) if spec.batched else empty_result(spec).squeeze(0)
        x, weight, bias = call.values()

        def compute(x: torch.Tensor, padding: tuple[int, ...] = (0,) * spec.ndim) -> torch.Tensor:
            out = convolution(x, weight, spec.stride, padding, spec.dilation, spec.groups)
            # In place, as PyTorch's own entry point does it.
            return out if bias is None else out.add_(bias.view(-1, *(1,) * spec.ndim))

        steps = _steps(spec)
        if _is_whole(spec, steps):
            out = compute(x, spec.pad_before).contiguous(memory_format=spec.memory_format)
        else:
            assert steps is not None, "refusal() is asked first"
            out = empty_result(spec)
            windows.in_pieces(spec, x, out, steps, compute)
        return windows.lowered(out, spec)


def library_name() -> str:
    return "MIOpen" if torch.version.hip is not None else "cuDNN"


def library_refusal(spec: ConvSpec, dilation: tuple[int, ...]) -> str | None:
    """Why the vendor's library can't be used for this call, so dilated, at all, or None."""
    if spec.device.type != "cuda":
        return f"MIOpen and cuDNN run on GPUs, and the call is on {spec.device.type}"
    # MIOpen answers to this name, too. torch leaves it unannotated.
    if not torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
        return f"this PyTorch was built without {library_name()}"
    if torch.version.hip is not None and spec.dtype is torch.float64:
        return "MIOpen has no float64"
    if torch.version.hip is not None and spec.groups > 1 and any(d != 1 for d in dilation):
        return "MIOpen has no dilated convolution in groups"
    return None


def _steps(spec: ConvSpec) -> Triple | None:
    """The largest box whose input and output stay below 2^31 elements."""
    shape = spec.problem
    return windows.steps_that_fit(shape.out, lambda s: max(shape.box_elems(s)), _MAX_ELEMS)


def _is_whole(spec: ConvSpec, steps: Triple | None) -> bool:
    sizes = (math.prod(spec.x_size), math.prod(spec.out_size))
    return steps == spec.problem.out and max(sizes) <= _MAX_ELEMS and spec.is_padded_plainly


def _copied_elems(spec: ConvSpec, steps: Triple | None) -> int:
    """Elements of one padded window and its result, where the call is cut or padded by index."""
    if steps is None or _is_whole(spec, steps):
        return 0
    read, made = spec.problem.box_elems(steps)
    return (read if spec.problem.is_padded else 0) + made


def allows_tf32() -> bool:
    """PyTorch's switch for TF32 in convolutions, as it is now."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # the user has chosen by fp32_precision, which forbids the older name
        settings = getattr(torch.backends.cudnn, "conv", None)
        return getattr(settings, "fp32_precision", "none") == "tf32"


def convolution(
    x: torch.Tensor, weight: torch.Tensor, stride: tuple[int, ...], padding: tuple[int, ...],
    dilation: tuple[int, ...], groups: int,
) -> torch.Tensor:  # fmt: skip
    """One call of the vendor library's 2D or 3D convolution, without bias."""
    aten, switches = torch.ops.aten, torch.backends.cudnn
    exact = bool(switches.deterministic) or torch.are_deterministic_algorithms_enabled()
    shared = (padding, stride, dilation, groups, bool(switches.benchmark), exact)
    if torch.version.hip is None:
        result = aten.cudnn_convolution(x, weight, *shared, allows_tf32())
    elif groups == x.shape[1] > 1 and weight.shape[0] % groups == 0:
        result = aten.miopen_depthwise_convolution(x, weight, None, *shared)
    else:
        result = aten.miopen_convolution(x, weight, None, *shared)
    assert isinstance(result, torch.Tensor)
    return result
