"""Jobs that launch a variant of the fused decode's kernels (check_fused_gfx.py), carried out by the
backend's own code and held against float64. Used by check_gfx_run.py."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import check_fused
import check_fused_gfx
import torch.nn.functional as F
from check_fused_gfx import Source
from fused_cases import Case, expected
from gfx_problems import DTYPES, Result, bits, placed

from hy3d_rocm.conv.triton import work
from hy3d_rocm.conv.triton.work import ONES, Job
from hy3d_rocm.decoding.backends import torch_ops
from hy3d_rocm.decoding.backends.triton import backend as fused
from hy3d_rocm.decoding.layers import Conv, Norm, Shuffle
from tools.dev import variants
from tools.dev.variants import Variant

_ORDER = "channel first"
_EPS = {"l2": 1e-12}


def is_exact(job: Job) -> bool:
    """Whether integers stay integers on the way."""
    return not job.norm and not job.silu


def run(variant: Variant, source: Source, arch: str, seed: int) -> Iterator[Result]:
    """The source on integers, where its layer keeps them, and on reals; with the pointers of the
    variant's form. RuntimeError where moments are wrong."""
    source = sized(variant, source, arch)
    job = source.job._replace(eps=_EPS.get(source.job.norm, 1e-6))
    source = dataclasses.replace(source, job=job)
    for real in (False, True):
        if real or is_exact(job):
            yield _compared(variant, source, arch, seed, real)


def sized(variant: Variant, source: Source, arch: str) -> Source:
    """A source with a second, partly filled tile of outputs, where the variant multiplies; with few
    where it does not, and still is among the launches."""
    outputs = source.tile.block_n + (8 if source.job.outputs % 8 == 0 else 4)
    if not variant.arithmetic:
        outputs = min(source.job.outputs, 16)
    wider = dataclasses.replace(source, job=source.job._replace(outputs=outputs))
    return wider if launches(variant, wider, arch) else source


def launches(variant: Variant, source: Source, arch: str) -> bool:
    wanted = dataclasses.replace(variant, form="small")
    items = source.work(arch).launches
    return any(variants.of_launch(item, variant.dtype) == wanted for item in items)


def _compared(
    variant: Variant, source: Source, arch: str, seed: int, real: bool
) -> Result:  # fmt: skip
    import torch

    job = source.job
    made = _tensors(variant, source, seed, real)
    exact, bound = expected(_case(job), made, "cpu")
    machine = work.Target(arch, 1, tile=source.tile)
    backend = fused.TritonBackend(check_fused.Plain(), "cpu", machine)
    shuffled = job.shuffle != ONES
    packed = _packed(made["weight"], made["bias"], job, _ORDER if shuffled else "")
    part = fused.Part(source.work(arch), *packed, made["factors"])
    with torch.no_grad():
        moments = backend._run(part, made["pieces"], None, made["out"])
    out = made["out"]
    if moments is not None:
        wrong = check_fused.wrong_moments(out, moments, source.tile.block_p)
        if wrong:
            raise RuntimeError(f"moments: {wrong}")
    if not real:
        wanted = exact.to(out.dtype)
        return Result(out.numel(), int((bits(wanted) != bits(out)).sum()))
    ratio = (out.double() - exact).abs() / bound
    return Result(of_bound=float(ratio.nan_to_num(nan=float("inf")).max()))


def _packed(weight: Any, bias: Any, job: Job, order: str) -> tuple[Any, Any]:
    """What pack_weight makes, which check_fused.py runs, by torch's operators."""
    import torch

    weight = weight.view(*weight.shape[:2], *job.kernel)
    if order:
        weight = torch_ops.by_phase(weight, job.shuffle, order)[:, :, :, : job.outputs]
        bias = None if bias is None else torch_ops.by_phase(bias, job.shuffle, order)
        weight = weight.flatten(0, 3)
        bias = None if bias is None else bias[:, :, :, : job.outputs].flatten()
    axes = [] if order else [n for n in (0, 1, 2) if job.folds[n > 0]]
    ways = [weight.double()]
    for n in axes:
        for at, part in enumerate(ways):
            a, b, c = part.unbind(n + 2)
            even, odd = torch.stack((a, b + c), n + 2), torch.stack((a + b, c), n + 2)
            ways[at] = (odd, even) if n == 0 else (even, odd)  # type: ignore[call-overload]
        ways = [half for pair in ways for half in pair]
    made = F.pad(torch.cat(ways).movedim(1, -1), (0, -weight.shape[1] % 8)).to(weight.dtype)
    bias = None if bias is None else bias.repeat(len(ways))
    return made.flatten(1, 2).flatten(2).contiguous(), bias


def _tensors(variant: Variant, source: Source, seed: int, real: bool) -> dict[str, Any]:
    """What the job reads, and what fused_cases.expected() asks for."""
    import torch

    job, letters = source.job, check_fused_gfx.FORMS[variant.form]
    dtype = getattr(torch, DTYPES[job.dtype])
    generator = torch.Generator().manual_seed(seed)

    def values(*shape: int, like: Any = dtype) -> Any:
        if real:
            return (torch.rand(shape, generator=generator) * 2 - 1).to(like)
        return torch.randint(-2, 3, shape, generator=generator).to(like)

    def filled(name: str, size: Any, strides: Any) -> Any:
        made, inside = placed(size, strides, dtype, letters.get(name, "DS"))
        inside.copy_(values(*inside.shape))
        return made

    pieces = [
        filled("x", (1, job.channels, piece.frames, *job.size), (0, *piece.strides))
        for piece in job.pieces
    ]
    out_size = (1, job.outputs, job.out_frames, *job.out_size)
    out, _ = placed(out_size, (0, *source.out), dtype, letters.get("out", "DS"))
    residual = None
    if job.add:
        residual = values(*out_size)
        out.copy_(residual)
    weight = values(job.outputs * math.prod(job.shuffle), job.channels, *job.kernel)
    bias = values(len(weight)) if job.bias else None
    module, own = torch.nn.Module(), torch.nn.Module()
    module.weight, module.bias = weight, bias
    norm, factors, affine = None, None, None
    if job.affine:
        factors = tuple(values(job.channels, like=torch.float32) for _ in range(2))
        own.weight, own.bias = factors
        if job.norm == "l2":
            factors = (factors[0] * math.sqrt(job.channels), factors[1])
    elif job.norm:
        one = torch.ones(job.channels, dtype=torch.float64)
        own.weight, own.bias = one / (math.sqrt(job.channels) if job.norm == "l2" else 1), 0 * one
    if job.norm:
        norm = Norm(job.norm, own, job.eps, bias="bias")
    elif job.affine:
        norm, affine = Norm("group", own, job.eps), factors
    shuffle = None if job.shuffle == ONES else Shuffle(job.shuffle, _ORDER)
    case = _case(job)
    layer = Conv(
        module, job.before, job.after, case.modes, job.stride, norm, "silu" if job.silu else None,
        job.up, job.keep_first, shuffle=shuffle,
    )  # fmt: skip
    return {
        "layer": layer, "x": torch.cat(pieces, 2), "affine": affine, "add": residual,
        "frames": job.frames, "pieces": pieces, "out": out, "weight": weight, "bias": bias,
        "factors": factors,
    }  # fmt: skip


def _case(job: Job) -> Case:
    """The job as fused_cases.expected() reads it."""
    t, h, w = ("replicate" if side else "zeros" for side in job.replicate)
    frames = sum(piece.frames for piece in job.pieces)
    shuffle = None if job.shuffle == ONES else (job.shuffle, _ORDER)
    return Case(
        index=0, dtype=DTYPES[job.dtype], channels=job.channels,
        outputs=job.outputs * math.prod(job.shuffle), weight_dims=5, size=(frames, *job.size),
        kernel=job.kernel, before=job.before, after=job.after, modes=(t, h, w), stride=job.stride,
        up=job.up, keep_first=job.keep_first, norm=job.norm or None, scaled=False, silu=job.silu,
        shuffle=shuffle, bias=job.bias, add="last" if job.add else None, into=None,
        moments=job.moments, part=(0.0, 1.0), cuts=(), slack=0, layouts="last", open_end=False,
        tile="", rows_bytes=0,
    )  # fmt: skip
