"""Random layers for check_fused.py, and what they are worth: the plainest reading of
decoding/layers.py in float64, and a bound of each value's error.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from typing import Any

DTYPES = ("float32", "float16", "bfloat16")
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TINY = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
NORMS = (None, None, "group", "group", "frame", "rms", "l2", "layer")
MAX_COST = 120


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer and call; sizes are (T, H, W)."""

    index: int
    dtype: str
    channels: int
    outputs: int
    weight_dims: int  # 5, 4 or 2
    size: tuple[int, int, int]
    kernel: tuple[int, int, int]
    before: tuple[int, int, int]
    after: tuple[int, int, int]
    modes: tuple[str, str, str]
    stride: tuple[int, int, int]
    up: tuple[int, int, int]
    keep_first: bool
    norm: str | None
    scaled: bool  # scale and shift after the norm
    silu: bool
    shuffle: tuple[Any, ...] | None  # as Shuffle's fields
    bias: bool
    add: str | None  # layout of the residual
    into: str | None  # layout of the tensor whose rows the result goes to, or "add": the residual
    moments: bool
    part: tuple[float, float]  # which frames are asked for, as shares
    cuts: tuple[float, ...]  # where the source is cut into pieces
    slack: int  # frames more than are read
    layouts: str
    open_end: bool  # total is not known
    tile: str
    rows_bytes: int


def _upsampled(rng: random.Random) -> dict[str, Any]:
    """A 3x3x3 after up-sampling, as decoders have it: mostly what is done by sums of weights; of a
    strip of rows the first and the last one is cropped."""
    before, after = ([rng.choice((1, -1)), rng.choice((1, 1, 1, -1))] for _ in range(2))
    up = rng.choice(((1, 2, 2), (2, 2, 2), (2, 2, 2)))
    modes = rng.choice((("replicate",) * 3, ("zeros",) * 3, ("replicate", "zeros", "zeros")))
    causal = rng.random() < 0.8
    return {"kernel": (3, 3, 3), "before": (2 if causal else 1, *before),
            "after": (0 if causal else 1, *after), "modes": modes, "stride": (1, 1, 1), "up": up,
            "keep_first": rng.random() < 0.7, "shuffle": None,
            "size": (rng.choice((1, 2, 4)), rng.choice((1, 3, 4)), rng.choice((1, 2, 5))),
            "weight_dims": 5}  # fmt: skip


def _shape(rng: random.Random) -> dict[str, Any]:
    kind = rng.random()
    if kind < 0.3:
        return _upsampled(rng)
    if kind < 0.45:
        return {"kernel": (1, 1, 1), "before": (0,) * 3, "after": (0,) * 3, "modes": ("zeros",) * 3,
                "stride": (1, 1, 1), "up": (1, 1, 1), "keep_first": False,
                "shuffle": rng.choice((None, None, ((2, 1, 1), "time first"))),
                "size": (rng.choice((1, 3)), rng.choice((2, 5)), rng.choice((1, 7))),
                "weight_dims": rng.choice((5, 4, 2))}  # fmt: skip
    dims = rng.choice((5, 5, 4))
    kernel = [rng.choice((1, 2, 3, 3)) for _ in range(3)]
    if dims == 4:
        kernel[0] = 1
    stride = rng.choice(((1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 2)))
    up = rng.choice(((1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 1, 3)))
    before = [rng.choice((0, 1, 2)) for _ in range(3)]
    after = [rng.choice((0, 1)) for _ in range(3)]
    for axis in (1, 2):
        if up[axis] > 1 and rng.random() < 0.5:
            before[axis] = -rng.randrange(up[axis])
        if up[axis] > 1 and rng.random() < 0.5:
            after[axis] = -rng.randrange(up[axis])
    size = [max(1, -(-(k - b - a) // u)) + rng.choice((0, 1, 3))
            for k, b, a, u in zip(kernel, before, after, up, strict=True)]  # fmt: skip
    factor = rng.choice(((2, 1, 1), (1, 2, 2), (2, 2, 2)))
    orders = ("channel first", "factor first", "space first")
    order = "time first" if factor == (2, 1, 1) else rng.choice(orders)
    return {"kernel": tuple(kernel), "before": tuple(before), "after": tuple(after),
            "modes": tuple(rng.choice(("zeros", "replicate")) for _ in range(3)),
            "stride": stride, "up": up, "keep_first": rng.random() < 0.5, "size": tuple(size),
            "shuffle": (factor, order) if rng.random() < 0.25 else None,
            "weight_dims": dims}  # fmt: skip


def _cost(case: Case) -> float:
    """Steps of the interpreted loop, and lines of rows: what takes the time."""
    t, h, w = (
        n * u + b + a
        for n, u, b, a in zip(case.size, case.up, case.before, case.after, strict=True)
    )
    p, n, k = (int(v) for v in case.tile.split("w")[0].split("x"))
    length = math.prod(case.kernel) * -(-case.channels // 8) * 8
    return -(-t * h * w // p) * -(-case.outputs // n) * -(-length // k) + 2 * t * h


def random_case(seed: int, index: int) -> Case:
    """The index-th case of a seed, independent of all others."""
    rng = random.Random(f"{seed}/{index}")
    while True:
        shape = _shape(rng)
        factor = math.prod(shape["shuffle"][0]) if shape["shuffle"] else 1
        # Of a tile of 48 or 96 channels the last third is made apart.
        every = (1, 3, 16, 24, 40) if factor > 1 else (1, 3, 8, 16, 20, 40, 72, 100)
        cuts = tuple(sorted(rng.random() for _ in range(rng.choice((0, 0, 1, 2)))))
        tile = (rng.choice((16, 32, 64)), rng.choice((16, 32, 48, 96)), rng.choice((16, 32)))
        if shape["shuffle"] and shape["shuffle"][0][0] > 1 and rng.random() < 0.4:
            (_, *space), order = shape["shuffle"]
            shape["shuffle"] = ((2, *space), order, 0, (1, *space))
        case = Case(
            index=index, dtype=rng.choice(DTYPES), channels=rng.choice((3, 8, 16, 17, 24, 40)),
            outputs=rng.choice(every) * factor, norm=rng.choice(NORMS), scaled=rng.random() < 0.3,
            silu=rng.random() < 0.5, bias=rng.random() < 0.7,
            add=rng.choice((None, None, "last", "plain", "odd")), moments=rng.random() < 0.5,
            into=rng.choice((None, None, "last", "last", "plain", "odd", "add")),
            part=(rng.random(), rng.random()), cuts=cuts, slack=rng.choice((0, 0, 1)),
            layouts=rng.choice(("last", "last", "plain", "odd")), open_end=rng.random() < 0.2,
            tile=f"{tile[0]}x{tile[1]}x{tile[2]}w4s2g{rng.choice((1, 8))}",
            rows_bytes=rng.choice((1, 3000, 20000, 1 << 22)), **shape,
        )  # fmt: skip
        if _cost(case) <= MAX_COST and own_frames(case) > 0 and min(own_size(case)) > 0:
            return case


def own_frames(case: Case) -> int:
    """Frames of the convolution's output for the whole video."""
    return (up_frames(case) + case.before[0] + case.after[0] - case.kernel[0]) // case.stride[0] + 1


def up_frames(case: Case) -> int:
    n, u = case.size[0], case.up[0]
    return 1 + (n - 1) * u if case.keep_first else n * u


def own_size(case: Case) -> tuple[int, int]:
    h, w = (
        (case.size[k] * case.up[k] + case.before[k] + case.after[k] - case.kernel[k])
        // case.stride[k] + 1
        for k in (1, 2)
    )  # fmt: skip
    return h, w


def frames_of(case: Case) -> tuple[int, int]:
    """The frames that are asked for."""
    n = own_frames(case)
    first = min(int(case.part[0] * n), n - 1)
    last = first + 1 + min(int(case.part[1] * (n - first)), n - first - 1)
    if case.open_end and case.after[0]:
        while last > first + 1 and reads_beyond(case, last):
            last -= 1
    return first, last


def reads_beyond(case: Case, last: int) -> bool:
    return (last - 1) * case.stride[0] - case.before[0] + case.kernel[0] > up_frames(case)


def build(case: Case, seed: int, real: bool) -> dict[str, Any]:
    """x, module, layer and what goes with it; integers keep every sum exact in the dtype."""
    import torch

    from hy3d_rocm.decoding import geometry, layers

    rng = torch.Generator().manual_seed(seed * 1_000_003 + case.index)
    dtype = getattr(torch, case.dtype)

    def values(*shape: int, like: Any = dtype) -> Any:
        if real:
            return (torch.rand(shape, generator=rng) * 2 - 1).to(like)
        return torch.randint(-2, 3, shape, generator=rng).to(like)

    module = torch.nn.Module()
    sizes = {5: case.kernel, 4: case.kernel[1:], 2: ()}[case.weight_dims]
    module.weight = values(case.outputs, case.channels, *sizes)
    module.bias = values(case.outputs) if case.bias else None
    norm, affine = None, None
    if case.norm is not None and (real or case.norm == "group"):
        own = torch.nn.Module()
        own.weight, own.bias = values(case.channels), values(case.channels)
        # Within a program's arithmetic these are float32 whatever the dtype.
        scale, shift = ((values(case.channels, like=torch.float32),) * 2
                        if case.scaled and case.norm != "group" else (None, None))  # fmt: skip
        norm = layers.Norm(
            case.norm,
            own,
            eps=1e-6 if case.norm != "l2" else 1e-12,
            bias="bias" if case.scaled else None,
            scale=scale,
            shift=shift,
        )
        if case.norm == "group":
            affine = (
                values(case.channels, like=torch.float32),
                values(case.channels, like=torch.float32),
            )
    shuffle = None if case.shuffle is None else layers.Shuffle(*case.shuffle)
    layer = layers.Conv(
        module, case.before, case.after, case.modes, case.stride, norm,
        "silu" if case.silu and real else None, case.up, case.keep_first, shuffle=shuffle,
    )  # fmt: skip
    x = values(1, case.channels, *case.size)
    first, last = frames_of(case)
    ft, fh, fw = (1, 1, 1) if shuffle is None else shuffle.factor
    count = last - first if shuffle is None else geometry.shuffled_frames(shuffle, (first, last))
    h, w = own_size(case)
    size = (1, case.outputs // (ft * fh * fw), count, h * fh, w * fw)
    add = None if case.add is None else laid_out(values(*size), case.add)
    return {"layer": layer, "x": x, "affine": affine, "add": add, "size": size,
            "frames": (first, last)}  # fmt: skip


def laid_out(tensor: Any, layout: str) -> Any:
    """The same values in memory as channels-last, NCDHW, or as a view of every second element."""
    import torch

    if layout == "last":
        return tensor.contiguous(memory_format=torch.channels_last_3d)
    if layout == "plain":
        return tensor.contiguous()
    wide = tensor.new_zeros((*tensor.shape[:-1], tensor.shape[-1] * 2 + 1))
    wide[..., 1::2] = tensor
    return wide[..., 1::2]


def pieces_of(case: Case, x: Any, frames: tuple[int, int]) -> Any:
    """The frames that are read, as tensors cut where the case says."""
    from hy3d_rocm.decoding import geometry, layers

    layer = layers.Conv(None, case.before, case.after, stride=case.stride, up=case.up,
                        keep_first=case.keep_first)  # fmt: skip
    low, top = geometry.read_frames(layer, frames, case.kernel[0])
    n, top_frame = case.size[0], up_frames(case) - 1
    read = [geometry.source_frame(layer, min(max(u, 0), top_frame)) for u in range(low, top)]
    first = max(0, min(read) - case.slack)
    last = min(n, max(read) + 1 + case.slack)
    if case.open_end and any(u > top_frame for u in range(low, top)):
        last = n
    cuts = sorted({first, last, *(first + int(c * (last - first)) for c in case.cuts)})
    tensors = tuple(laid_out(x[:, :, a:b], case.layouts) for a, b in itertools.pairwise(cuts))
    beyond = any(u > top_frame for u in range(low, top))
    return layers.Pieces(tensors, first, None if case.open_end and not beyond else n)


def rows_of(case: Case, made: dict[str, Any]) -> tuple[Any, Any]:
    """The normalised, activated video in float64, and a bound of each value's error."""
    import torch

    x = made["x"].double()
    layer, u, c = made["layer"], 2.0**-24, case.channels

    def by_channel(t: Any) -> Any:
        return t.double().view(1, -1, 1, 1, 1)

    error = torch.zeros_like(x)
    norm = layer.norm
    if norm is not None:
        if norm.kind == "group":
            factor, summand = (by_channel(part) for part in made["affine"])
            plain, size = x, x.abs()
        else:
            factor = by_channel(norm.module.weight)
            summand = by_channel(norm.module.bias) if norm.bias else torch.zeros_like(factor)
            if norm.scale is not None:
                factor = factor * (1 + by_channel(norm.scale))
                summand = summand * (1 + by_channel(norm.scale)) + by_channel(norm.shift)
            plain, size = normed(x, norm)
        # Sums over C values (of a frame over all its own) and the few operations around them, each
        # within one rounding; an addition's operands may cancel, so that sizes count, not results.
        count = c * x.shape[3] * x.shape[4] if norm.kind == "frame" else c
        few = (2 * count + 24) * u
        made_of = (factor.abs() + 4 * u) * size
        error = few * made_of + 8 * u * (summand.abs() + 2)
        x = plain * factor + summand
        if norm.kind == "frame":  # a tensor before the kernel reads it
            error = error + UNIT[case.dtype] * (x.abs() + error) + TINY[case.dtype]
    if layer.act == "silu":
        # The slope is below 1.1; exp, its sum and the quotient are a few roundings of the result.
        error = 1.1 * error + 16 * u * (x.abs() + error)
        x = torch.nn.functional.silu(x)
    if norm is not None or layer.act is not None:
        error = error + UNIT[case.dtype] * (x.abs() + error) + TINY[case.dtype]
    return x, error


def normed(x: Any, norm: Any) -> tuple[Any, Any]:
    """The bare norm, and the size of what it is a difference of."""
    c = x.shape[1]
    if norm.kind == "rms":
        scale = (x.square().mean(1, keepdim=True) + norm.eps).rsqrt()
        return x * scale, x.abs() * scale
    if norm.kind == "l2":
        scale = math.sqrt(c) / x.square().sum(1, keepdim=True).sqrt().clamp_min(norm.eps)
        return x * scale, x.abs() * scale
    axes = (1, 3, 4) if norm.kind == "frame" else (1,)
    away = x - x.mean(axes, keepdim=True)
    scale = (away.square().mean(axes, keepdim=True) + norm.eps).rsqrt()
    # The error of the mean moves every value, also where their spread is small beside it.
    size = (x.abs() + x.abs().mean(axes, keepdim=True)) * scale
    return away * scale, size * (1 + size.amax(axes, keepdim=True))


def convolved(case: Case, x: Any, weight: Any, bias: Any, frames: tuple[int, int]) -> Any:
    """Up-sampled, padded, convolved and shuffled as layers.py says, in x's type, frames cut out."""
    import torch

    ut, uh, uw = case.up
    if case.keep_first:
        x = torch.cat((x[:, :, :1], x[:, :, 1:].repeat_interleave(ut, 2)), 2)
    else:
        x = x.repeat_interleave(ut, 2)
    x = x.repeat_interleave(uh, 3).repeat_interleave(uw, 4)
    for axis in range(3):
        sides = [0] * 6
        before, after, n = case.before[axis], case.after[axis], x.shape[2 + axis]
        x = x.narrow(2 + axis, max(-before, 0), n + min(before, 0) + min(after, 0))
        sides[4 - 2 * axis : 6 - 2 * axis] = max(before, 0), max(after, 0)
        mode = "replicate" if case.modes[axis] == "replicate" else "constant"
        x = torch.nn.functional.pad(x, sides, mode=mode)
    weight = weight.reshape(case.outputs, case.channels, *case.kernel)
    out = torch.nn.functional.conv3d(x, weight, bias, case.stride)[:, :, frames[0] : frames[1]]
    if case.shuffle is None:
        return out
    factor, order, _, first = (*case.shuffle, 0, None)[:4]
    kept = case.outputs // math.prod(factor)
    if first is None or frames[0]:
        return shuffled(out, factor, order)
    parts = [shuffled(out[:, :, :1], first, order)[:, :kept]]
    if out.shape[2] > 1:
        parts.append(shuffled(out[:, :, 1:], factor, order))
    return torch.cat(parts, 2)


def shuffled(out: Any, factor: tuple[int, int, int], order: str) -> Any:
    """Channels to space and time."""
    rt, rh, rw = factor
    n, (t, h, w) = out.shape[1] // (rt * rh * rw), out.shape[2:]
    if order == "channel first":
        parts = out.reshape(n, rt, rh, rw, t, h, w).permute(0, 4, 1, 5, 2, 6, 3)
    elif order == "space first":
        parts = out.reshape(rh, rw, rt, n, t, h, w).permute(3, 4, 2, 5, 0, 6, 1)
    else:
        parts = out.reshape(rt, rh, rw, n, t, h, w).permute(3, 4, 0, 5, 1, 6, 2)
    return parts.reshape(1, n, t * rt, h * rh, w * rw)


def expected(case: Case, made: dict[str, Any], device: str) -> tuple[Any, Any]:
    """The result in float64 and a bound of each value's error."""
    module, frames = made["layer"].module, made["frames"]
    weight = module.weight.double()
    bias = None if module.bias is None else module.bias.double()
    rows, error = rows_of(case, made)
    exact = convolved(case, rows, weight, bias, frames)
    size = convolved(
        case, rows.abs() + error, weight.abs(), None if bias is None else bias.abs(), frames
    )
    moved = convolved(case, error, weight.abs(), None, frames)
    if made["add"] is not None:
        exact, size = exact + made["add"].double(), size + made["add"].double().abs()
    n = case.channels * math.prod(case.kernel) + 2
    u, unit = 2.0**-24, UNIT[case.dtype]
    bound = moved + (n * u / (1 - n * u) + 2.0**-40) * size
    if device != "cpu":  # NVIDIA's f32 is three TF32 products, of 22 bits
        bound = bound + 2.0**-20 * size
    if math.prod(case.up) > 1:  # sums of weights are rounded once
        bound = bound + unit * size
    if made["add"] is not None:  # twice where what is shuffled by a copy, or is no whole vector
        bound = bound + unit * size
    return exact, bound + unit * (exact.abs() + bound) + TINY[case.dtype]


@dataclasses.dataclass(frozen=True)
class AttentionCase:
    """Queries of some frames over the keys that they see, as run.py asks for them."""

    index: int
    dtype: str
    size: int  # of a head
    heads: int
    frames: int
    tokens: int  # of a frame's queries
    keys: int  # of a frame
    more: int  # frames of keys before the queries' first
    span: str
    is_last: bool  # the result is channels-last


def random_attention(seed: int, index: int) -> AttentionCase:
    """The index-th case of a seed."""
    rng = random.Random(f"{seed}/{index}/attention")
    span = rng.choice(("frame", "causal", "video"))
    return AttentionCase(
        index, rng.choice(DTYPES[1:]), rng.choice((264, 320, 384, 512, 640, 1024)),
        rng.choice((1, 1, 2)), rng.choice((1, 2, 3)), rng.choice((1, 7, 33, 40)),
        rng.choice((1, 7, 33, 40)), 0 if span == "frame" else rng.choice((0, 1, 2)), span,
        rng.random() < 0.7,
    )  # fmt: skip


def attended(case: AttentionCase, seed: int) -> tuple[Any, Any, Any, Any]:
    """Queries, keys and values, which frames see what, and the result and its bound in float64:
    (heads, queries, size) each."""
    import torch

    from hy3d_rocm.decoding.backends.attention import KeyRanges

    rng = torch.Generator().manual_seed(seed * 1_000_003 + case.index)
    dtype, total = getattr(torch, case.dtype), (case.more + case.frames) * case.keys
    q = torch.randn((1, case.heads, case.frames * case.tokens, case.size), generator=rng).to(dtype)
    room = torch.randn((2, case.heads, total, case.size), generator=rng).to(dtype)
    ranges = KeyRanges(case.frames, case.tokens, case.keys, case.more, case.span)
    u, unit, made = 2.0**-24, UNIT[case.dtype], []
    for frame in range(case.frames):
        seen = ranges.of(frame, total)
        queries = q[0, :, frame * case.tokens : (frame + 1) * case.tokens].double()
        k, v = (part[:, seen].double() for part in room)
        scores = queries @ k.transpose(1, 2) * case.size**-0.5
        # A score is a sum of `size` products, scaled once; an exponential has that error and its
        # own; sums of weights are as many roundings as there are keys. Weights are rounded once.
        sizes = queries.abs() @ k.abs().transpose(1, 2) * case.size**-0.5
        off = ((case.size + 8) * u * sizes).amax(-1, keepdim=True) + 8 * u
        off = 2 * torch.expm1(2 * off) + 2 * (k.shape[1] + 8) * u + unit
        weights = scores.softmax(-1)
        exact = weights @ v
        bound = off * (weights @ v.abs())
        bound = bound + unit * (exact.abs() + bound) + TINY[case.dtype] * (1 + k.shape[1])
        made.append((exact, bound))
    exact, bound = (torch.cat(parts, 1) for parts in zip(*made, strict=True))
    return q, room, ranges, (exact, bound)


def random_norm(seed: int, index: int) -> tuple[Any, list[Any], Any]:
    """A GroupNorm, the moments of the parts of a video, in the order and sizes that slices or ranks
    have, and the video's type."""
    import torch

    from hy3d_rocm.decoding.layers import Moments, Norm

    rng = random.Random(f"{seed}/{index}/norm")
    dtype, groups = getattr(torch, rng.choice(DTYPES)), rng.choice((1, 4, 32))
    channels = groups * rng.choice((1, 3, 4, 12, 16, 20, 70))
    module = torch.nn.GroupNorm(groups, channels, rng.choice((1e-6, 1e-5)))
    normal = torch.Generator().manual_seed(seed * 1_000_003 + index)
    for parameter in module.parameters():
        parameter.requires_grad_(False).data = torch.randn(channels, generator=normal).to(dtype)
    first, each, last = (rng.choice((1, 7, 640, 389_120, 10**8)) for _ in range(3))
    counts = rng.choice(
        ([each], [first, *[each] * rng.randint(1, 9), last], [each + 1] * 2 + [each])
    )
    means = torch.randn((len(counts), channels), generator=normal, dtype=torch.float64)
    means = means * rng.choice((1e-3, 1.0, 50.0)) + rng.choice((0.0, 1.0, 300.0))
    deviations = torch.rand((len(counts), channels), generator=normal, dtype=torch.float64)
    deviations = deviations * torch.tensor(counts)[:, None] * rng.choice((0.0, 1e-6, 1.0, 1e4))
    moments = [
        Moments(count, torch.stack((mean, deviation)))
        for count, mean, deviation in zip(counts, means, deviations, strict=True)
    ]
    bias = rng.choice((None, "bias"))
    return (
        Norm("group", module, module.eps, groups, rng.choice((None, "weight")), bias),
        moments,
        dtype,
    )
