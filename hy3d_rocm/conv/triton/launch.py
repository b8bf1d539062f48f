"""The Triton tier's door: whether it can, what it needs, and the call. Used by tiers/triton.py."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from hy3d_rocm.conv.tiers.base import empty_result
from hy3d_rocm.conv.tiers.vendor import allows_tf32
from hy3d_rocm.conv.triton import configs, jit, plan, seen, tuned
from hy3d_rocm.conv.triton.configs import Config
from hy3d_rocm.conv.triton.steps import Layout, Steps, Target, make_steps

if TYPE_CHECKING:
    from hy3d_rocm.conv.call import ConvCall, ConvSpec

_NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}


def refusal(spec: ConvSpec) -> str | None:
    """Why this tier can't take a call like this, in a few words, or None."""
    if spec.device.type != "cuda":
        return f"Triton computes on GPUs, not on {spec.device.type}"
    name = _NAMES.get(spec.dtype)
    if name is None:
        return f"the kernel has no {spec.dtype}"
    arch = architecture(spec.device)
    if not configs.is_known(arch):
        return (
            f"the kernels were never checked for {arch} (docs/triton.md, 'A card that is not"
            " listed', says how to)"
        )
    if not configs.offered(arch, name):
        return f"no configuration for {name} on {arch} runs without spilling registers"
    return kernel_problem() or (plan.refusal(plan.problem(spec)) if min(spec.out_size) else None)


def workspace_bytes(spec: ConvSpec) -> int:
    """Bytes beside input, weight and output: rows, packed weight, partial sums. An upper bound."""
    return plan.most_bytes(plan.problem(spec)) if min(spec.out_size) else 0


@functools.cache
def triton_problem() -> str | None:
    """Why triton can't be imported, in a few words, or None. Nothing is imported."""
    stub = "a module called triton is loaded that is none (a package put a stub in its place)"
    try:
        found = importlib.util.find_spec("triton")
    except (ValueError, ImportError, AttributeError):  # sys.modules["triton"].__spec__ is None
        return stub
    if found is None:
        return "this Python has no triton (PyTorch for ROCm brings it on Linux)"
    loaded = sys.modules.get("triton")
    return stub if loaded is not None and not hasattr(loaded, "__path__") else None


def has_triton() -> bool:
    """Whether there is a triton that can be imported, as far as that shows without importing."""
    return triton_problem() is None


@functools.cache
def kernel_problem() -> str | None:
    """Why this Triton can't have our kernels, in a few words, or None. Imports it (some 0.4 s)."""
    problem = triton_problem()
    if problem is not None:
        return problem
    try:
        kernel = importlib.import_module("hy3d_rocm.conv.triton.kernel")
        function = kernel.conv_rows.fn
    except Exception as error:  # noqa: BLE001 - broken and half-installed Tritons raise anything
        return f"Triton can't be imported ({type(error).__name__}: {error})"
    # What takes every attribute, as a mock does, is no compiler.
    return None if inspect.isfunction(function) else "the triton that is loaded is not Triton"


def architecture(device: torch.device) -> str:
    """ "gfx1100" or "sm_90"."""
    return seen.architecture(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _units(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def target_of(device: torch.device) -> Target:
    """The Target of a GPU, with PyTorch's switch for TF32 as it is now."""
    return Target(architecture(device), _units(device), allows_tf32())


def is_new_kernel(spec: ConvSpec) -> bool:
    """Whether a first call like this would compile a kernel: none in this process or noted beside
    Triton's cache. LLVM ends the process on some errors, so a caller may want a `trying` row first.

    As far as one can tell: of an input dense in the layout of the call and aligned. False for what
    the tier refuses or does not launch anything for.
    """
    if refusal(spec) is not None or not min(spec.out_size):
        return False
    name = _NAMES[spec.dtype]
    p = plan.problem(spec)
    x = torch.empty(spec.x_size, device="meta").to(memory_format=spec.memory_format)
    out = torch.empty(spec.out_size, device="meta", memory_format=spec.memory_format)
    target = target_of(spec.device)
    config = tuned.config_for(spec, target.arch, name)
    layout = Layout.of(x, out)  # the address of a meta tensor is 0: aligned
    made = make_steps(p, layout, name, spec.has_bias, target, config)
    elements = {
        "x": x.numel(), "out": out.numel(), "rows": made.rows_elems, "sums": made.sums_elems,
        "weight": p.weight_bytes // p.itemsize, "bias": p.outputs * p.groups,
    }  # fmt: skip
    if not spec.has_bias:
        elements["bias"] = elements["weight"]
    return any(seen.is_new(_kernel_name(item, elements, spec)) for item in made.launches)


def _kernel_name(item: jit.Launch, elements: Mapping[str, int], spec: ConvSpec) -> str:
    """What jit.launch will call the kernel of `item` on tensors of so many elements."""
    dtypes = [torch.float32 if name == "sums" else spec.dtype for name, _ in item.operands]
    known = 0
    for (name, offset), dtype in zip(item.operands, dtypes, strict=True):
        is_aligned = offset * dtype.itemsize % 16 == 0
        small = jit.is_small(elements[name] * dtype.itemsize)
        known = jit.known_with(known, small, is_aligned)
    return seen.name_of(item, dtypes, known, spec.device.index)


def run(call: ConvCall, config: Config | None = None) -> torch.Tensor:
    """The convolution, in the layout of the call. config: instead of the tuned or guessed one."""
    spec = call.spec
    if not min(spec.out_size):
        return empty_result(spec)  # an empty batch
    if config is None:
        config = tuned.config_for(spec, architecture(spec.device), _NAMES[spec.dtype])
    x, weight, bias = map(_resolved, call.operands())
    assert x is not None
    assert weight is not None
    out = empty_result(spec)
    aligned = x.data_ptr() % 16 == 0
    tf32 = spec.dtype is torch.float32 and allows_tf32()
    noted = ("triton", x.stride(), aligned, tf32, config)
    found: tuple[plan.Problem, Steps] | None = spec.notes.get(noted)
    if found is None:
        p = plan.problem(spec)
        layout = Layout.of(x, out)
        target = target_of(spec.device)
        made = make_steps(p, layout, _NAMES[spec.dtype], bias is not None, target, config)
        found = spec.notes[noted] = (p, made)
    if spec.device.index == torch.cuda.current_device():
        _carry_out(found[0], found[1], x, weight, bias, out)
    else:
        with torch.cuda.device(spec.device):
            _carry_out(found[0], found[1], x, weight, bias, out)
    return out if spec.batched else out.squeeze(0)


def convolve(
    p: plan.Problem, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor, target: Target, config: Config | None = None,
    limit_bytes: int = plan.WORKSPACE_BYTES,
) -> None:  # fmt: skip
    """out = x * weight + bias, where w or c is contiguous in out. 4- or 5-dimensional.

    No operand may have its sign in the negative bit (see `_resolved`).
    """
    layout = Layout.of(x, out)
    dtype = _NAMES[out.dtype]
    made = make_steps(p, layout, dtype, bias is not None, target, config, limit_bytes)
    _carry_out(p, made, x, weight, bias, out)


def _resolved(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor with its values in memory: x.conj().imag is a view whose sign is a flag of the
    tensor, which a kernel that reads its memory doesn't see. (Such a copy is beyond the workspace.)
    """
    return tensor.resolve_neg() if tensor is not None and tensor.is_neg() else tensor


def _carry_out(
    p: plan.Problem, made: Steps, x: torch.Tensor, weight: torch.Tensor,
    bias: torch.Tensor | None, out: torch.Tensor,
) -> None:  # fmt: skip
    packed = pack(weight, p, made)
    tensors = {"x": x, "out": out, "weight": packed}
    tensors["bias"] = packed if bias is None else bias.contiguous()
    if made.rows_elems:
        tensors["rows"] = torch.empty(made.rows_elems, dtype=x.dtype, device=x.device)
    if made.sums_elems:
        tensors["sums"] = torch.empty(made.sums_elems, dtype=torch.float32, device=x.device)
    operands = jit.Operands(tensors)
    for item in made.launches:
        jit.launch(item, operands)


def pack(weight: torch.Tensor, p: plan.Problem, made: Steps) -> torch.Tensor:
    """The weight in the order in which the kernel reads: (outputs, taps, tap_length).

    For a narrow convolution (outputs x columns, kt * kh, channels).
    """
    if weight.dim() == 4:
        weight = weight.unsqueeze(2)
    # (kw, o, kt, kh, c) or (o, kt, kh, kw, c)
    order = weight.permute(4, 0, 2, 3, 1) if made.narrow else weight.permute(0, 2, 3, 4, 1)
    channels = p.channels if p.groups > 1 else p.row_channels
    if channels == p.channels:
        packed = order.contiguous()
        return packed.clone() if packed.data_ptr() % 16 else packed
    packed = weight.new_zeros((*order.shape[:4], channels))
    packed[..., : p.channels] = order
    return packed
