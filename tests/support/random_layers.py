"""Random layers of whole numbers, and the plainest reading of one: normalise, up-sample, pad,
convolve."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F

from hy3d_rocm.decoding.layers import (
    Conv,
    Norm,
    Pieces,
    Shuffle,
)


class Holder(torch.nn.Module):
    """Parameters of small whole numbers: sums of products are exact in float32."""

    def __init__(self, rng: random.Random, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            values = torch.randint(-3, 4, shape, generator=seeded(rng)).float()
            self.register_parameter(name, torch.nn.Parameter(values))


def seeded(rng: random.Random) -> Any:
    return torch.Generator().manual_seed(rng.randrange(1 << 30))


def whole_numbers(rng: random.Random, *shape: int) -> Any:
    return torch.randint(-4, 5, shape, generator=seeded(rng)).float()


def up_sampled(layer: Conv, x: Any) -> Any:
    ft, fh, fw = layer.up
    x = x.repeat_interleave(fh, 3).repeat_interleave(fw, 4)
    if layer.keep_first:
        return torch.cat([x[:, :, :1], x[:, :, 1:].repeat_interleave(ft, 2)], 2)
    return x.repeat_interleave(ft, 2)


def padded(layer: Conv, x: Any) -> Any:
    for axis in range(3):
        pad = [0] * 6
        pad[4 - 2 * axis], pad[5 - 2 * axis] = layer.before[axis], layer.after[axis]
        mode = "constant" if layer.modes[axis] == "zeros" else "replicate"
        x = F.pad(x, pad, mode=mode)
    return x


def plain(layer: Conv, x: Any, affine: Any = None) -> Any:
    """The whole video at once, each step a tensor of its own."""
    if affine is not None:
        x = x * affine[0].view(-1, 1, 1, 1) + affine[1].view(-1, 1, 1, 1)
    if layer.act == "silu":
        x = F.silu(x)
    x = padded(layer, up_sampled(layer, x))
    weight = layer.module.weight
    weight = weight.reshape(*weight.shape[:2], *(1,) * (5 - weight.dim()), *weight.shape[2:])
    y = F.conv3d(x, weight, getattr(layer.module, "bias", None), layer.stride)
    return y if layer.shuffle is None else shuffled(layer.shuffle, y)


def shuffled(s: Shuffle, y: Any) -> Any:
    """Element by element, as the words of Shuffle say."""
    if s.first is None:
        return shuffled_by(s.factor, s.order, y)
    rest = shuffled_by(s.factor, s.order, y[:, :, 1:])
    return torch.cat([shuffled_by(s.first, s.order, y[:, :, :1])[:, : rest.shape[1]], rest], 2)


def shuffled_by(factor: Any, order: str, y: Any) -> Any:
    (rt, rh, rw), (_, k, t, h, w) = factor, y.shape
    c = k // (rt * rh * rw)
    out = y.new_empty(1, c, t * rt, h * rh, w * rw)
    for channel in range(c):
        for a in range(rt):
            for b in range(rh):
                for d in range(rw):
                    within = (a * rh + b) * rw + d
                    if order == "space first":
                        within = (b * rw + d) * rt + a
                    at = (
                        channel * rt * rh * rw + within
                        if order == "channel first"
                        else within * c + channel
                    )
                    out[0, channel, a::rt, b::rh, d::rw] = y[0, at]
    return out


def random_layer(rng: random.Random) -> Conv:
    """Any layer that Conv can say, without skip_first and drop, which are the engine's."""
    kind = rng.choice(["5d", "5d", "5d", "4d", "2d"])
    kernel = tuple(rng.choice([1, 1, 2, 3]) for _ in range(3))
    if kind == "4d":
        kernel = (1, *kernel[1:])
    if kind == "2d":
        kernel = (1, 1, 1)
    c = rng.randint(1, 4)
    shuffle = None
    o = rng.randint(1, 5)
    if rng.random() < 0.4:
        order = rng.choice(["channel first", "factor first", "space first", "time first"])
        factor = (2, 1, 1) if order == "time first" else rng.choice([(2, 2, 2), (1, 2, 3)])
        first = (1, 2, 2) if factor == (2, 2, 2) and rng.random() < 0.5 else None
        shuffle = Shuffle(factor, order, first=first)
        o *= factor[0] * factor[1] * factor[2]
    shape = {"5d": (o, c, *kernel), "4d": (o, c, *kernel[1:]), "2d": (o, c)}[kind]
    shapes = {"weight": shape} | ({"bias": (o,)} if rng.random() < 0.7 else {})
    up = rng.choice([(1, 1, 1), (1, 1, 1), (2, 2, 2), (1, 2, 2), (2, 1, 1), (3, 1, 2)])
    modes = tuple(rng.choice(["zeros", "replicate"]) for _ in range(3))
    return Conv(
        Holder(rng, **shapes),
        before=tuple(rng.randint(0, k - 1) for k in kernel),
        after=tuple(rng.randint(0, k - 1) for k in kernel),
        modes=modes,
        stride=tuple(rng.choice([1, 1, 2]) for _ in range(3)),
        norm=Norm("group", None, 1e-6) if rng.random() < 0.4 else None,
        up=up,
        keep_first=rng.random() < 0.5,
        shuffle=shuffle,
    )


def cut(rng: random.Random, x: Any, first: int, last: int) -> Pieces:
    """At least frames first .. last of x, in pieces of random length."""
    first = rng.randint(max(0, first - 2), first)
    last = rng.randint(last, min(x.shape[2], last + 2))
    tensors, at = [], first
    while at < last:
        n = rng.randint(1, last - at)
        tensors.append(x[:, :, at : at + n])
        at += n
    return Pieces(tuple(tensors), first, x.shape[2])
