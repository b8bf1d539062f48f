"""What the families share: modules read by what they have, residual blocks, and what VAEs do
without a parameter, in words that every engine has.

Channels are packed in functions of single frames. Packing two frames into channels and averaging
channels are linear, so an engine that can convolve with a stride in time can do them with fixed
weights, whatever its slices and chunks are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.decoding.backends.torch_ops import shuffled
from hy3d_rocm.decoding.layers import (
    Attention,
    Conv,
    Engine,
    Handle,
    Local,
    Norm,
    Shuffle,
    StrangeModuleError,
    Triple,
)

_L2_EPS = 1e-12  # torch.nn.functional.normalize's
_SILU_NAMES = ("SiLU", "Swish")
_MODES = {"zeros": "zeros", "constant": "zeros", "replicate": "replicate", "reflect": "reflect"}
_Modes = tuple[str, str, str]
# How channels and a square's rows and columns lie in the packed channels: axes of (B, C, T, H, rh,
# W, rw). "channel first": (C, rh, rw); "factor first": (rh, rw, C); "width first": (C, rw, rh).
_AXES = {
    "channel first": (0, 1, 4, 6, 2, 3, 5),
    "factor first": (0, 4, 6, 1, 2, 3, 5),
    "width first": (0, 1, 6, 4, 2, 3, 5),
}


def conv_of(module: Any, **changes: Any) -> Conv:
    """The convolution `module` is or holds, with the padding that its forward() gives it."""
    inner = module.conv if hasattr(module, "conv") else module
    if any(n != 1 for n in numbers(getattr(inner, "dilation", 1), 3)):
        raise StrangeModuleError(f"{type(module).__name__} is dilated")
    if getattr(inner, "groups", 1) != 1:
        raise StrangeModuleError(f"{type(module).__name__} convolves in groups")
    before, after, named = _padding_of(module, inner)
    modes: _Modes = tuple(  # type: ignore[assignment]
        mode if b or a else "zeros" for mode, b, a in zip(named, before, after, strict=True)
    )
    strides = numbers(getattr(inner, "stride", 1), inner.weight.ndim - 2)
    stride: Triple = (1,) * (3 - len(strides)) + strides  # type: ignore[assignment]
    if "reflect" in modes and not hasattr(module, "is_causal"):
        raise StrangeModuleError(f"{type(module).__name__} pads by reflection")  # but for LTX
    return replace(Conv(inner, before, after, modes, stride), **changes)


def _padding_of(module: Any, inner: Any) -> tuple[Triple, Triple, _Modes]:
    own = getattr(inner, "_padding", None)
    if hasattr(module, "time_causal_padding"):  # HunyuanVideo
        if any(numbers(inner.padding, 3)):
            raise StrangeModuleError(f"{type(module).__name__} pads twice")
        return _on_six_sides(module.time_causal_padding, _mode(module.pad_mode))
    if own is not None and not isinstance(own, int):  # Wan
        if not isinstance(own, (tuple, list)) or len(own) != 6:
            raise StrangeModuleError(f"{type(module).__name__} pads by {own!r}")
        return _on_six_sides(own, "zeros")
    sizes = numbers(getattr(inner, "padding", 0), inner.weight.ndim - 2)
    front, height, width = (0,) * (3 - len(sizes)) + sizes
    if own is not None:  # ComfyUI's Wan: frames before the first; the rest pads by itself
        return (own, height, width), (0, height, width), ("zeros", "zeros", "zeros")
    mode = _mode(getattr(inner, "padding_mode", "zeros"))
    in_time, back = mode, front
    if hasattr(module, "temporal_padding"):  # SeedVR2: on one side in time, by the module itself
        if front:
            raise StrangeModuleError(f"{type(module).__name__} pads time twice")
        in_time, front, back = "replicate", 2 * int(module.temporal_padding), 0
    elif hasattr(module, "is_causal"):  # LTX
        more = int(inner.weight.shape[2]) - 1
        in_time = "replicate"
        front, back = (more, 0) if module.is_causal else (more // 2, more // 2)
    return (front, height, width), (back, height, width), (in_time, mode, mode)


def _on_six_sides(sides: Any, mode: str) -> tuple[Triple, Triple, _Modes]:
    left, right, top, bottom, front, back = (int(n) for n in sides)
    return (front, top, left), (back, bottom, right), (mode, mode, mode)


def _mode(name: str) -> str:
    if name not in _MODES:
        raise StrangeModuleError(f"a convolution pads with {name!r}")
    return _MODES[name]


def numbers(value: Any, count: int) -> tuple[int, ...]:
    """A module's sizes: so many, or one for all."""
    if isinstance(value, str):
        raise StrangeModuleError(f"a convolution's padding is {value!r}, not numbers")
    if isinstance(value, (int, float)):
        return (int(value),) * count
    return tuple(int(n) for n in value)


def norm_of(module: Any) -> Norm:
    """The norm `module` is, by its attributes."""
    weight, bias = (
        name if getattr(module, name, None) is not None else None for name in ("weight", "bias")
    )
    if hasattr(module, "num_groups"):
        return Norm("group", module, module.eps, int(module.num_groups), weight, bias)
    if hasattr(module, "gamma"):  # RMS_norm of Wan and HunyuanVideo 1.5
        has_bias = isinstance(getattr(module, "bias", None), torch.Tensor)  # Wan's may be 0.0
        return Norm("l2", module, _L2_EPS, weight="gamma", bias="bias" if has_bias else None)
    if hasattr(module, "normalized_shape") and hasattr(module, "bias"):
        return Norm("layer", module, module.eps, weight=weight, bias=bias)
    if hasattr(module, "eps"):
        return Norm("rms", module, module.eps, weight=weight, bias=bias)
    raise StrangeModuleError(f"{type(module).__name__} is no norm that is known")


def act_of(module: Any) -> str:
    """ "silu", which all known VAEs have."""
    if not isinstance(module, torch.nn.SiLU) and type(module).__name__ not in _SILU_NAMES:
        raise StrangeModuleError(f"the activation is {type(module).__name__}, not SiLU")
    return "silu"


def absent(module: Any) -> bool:
    """Whether a block goes without this part."""
    return module is None or isinstance(module, torch.nn.Identity)


def last_of(coder: Any, norm: Callable[[Any], Norm]) -> Conv:
    """A coder's last convolution with its norm (what the norm's module is) and activation."""
    module = coder.conv_norm_out if hasattr(coder, "conv_norm_out") else coder.norm_out
    act = coder.conv_act if hasattr(coder, "conv_act") else coder.nonlinearity
    return conv_of(coder.conv_out, norm=norm(module), act=act_of(act))


def resnet(
    engine: Engine, block: Any, x: Handle, norm: Callable[[Any], Norm], norms: Sequence[Norm] = ()
) -> Handle:
    """conv2(act(norm2(conv1(act(norm1(x)))))) + x, or + conv_shortcut(x).

    norm: what a norm's module is. norms: norm1 and norm2 where they are not simply the block's.
    """
    if getattr(block, "output_scale_factor", 1) != 1 or getattr(block, "time_emb_proj", None):
        raise StrangeModuleError(f"{type(block).__name__} scales its sum or takes a time embedding")
    norm1, norm2 = norms or (norm(block.norm1), norm(block.norm2))
    act = act_of(block.nonlinearity)
    conv1 = conv_of(block.conv1, norm=norm1, act=act)
    conv2 = conv_of(block.conv2, norm=norm2, act=act)
    hidden, residual = engine.conv(x, conv1), x
    if not absent(block.conv_shortcut):
        norm3 = getattr(block, "norm3", None)
        shortcut = conv_of(block.conv_shortcut, norm=None if norm3 is None else norm(norm3))
        residual = engine.conv(x, shortcut)
    return engine.conv(hidden, conv2, add=residual)


def attention_of(attn: Any, span: str, norm: Callable[[Any], Norm]) -> Attention:
    """diffusers' Attention with a GroupNorm; or a norm, three projections and a last one."""
    if not hasattr(attn, "group_norm"):
        q, k, v = attn.to_q, attn.to_k, attn.to_v
        return Attention(norm(attn.norm), q, k, v, attn.proj_out, span)
    if not attn.residual_connection or getattr(attn, "spatial_norm", None) is not None:
        raise StrangeModuleError("the attention has no residual or a spatial norm")
    if getattr(attn, "norm_q", None) is not None or getattr(attn, "norm_k", None) is not None:
        raise StrangeModuleError("the attention normalises its queries or keys")
    fused = bool(getattr(attn, "fused_projections", False))
    q, k, v = (attn.to_qkv, None, None) if fused else (attn.to_q, attn.to_k, attn.to_v)
    return Attention(
        norm(attn.group_norm), q, k, v, attn.to_out[0], span,
        heads=int(attn.heads), rescale=float(attn.rescale_output_factor),
    )  # fmt: skip


def framewise(run: Callable[[Tensor], Tensor]) -> Local:
    """A function that makes one frame of each, as a layer."""
    return Local(lambda frames, first: run(frames), lambda n: n)


def packed(frames: Tensor, factor: int, mean_of: int = 1, order: str = "channel first") -> Tensor:
    """Squares of `factor` positions to channels; then means over `mean_of` neighbours of these."""
    b, c, t, h, w = frames.shape
    x = frames.reshape(b, c, t, h // factor, factor, w // factor, factor).permute(_AXES[order])
    x = x.reshape(b, c * factor * factor, t, h // factor, w // factor)
    return x if mean_of == 1 else x.reshape(b, -1, mean_of, *x.shape[2:]).mean(2)


def unpacked(frames: Tensor, factor: int) -> Tensor:
    """What packed() with the order "width first" made, as it was."""
    b, c, t, h, w = frames.shape
    c //= factor * factor
    x = frames.reshape(b, c, factor, factor, t, h, w).permute(0, 1, 4, 5, 3, 6, 2)
    return x.reshape(b, c, t, h * factor, w * factor)


def unpacking(shuffle: Shuffle, repeated: Callable[[Tensor], Tensor]) -> Local:
    """Channels, which `repeated` makes more of, to space and time as a layer."""

    def run(frames: Tensor, first: int) -> Tensor:
        x = shuffled(repeated(frames), shuffle)
        return x[:, :, shuffle.drop :] if first == 0 else x

    return Local(run, lambda n: n * shuffle.factor[0] - shuffle.drop)


def packed_in_space(factor: int, mean_of: int = 1, order: str = "channel first") -> Local:
    return framewise(lambda frames: packed(frames, factor, mean_of, order))


def packed_with_first_twice(factor: int, order: str = "channel first") -> Local:
    """packed() as a layer; the video's first frame makes a pair with itself."""

    def run(frames: Tensor, first: int) -> Tensor:
        x = packed(frames, factor, order=order)
        return torch.cat([x[:, :, :1], x], 2) if first == 0 else x

    return Local(run, lambda n: n + 1)


class FixedWeight(torch.nn.Module):
    """A weight, and a bias or none, that are no parameters of the VAE's."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("bias", bias, persistent=False)


def paired(
    channels: int, mean_of: int, order: str, squares: int, dtype: torch.dtype, device: torch.device
) -> FixedWeight:
    """Two frames of `channels` channels packed into one, then means over `mean_of` neighbours: a
    weight (O, C, 2, 1, 1).

    order: "channel first", the frames go between the channels and the `squares` positions that
    packed() has put behind each; "factor first", they go before all.
    """
    at = torch.arange(channels, device="cpu")
    weight = torch.zeros((2 * channels // mean_of, channels, 2), dtype=torch.float64, device="cpu")
    for frame in range(2):
        if order == "channel first":
            place = (at // squares * 2 + frame) * squares + at % squares
        else:
            place = frame * channels + at
        weight[place // mean_of, at, frame] = 1 / mean_of
    return FixedWeight(weight.reshape(*weight.shape, 1, 1).to(device, dtype))
