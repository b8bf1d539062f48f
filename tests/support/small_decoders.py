"""Small decoders of every kind of layer, as functions over an engine, for the tests of what carries
programs out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hy3d_rocm.decoding.layers import Attention, Conv, Local, Norm, Shuffle


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
            h = e.conv(x, first)
            return e.conv(h, second, add=x)
        h, s = e.conv(x, first), e.conv(x, short)
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
        s = e.local(x, local)
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
        p, q = e.conv(x, a), e.conv(x, b)
        return e.add(block(e, p), shortcut(e, q))

    return run


def latent(frames: int, height: int = 3, width: int = 4) -> Tensor:
    """The same for the same number of frames."""
    return torch.randn(1, C, frames, height, width, generator=torch.Generator().manual_seed(frames))
