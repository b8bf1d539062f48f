"""The layers on whole tensors with plain torch operations: the simplest reading of layers.py, which
programs are held against. It calls torch's operators and not the functions of torch.nn.functional,
which the package replaces under protect()."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C import _nn

from hy3d_rocm.decoding.layers import Attention, Conv, Local, Norm, Shuffle, Triple, Weights

if TYPE_CHECKING:
    from torch import Tensor


class OwnWeights:
    """Weights as the modules hold them."""

    def of(self, module: Any, name: str) -> Tensor | None:
        """`module`'s parameter or buffer `name`; None where it has none."""
        value = getattr(module, name, None)
        return value.detach() if isinstance(value, torch.Tensor) else None


def kernel_of(weight: Tensor) -> Triple:
    """(kt, kh, kw) of a convolution's weight (O, C[, kt], kh, kw) or a linear one's (O, C)."""
    sizes = tuple(int(n) for n in weight.shape[2:])
    return (1,) * (3 - len(sizes)) + sizes  # type: ignore[return-value]


def shuffled(x: Tensor, shuffle: Shuffle) -> Tensor:
    """Channels of (1, C rt rh rw, T, H, W) to space and time; nothing dropped."""
    if shuffle.first is None:
        return _unpacked(x, shuffle.factor, shuffle.order)
    rest = _unpacked(x[:, :, 1:], shuffle.factor, shuffle.order)
    lead = _unpacked(x[:, :, :1], shuffle.first, shuffle.order)
    return torch.cat([lead[:, : rest.shape[1]], rest], 2)


def _unpacked(x: Tensor, factor: Triple, order: str) -> Tensor:
    rt, rh, rw = factor
    _, packed, t, h, w = x.shape
    c = packed // (rt * rh * rw)
    if order == "channel first":
        x = x.reshape(c, rt, rh, rw, t, h, w)
    elif order in ("factor first", "time first"):
        x = x.reshape(rt, rh, rw, c, t, h, w).permute(3, 0, 1, 2, 4, 5, 6)
    elif order == "space first":
        x = x.reshape(rh, rw, rt, c, t, h, w).permute(3, 2, 0, 1, 4, 5, 6)
    else:
        raise ValueError(f"no order of shuffling is called {order!r}")
    x = x.permute(0, 4, 1, 5, 2, 6, 3)  # (C, T, rt, H, rh, W, rw)
    return x.reshape(1, c, t * rt, h * rh, w * rw)


class PlainEngine:
    """Engine over tensors (1, C, T, H, W)."""

    def __init__(self, weights: Weights | None = None) -> None:
        self.weights: Weights = OwnWeights() if weights is None else weights

    def conv(self, x: Tensor, layer: Conv, *, add: Tensor | None = None) -> Tensor:
        """The layer on all of x, plus `add`."""
        passing, own = x[:, :, : layer.skip_first], x[:, :, layer.skip_first - layer.reread :]
        out = self._own(own, layer)
        if out is None:
            out = passing
        elif layer.skip_first:
            out = torch.cat([passing, out], 2)
        return out if add is None else out + add

    def _own(self, x: Tensor, layer: Conv) -> Tensor | None:
        """The convolution on its own video; None where that is too short for one output."""
        weight = self.weights.of(layer.module, "weight")
        assert weight is not None
        if x.shape[2] == 0:
            return None
        if layer.norm is not None:
            x = self.normalised(x, layer.norm)
        if layer.act is not None:
            x = _ACTIVATIONS[layer.act](x)
        x = _padded(_up_sampled(x, layer), layer)
        kernel = kernel_of(weight)
        if x.shape[2] < kernel[0]:
            return None
        x = torch.conv3d(
            x,
            weight.reshape(*weight.shape[:2], *kernel),
            self.weights.of(layer.module, "bias"),
            stride=layer.stride,
        )
        if layer.shuffle is not None:
            x = shuffled(x, layer.shuffle)[:, :, layer.shuffle.drop :]
        return x

    def normalised(self, x: Tensor, norm: Norm) -> Tensor:
        """x normalised in float32 (a wider x in its own type), in its own type again."""
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        weight, bias = (self._parameter(norm.module, n) for n in (norm.weight, norm.bias))
        if norm.kind == "group":
            y = torch.group_norm(y, norm.groups, eps=norm.eps)
        elif norm.kind == "frame":
            y = torch.group_norm(y[0].transpose(0, 1), norm.groups, eps=norm.eps)
            y = y.transpose(0, 1)[None]
        elif norm.kind == "rms":
            y = y * torch.rsqrt(y.square().mean(1, keepdim=True) + norm.eps)
        elif norm.kind == "l2":
            size = torch.linalg.vector_norm(y, dim=1, keepdim=True).clamp_min(norm.eps)
            y = y / size * y.shape[1] ** 0.5
        elif norm.kind == "layer":
            y = torch.layer_norm(y.movedim(1, -1), y.shape[1:2], eps=norm.eps).movedim(-1, 1)
        else:
            raise ValueError(f"no norm is called {norm.kind!r}")
        if weight is not None:
            y = y * weight
        if bias is not None:
            y = y + bias
        if norm.scale is not None:
            y = y * (1 + _channels(norm.scale).to(y.device))
        if norm.shift is not None:
            y = y + _channels(norm.shift).to(y.device)
        return y.to(x.dtype)

    def _parameter(self, module: Any, name: str | None) -> Tensor | None:
        value = None if name is None else self.weights.of(module, name)
        return None if value is None else _channels(value)

    def attention(self, x: Tensor, layer: Attention) -> Tensor:
        """x with its attention added; with span "frame" or "causal" a frame after the other."""
        y = self.normalised(x, layer.norm)
        if layer.k is None:
            q, k, v = self._linear(y, layer.q).chunk(3, 1)
        else:
            q, k, v = (self._linear(y, m) for m in (layer.q, layer.k, layer.v))
        if layer.span == "video":
            mixed = _attended(q, k, v, layer)
        else:
            mixed = torch.cat([_frame_attended(q, k, v, t, layer) for t in range(x.shape[2])], 2)
        return (self._linear(mixed, layer.out) + x) / layer.rescale

    def _linear(self, x: Tensor, module: Any) -> Tensor:
        weight = self.weights.of(module, "weight")
        assert weight is not None
        kernel = weight.reshape(*weight.shape[:2], 1, 1, 1)
        return torch.conv3d(x, kernel, self.weights.of(module, "bias"))

    def local(self, x: Tensor, layer: Local) -> Tensor:
        """A function of single frames."""
        return layer.run(x, 0)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y."""
        return x + y


_ACTIVATIONS: dict[str, Any] = {"silu": _nn.silu}


def _channels(values: Tensor) -> Tensor:
    """C values of whatever shape as (1, C, 1, 1, 1), float32 at least."""
    return values.to(torch.promote_types(values.dtype, torch.float32)).reshape(1, -1, 1, 1, 1)


def _up_sampled(x: Tensor, layer: Conv) -> Tensor:
    for axis, times in enumerate(layer.up, start=2):
        if times == 1:
            continue
        if axis == 2 and layer.keep_first:
            x = torch.cat([x[:, :, :1], x[:, :, 1:].repeat_interleave(times, 2)], 2)
        else:
            x = x.repeat_interleave(times, axis)
    return x


def _padded(x: Tensor, layer: Conv) -> Tensor:
    for axis in range(3):
        sides = [0] * 6
        sides[4 - 2 * axis], sides[5 - 2 * axis] = layer.before[axis], layer.after[axis]
        if not any(sides):
            continue
        mode = layer.modes[axis]
        x = _nn.pad(x, sides, "constant" if mode == "zeros" else mode, None)
    return x


def _frame_attended(q: Tensor, k: Tensor, v: Tensor, t: int, layer: Attention) -> Tensor:
    first = 0 if layer.span == "causal" else t
    return _attended(q[:, :, t : t + 1], k[:, :, first : t + 1], v[:, :, first : t + 1], layer)


def _attended(q: Tensor, k: Tensor, v: Tensor, layer: Attention) -> Tensor:
    """Attention of the positions of q (1, C, T, H, W) to those of k and v."""

    def rows(y: Tensor) -> Tensor:
        return y.reshape(1, layer.heads, -1, y[0, 0].numel()).transpose(2, 3)

    mixed = _nn.scaled_dot_product_attention(rows(q), rows(k), rows(v))
    return mixed.transpose(2, 3).reshape(q.shape)
