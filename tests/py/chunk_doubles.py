"""The simplest backend and whole-video engine, and small decoders of every kind of layer, for the
tests of the chunked run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hy3d_rocm.decode.layers import (
    Attention,
    Conv,
    Local,
    Norm,
    Pieces,
    Range,
    Shuffle,
    out_frames,
    read_frames,
    source_frame,
)


class ModuleWeights:
    def of(self, module: Any, name: str) -> Tensor | None:
        value = getattr(module, name, None)
        return None if value is None else value.detach()


class SimpleBackend:
    """One frame of the padded input after the other; writes into the residual, as it may."""

    def __init__(self) -> None:
        self.weights = ModuleWeights()
        self.calls = 0
        self.fails_at: set[int] = set()

    def convolve(
        self,
        layer: Conv,
        source: Pieces,
        frames: Range,
        *,
        affine: tuple[Tensor, Tensor] | None = None,
        add: Tensor | None = None,
        moments: bool = False,
    ) -> tuple[Tensor, None]:
        self.calls += 1
        if self.calls - 1 in self.fails_at:
            raise torch.OutOfMemoryError(f"call {self.calls - 1}")
        x = _normed(layer.norm, torch.cat(source.tensors, 2), affine)
        x = F.silu(x) if layer.act == "silu" else x
        weight = layer.module.weight.detach()
        weight = (
            weight.reshape(*weight.shape, *(1,) * (5 - weight.dim()))
            if (weight.dim() == 2)
            else (weight[:, :, None] if weight.dim() == 4 else weight)
        )
        x = self._padded(layer, x, source, frames, weight.shape[2])
        bias = None if layer.module.bias is None else layer.module.bias.detach()
        y = F.conv3d(x, weight, bias, stride=layer.stride)
        y = shuffled(y, layer.shuffle) if layer.shuffle is not None else y
        if add is not None:
            assert add.shape == y.shape
            y = add.add_(y)
        return y, None

    def _padded(
        self, layer: Conv, x: Tensor, source: Pieces, frames: Range, kernel_t: int
    ) -> Tensor:
        assert source.total is not None
        n = source.total
        up = 1 + (n - 1) * layer.up[0] if layer.keep_first else n * layer.up[0]
        parts = []
        for u in range(*read_frames(layer, frames, kernel_t)):
            at = source_frame(layer, min(max(u, 0), up - 1)) - source.first
            assert 0 <= at < x.shape[2], "the engine gave too few frames"
            frame = x[:, :, at : at + 1]
            outside = not 0 <= u < up
            parts.append(frame * 0 if outside and layer.modes[0] == "zeros" else frame)
        x = torch.cat(parts, 2)
        for axis in (1, 2):
            x = x.repeat_interleave(layer.up[axis], axis + 2)
            pad = [0, 0, 0, 0, 0, 0]
            pad[4 - 2 * axis], pad[5 - 2 * axis] = layer.before[axis], layer.after[axis]
            x = F.pad(x, pad, mode="constant" if layer.modes[axis] == "zeros" else "replicate")
        return x

    def workspace_bytes(self, layer: Conv, source: Pieces, frames: Range) -> int:
        return 0


def _normed(norm: Norm | None, x: Tensor, affine: Any) -> Tensor:
    if norm is None:
        return x
    if norm.kind == "group":
        return x * affine[0].view(1, -1, 1, 1, 1) + affine[1].view(1, -1, 1, 1, 1)
    assert norm.kind == "rms"
    return x * (x.square().mean(1, keepdim=True) + norm.eps).rsqrt()


def shuffled(y: Tensor, shuffle: Shuffle) -> Tensor:
    rt, rh, rw = shuffle.factor
    _, c, t, h, w = y.shape
    if shuffle.order == "channel first":
        y = y.view(1, -1, rt, rh, rw, t, h, w).permute(0, 1, 5, 2, 6, 3, 7, 4)
    elif shuffle.order == "factor first":
        y = y.view(1, rt, rh, rw, -1, t, h, w).permute(0, 4, 5, 1, 6, 2, 7, 3)
    else:
        y = y.view(1, rt, -1, t, h, w).permute(0, 2, 3, 1, 4, 5)[..., None, :, None]
        y = y.permute(0, 1, 2, 3, 4, 5, 6, 7)
    return y.reshape(1, c // (rt * rh * rw), t * rt, h * rh, w * rw)


class WholeEngine:
    """All frames at once. Moments of group norms over the whole video are kept in `affines`."""

    def __init__(self, backend: SimpleBackend) -> None:
        self.backend = backend
        self.affines: list[tuple[Tensor, Tensor]] = []

    def conv(self, x: Tensor, layer: Conv, *, add: Any = None, keep: bool = False) -> Tensor:
        kernel_t = layer.module.weight.shape[2] if layer.module.weight.dim() == 5 else 1
        skip = layer.skip_first
        passing, own = x[:, :, :skip], x[:, :, skip:]
        parts = [passing]
        if own.shape[2]:
            plain = out_frames(
                Conv(
                    layer.module,
                    layer.before,
                    layer.after,
                    stride=layer.stride,
                    up=layer.up,
                    keep_first=layer.keep_first,
                ),
                own.shape[2],
                kernel_t,
            )
            y, _ = self.backend.convolve(
                layer, Pieces((own,), 0, own.shape[2]), (0, plain), affine=self._affine(layer, x)
            )
            drop = layer.shuffle.drop if layer.shuffle is not None else 0
            parts.append(y[:, :, drop:])
        y = torch.cat([p for p in parts if p.shape[2]], 2)
        assert y.shape[2] == out_frames(layer, x.shape[2], kernel_t)
        return y if add is None else y + add

    def _affine(self, layer: Conv | Attention, x: Tensor) -> Any:
        norm = layer.norm
        if norm is None or norm.kind != "group":
            return None
        grouped = x.view(norm.groups, -1).double()
        repeats = x.shape[1] // norm.groups
        scale = (grouped.var(1, correction=0) + norm.eps).rsqrt().repeat_interleave(repeats)
        shift = -grouped.mean(1).repeat_interleave(repeats) * scale
        self.affines.append((scale.float(), shift.float()))
        return self.affines[-1]

    def convs(self, x: Tensor, layers: Sequence[Conv]) -> tuple[Tensor, ...]:
        return tuple(self.conv(x, layer) for layer in layers)

    def attention(self, x: Tensor, layer: Attention) -> Tensor:
        affine = self._affine(layer, x)
        y = _normed(layer.norm, x, affine)
        _, c, t, h, w = x.shape
        tokens = y.flatten(2).transpose(1, 2)
        modules = [layer.q] if layer.k is None else [layer.q, layer.k, layer.v]
        found = torch.cat([F.linear(tokens, m.weight.view(-1, c), m.bias) for m in modules], 2)
        q, k, v = (p.view(1, t * h * w, layer.heads, -1).transpose(1, 2) for p in found.chunk(3, 2))
        number = torch.arange(t).repeat_interleave(h * w)
        masks = {
            "frame": number[:, None] == number,
            "causal": number[:, None] >= number,
            "video": None,
        }
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=masks[layer.span], scale=layer.scale
        )
        mixed = mixed.transpose(1, 2).reshape(1, t * h * w, c)
        out = F.linear(mixed, layer.out.weight.view(c, c), layer.out.bias)
        return (x + out.transpose(1, 2).reshape(x.shape)) / layer.rescale

    def local(self, x: Tensor, layer: Local, *, keep: bool = False) -> Tensor:
        return layer.run(x.clone(), 0)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def module(out: int, into: int, *kernel: int, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed * 1000 + out * 31 + into)
    made = {0: nn.Linear, 2: nn.Conv2d, 3: nn.Conv3d}[len(kernel)]
    layer = made(into, out, *([kernel] if kernel else []))
    for p in layer.parameters():
        p.data = torch.randn(p.shape, generator=generator) * (into * max(sum(kernel), 1)) ** -0.5
    return layer.requires_grad_(False)


Function = Callable[[Any, Any], Any]
C = 4
RMS = Norm("rms", None, 1e-6, weight=None)


def resnet(into: int, out: int, seed: int, causal: bool, norm: Norm = RMS, mode: str = "replicate"):
    """Two convolutions and a residual, with a 1x1x1 shortcut where the channels change."""
    pads = (
        {"before": (2, 1, 1), "after": (0, 1, 1)}
        if causal
        else {
            "before": (1, 1, 1),
            "after": (1, 1, 1),
        }
    )
    pads |= {"modes": (mode, mode, mode), "norm": norm, "act": "silu"}
    first = Conv(module(out, into, 3, 3, 3, seed=seed), **pads)
    second = Conv(module(out, out, 3, 3, 3, seed=seed + 1), **pads)
    short = Conv(module(out, into, 1, 1, 1, seed=seed + 2)) if into != out else None

    def run(e: Any, x: Any) -> Any:
        if short is None:
            h = e.conv(x, first, keep=True)
            return e.conv(h, second, add=x)
        h, s = e.convs(x, [first, short])
        return e.conv(h, second, add=s)

    return run


def layer(conv: Conv) -> Function:
    return lambda e, x: e.conv(x, conv)


def chain(*blocks: Function) -> Function:
    def run(e: Any, x: Any) -> Any:
        for block in blocks:
            x = block(e, x)
        return x

    return run


def shuffled_up(seed: int, causal: bool, drop: int) -> Function:
    """LTX's up-sampler with its shortcut, a function of frames that drops the first one's first."""
    pads = {"before": (2, 1, 1)} if causal else {"before": (1, 1, 1)}
    after = (0, 1, 1) if causal else (1, 1, 1)
    shuffle = Shuffle((2, 2, 2), "channel first", drop)
    conv = Conv(
        module(C * 8, C, 3, 3, 3, seed=seed),
        **pads,
        after=after,
        modes=("replicate", "zeros", "zeros"),
        shuffle=shuffle,
    )

    def short(x: Tensor, first: int) -> Tensor:
        y = x.repeat_interleave(2, 2).repeat_interleave(2, 3).repeat_interleave(2, 4)
        return y[:, :, drop if first == 0 else 0 :]

    local = Local(short, lambda n: 2 * n - drop)

    def run(e: Any, x: Any) -> Any:
        s = e.local(x, local, keep=True)
        return e.conv(x, conv, add=s)

    return run


def attention(span: str, heads: int, seed: int, norm: Norm = RMS, fused: bool = False) -> Function:
    sizes = [3 * C] if fused else [C] * 3
    parts = [
        module(n, C, *((1, 1, 1) if seed % 2 else ()), seed=seed + i) for i, n in enumerate(sizes)
    ] + [None] * (3 - len(sizes))
    found = Attention(norm, *parts, module(C, C, seed=seed + 5), span, heads=heads, rescale=1.5)
    return lambda e, x: e.attention(x, found)


CAUSAL3 = {"before": (2, 1, 1), "after": (0, 1, 1)}


def decoders() -> dict[str, Function]:
    """One small decoder or encoder of each kind."""
    wan_time = Conv(
        module(2 * C, C, 3, 1, 1, seed=40), before=(2, 0, 0), skip_first=1,
        shuffle=Shuffle((2, 1, 1), "time first"),
    )  # fmt: skip
    keep_first = Conv(
        module(C, C, 3, 3, 3, seed=41), **CAUSAL3, modes=("replicate",) * 3, up=(2, 2, 2),
        keep_first=True,
    )  # fmt: skip
    space = Conv(module(C, C, 3, 3, seed=42), before=(0, 1, 1), after=(0, 1, 1), up=(1, 2, 2))
    down = Conv(module(C, C, 3, 3, 3, seed=43), **CAUSAL3, stride=(2, 2, 2))
    forward = Conv(
        module(C, C, 3, 3, 3, seed=44), before=(0, 1, 1), after=(2, 1, 1), stride=(2, 1, 1)
    )
    sparse = Conv(
        module(C, C, 1, 3, 3, seed=45), before=(0, 1, 1), after=(0, 1, 1), stride=(3, 1, 1)
    )
    plain_up = Conv(module(C, C, 3, 3, 3, seed=46), before=(1, 1, 1), after=(1, 1, 1), up=(3, 1, 1))
    return {
        "hunyuan": chain(
            resnet(C, C, 1, True), attention("causal", 2, 5), layer(keep_first),
            resnet(C, 6, 9, True), resnet(6, C, 12, True), layer(keep_first),
        ),
        "wan": chain(
            attention("frame", 1, 4, fused=True), resnet(C, C, 20, True, mode="zeros"),
            layer(wan_time), layer(space), resnet(C, 6, 23, True, mode="zeros"),
        ),
        "ltx": chain(
            resnet(C, C, 30, False), shuffled_up(33, False, 1),
            resnet(C, C, 34, False, mode="zeros"), shuffled_up(37, False, 1),
        ),
        "ltx causal": chain(
            resnet(C, C, 50, True), shuffled_up(53, True, 1), resnet(C, 3, 54, True)
        ),
        "video attention": chain(
            resnet(C, C, 60, False), attention("video", 2, 64), resnet(C, C, 66, False),
            layer(plain_up),
        ),
        "encoder": chain(resnet(C, C, 70, True), layer(down), resnet(C, 6, 73, True)),
        "encoder ahead": chain(layer(forward), resnet(C, C, 80, False), layer(down)),
        "sparse": chain(layer(sparse), resnet(C, C, 90, True)),
    }  # fmt: skip


def random_decoder(seed: int) -> Function:
    """Blocks drawn by `seed`, with a shortcut round some of them that they lag behind."""
    draw = random.Random(seed)
    blocks: list[Function] = []
    for i in range(draw.randint(1, 4)):
        at, causal = 100 * seed + 10 * i, draw.random() < 0.5
        kind = draw.randrange(5)
        if kind == 0:
            blocks.append(resnet(C, C, at, causal, mode=draw.choice(["zeros", "replicate"])))
        elif kind == 1:
            blocks.append(shuffled_up(at, causal, draw.randint(0, 1)))
        elif kind == 2:
            blocks.append(attention(draw.choice(["frame", "causal", "video"]), 2, at))
        elif kind == 3:
            blocks.append(_random_conv(draw, at))
        else:
            blocks.append(_around(resnet(C, C, at, causal), resnet(C, C, at + 5, not causal)))
    return chain(*blocks)


def _random_conv(draw: random.Random, seed: int) -> Function:
    k = draw.randint(1, 4)
    before = draw.randint(0, k - 1)
    return layer(
        Conv(
            module(C, C, k, 1, 1, seed=seed),
            before=(before, 0, 0),
            after=(k - 1 - before, 0, 0),
            modes=(draw.choice(["zeros", "replicate"]), "zeros", "zeros"),
            up=(draw.randint(1, 3), 1, 1),
            keep_first=draw.random() < 0.5,
            stride=(draw.randint(1, 2), 1, 1),
        )
    )


def _around(block: Function, shortcut: Function) -> Function:
    """block(x) + shortcut(x): two branches that may lag differently, joined by add()."""
    a = Conv(module(C, C, 1, 1, 1, seed=7))
    b = Conv(module(C, C, 1, 1, 1, seed=8))

    def run(e: Any, x: Any) -> Any:
        p, q = e.convs(x, [a, b])
        return e.add(block(e, p), shortcut(e, q))

    return run
