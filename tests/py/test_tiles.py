"""Tiles with one set of statistics: exact where norms are per position, seamless elsewhere."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from chunk_doubles import RMS, C, attention, chain, layer, module, resnet
from decode_doubles import relative_error, tiny_latents, tiny_vae, unsplit
from test_chunkwise_faults import Live, OutOfMemoryAt
from torch import Tensor

from hy3d_rocm.decode.counter import Counter
from hy3d_rocm.decode.engines.tile_parts import cut_of, head, trunk
from hy3d_rocm.decode.engines.tiles import TiledRun, plan_tiles, steps
from hy3d_rocm.decode.families import family_for
from hy3d_rocm.decode.layers import Conv, Norm
from hy3d_rocm.decode.plain import PlainEngine
from hy3d_rocm.decode.report import DecodeCancelled, Step
from hy3d_rocm.decode.statistics import blocks, reduced, reduced_size
from hy3d_rocm.decode.torch_backend import TorchBackend
from hy3d_rocm.decode.weights import ModuleWeights

pytestmark = pytest.mark.usefixtures("one_thread")
UP = {"before": (2, 1, 1), "after": (0, 1, 1), "modes": ("replicate",) * 3, "up": (1, 2, 2)}


class SmallFamily:
    """Frames twice as high and wide as the latent; norms of the kind that is asked for."""

    name = "small"
    latent_channels = C
    factor = (1, 2)
    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, norm: Norm = RMS, attends: bool = True) -> None:
        self.has_global_norms = norm.kind == "group"
        before = [resnet(C, C, 1, True, norm=norm), attention("frame", 2, 4, norm=norm)]
        behind = Conv(module(C, C, 3, 3, 3, seed=8), **UP)
        last = Conv(
            module(3, C, 3, 3, 3, seed=9),
            before=(2, 1, 1),
            after=(0, 1, 1),
            norm=norm,
            act="silu",
        )
        self.run = chain(
            *(before if attends else []), resnet(C, C, 5, True, norm=norm), layer(behind),
            layer(last),
        )  # fmt: skip

    def decode(self, engine: Any, z: Any) -> Any:
        return self.run(engine, z)

    def out_shape(self, latent: tuple[int, ...]) -> tuple[int, ...]:
        return latent[0], 3, latent[2], latent[3] * 2, latent[4] * 2


def group_norm() -> Norm:
    affine = torch.nn.GroupNorm(2, C)
    generator = torch.Generator().manual_seed(5)
    affine.weight.data = 1 + 0.3 * torch.randn(C, generator=generator)
    affine.bias.data = 0.3 * torch.randn(C, generator=generator)
    return Norm("group", affine, 1e-6, groups=2, bias="bias")


def backend() -> TorchBackend:
    return TorchBackend(ModuleWeights(torch.float32, "cpu"))


def latent(frames: int, height: int, width: int) -> Tensor:
    """Smooth with some noise, as pictures give."""
    generator = torch.Generator().manual_seed(frames)
    coarse = torch.randn(1, C, 2, 3, 3, generator=generator)
    size = (frames, height, width)
    smooth = torch.nn.functional.interpolate(coarse, size=size, mode="trilinear")
    return 1.5 * smooth + 0.2 * torch.randn(1, C, *size, generator=generator)


def tiled(family: Any, z: Tensor, run_options: Any = None, **options: Any) -> tuple[Tensor, Any]:
    options = {"overlap_pixels": 4, "min_tile_pixels": 8, "halo_pixels": None} | options
    plan = plan_tiles(family, tuple(z.shape), **options)
    out = torch.full(family.out_shape(tuple(z.shape)), torch.nan)
    run = TiledRun(family, backend(), plan, **(run_options or {}))
    run.run(z, out)
    return out, run


def psnr(got: Tensor, wanted: Tensor) -> float:
    mse = float((got - wanted).double().square().mean())
    return 10 * math.log10(float(wanted.max() - wanted.min()) ** 2 / mse) if mse else math.inf


def whole(family: Any, z: Tensor) -> Tensor:
    with torch.no_grad():
        return family.decode(PlainEngine(), z)


@pytest.mark.parametrize("attends", [True, False])
def test_tiles_with_the_full_halo_are_exact_for_norms_per_position(attends: bool) -> None:
    family = SmallFamily(attends=attends)
    z = latent(4, 24, 20)
    wanted = whole(family, z)
    counts = set()
    for level in range(6):
        got, run = tiled(family, z, level=level, chunk=2)
        counts.add(run.plan.spatial.count)
        assert relative_error(got, wanted) <= 1e-5, level
        assert run.report.estimate_error == 0.0
    assert len(counts) == 6


@pytest.mark.parametrize("chunk", [1, 3, 9])
def test_cuts_in_time_change_nothing_in_a_tile(chunk: int) -> None:
    family = SmallFamily()
    z = latent(5, 24, 20)
    wanted, _ = tiled(family, z, level=2, chunk=5, halo_pixels=4)
    got, _ = tiled(family, z, level=2, chunk=chunk, halo_pixels=4, slice_bytes=2000)
    assert relative_error(got, wanted) <= 1e-5


def test_wan_in_two_tiles_is_what_diffusers_decodes() -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 1, 27, 3)
    got, run = tiled(family_for(vae), z, level=1, min_tile_pixels=32)
    assert run.plan.spatial.count == (1, 2, 1)
    assert relative_error(got, unsplit(vae, z)) <= 1e-5


def test_statistics_of_everything_give_the_whole_decode() -> None:
    family = SmallFamily(group_norm())
    z = latent(4, 24, 20)
    wanted = whole(family, z)
    for level in (0, 3):
        got, run = tiled(family, z, level=level, part_positions=10**6)
        assert run.plan.part == (4, 24, 20)
        assert relative_error(got, wanted) <= 1e-5
        assert run.report.estimate_error <= 1e-5


def test_each_pass_corrects_a_norm_more_until_the_decode_is_exact() -> None:
    family = SmallFamily(group_norm())
    z = latent(6, 28, 24)
    wanted = whole(family, z)
    cut = cut_of(family)
    assert cut.head_norms == 3
    errors = []
    for passes in range(4):
        got, run = tiled(family, z, level=1, part_positions=600, passes=passes)
        assert math.prod(run.plan.part) <= 600
        errors.append(run.report.estimate_error)
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] <= 1e-5
    assert relative_error(got, wanted) <= 1e-5


def test_the_error_of_the_estimate_is_the_one_that_is_reported() -> None:
    """By hand: the first norm behind the trunk sees the trunk's output, whatever the estimate."""
    family = SmallFamily(group_norm())
    z = latent(6, 32, 28)
    _, run = tiled(family, z, level=3, part_positions=600)
    cut = cut_of(family)
    with torch.no_grad():
        grid = trunk(family, cut)(PlainEngine(), z)
    part = reduced(lambda f: grid[:, :, slice(*f)], tuple(grid.shape[2:]), run.plan.part)
    found, truth = (
        torch.var_mean(x.double().view(2, -1), dim=1, correction=0) for x in (part, grid)
    )
    mean = (found[1] - truth[1]).abs() / truth[0].sqrt()
    spread = (found[0].sqrt() / truth[0].sqrt() - 1).abs()
    assert run.report.errors[0] == pytest.approx(float(torch.maximum(mean, spread).max()), rel=1e-4)


def test_trunk_and_head_are_the_decode() -> None:
    for kind in ("hunyuan", "hunyuan15", "wan", "wan22", "ltx", "image"):
        vae = tiny_vae(kind)
        family = family_for(vae)
        cut = cut_of(family)
        z = tiny_latents(vae, 1 if kind == "image" else 2, 3, 2)
        with torch.no_grad():
            grid = trunk(family, cut)(PlainEngine(), z)
            assert grid.shape[1] == cut.channels
            assert grid.shape[3] == 3 * cut.scale
            assert torch.equal(head(family, cut)(PlainEngine(), grid), whole(family, z)), kind


def test_one_tile_gives_frames_in_order() -> None:
    family = SmallFamily(group_norm())
    z = latent(5, 12, 10)
    wanted, run = tiled(family, z, chunk=2)
    again = TiledRun(family, backend(), run.plan)
    parts = [made.clone() for _, made in again.frames(z)]
    assert torch.equal(torch.cat(parts, 2), wanted)


def test_out_of_memory_changes_no_bit_of_a_tiled_decode() -> None:
    family = SmallFamily(group_norm())
    z = latent(2, 14, 12)
    options = {"level": 1, "part_positions": 100, "halo_pixels": 2}
    with OutOfMemoryAt(set(), dims=4) as counting:
        wanted, _ = tiled(family, z, **options)
    pressed: list[int] = []
    for at in range(1, counting.seen, max(counting.seen // 25, 1)):
        with OutOfMemoryAt({at}, dims=4):
            got, _ = tiled(family, z, {"on_pressure": lambda: pressed.append(1)}, **options)
        assert torch.equal(got, wanted), at
    assert len(pressed) >= 20


def test_progress_counts_to_its_end_and_a_stop_is_seen() -> None:
    family = SmallFamily(group_norm())
    z = latent(5, 24, 20)
    seen: list[Step] = []
    counter = Counter(lambda done, total, step: seen.append(step), None)
    _, run = tiled(family, z, {"counter": counter}, level=2, chunk=2, part_positions=300, passes=1)
    assert counter.done == steps(run.plan, 5) == 2 * 4 * 3
    assert [s.kind for s in seen] == ["statistics"] * 12 + ["frames"] * 12
    assert {s.tile for s in seen} == {0, 1, 2, 3}

    asked: list[int] = []
    stopping = Counter(None, lambda: asked.append(1) or len(asked) > 50)
    with pytest.raises(DecodeCancelled):
        tiled(family, z, {"counter": stopping}, level=2, part_positions=300)
    assert len(asked) == 51


def test_memory_of_tiles_does_not_grow_with_the_video() -> None:
    family = SmallFamily(attends=False)
    peaks = []
    for frames in (12, 40):
        z = latent(frames, 24, 20)
        plan = plan_tiles(family, tuple(z.shape), level=2, chunk=2, min_tile_pixels=8)
        out = torch.zeros(family.out_shape(tuple(z.shape)))
        with Live() as live:
            TiledRun(family, backend(), plan).run(z, out)
        peaks.append(live.peak)
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize(
    ("length", "keep", "block"), [(20, 10, 4), (64, 17, 8), (9, 3, 3), (5, 9, 2)]
)
def test_blocks_are_spread_evenly_and_in_order(length: int, keep: int, block: int) -> None:
    found = blocks(length, keep, block)
    assert found == sorted(set(found))
    assert len(found) == min(keep, length)
    assert 0 <= found[0] <= length - 1 - found[-1] + 1
    assert blocks(length, keep, block, from_start=True)[0] == 0


def test_a_part_is_never_larger_than_asked_for() -> None:
    for size in ((9, 80, 76), (1, 200, 30), (900, 32, 32), (2, 5, 5)):
        for positions in (100, 1000, 5000, 10**7):
            t, h, w = reduced_size(size, positions)
            assert (t, h, w) <= size
            assert t * h * w <= max(positions, 5 * 8 * 8)


def test_a_level_that_the_latent_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="levels 0 to"):
        plan_tiles(SmallFamily(), (1, C, 2, 6, 6), level=40)


@pytest.mark.parametrize("result", [torch.float32, torch.bfloat16])
def test_tiles_in_bfloat16_differ_by_its_rounding_only(result: torch.dtype) -> None:
    family = SmallFamily(group_norm())
    z = latent(3, 24, 20)
    wanted = whole(family, z)
    family.dtype = torch.bfloat16
    plan = plan_tiles(family, tuple(z.shape), level=2, part_positions=10**6, min_tile_pixels=8)
    narrow = TorchBackend(ModuleWeights(torch.bfloat16, "cpu"))
    with torch.no_grad():
        engine = PlainEngine(ModuleWeights(torch.bfloat16, "cpu"))
        unsplit_error = psnr(family.decode(engine, z.bfloat16()).float(), wanted)
    out = torch.empty(family.out_shape(tuple(z.shape)), dtype=result)
    TiledRun(family, narrow, plan).run(z, out)
    assert psnr(out.float(), wanted) >= unsplit_error - 0.5


def test_what_comes_out_can_be_looked_at_before_it_is_placed() -> None:
    family = SmallFamily()
    z = latent(3, 12, 10)
    seen: list[tuple[int, int]] = []
    tiled(family, z, {"watch": lambda step, frames: seen.append(step.frames)}, chunk=2)
    assert seen == [(0, 2), (2, 3)]

    def broken(step: Step, frames: Tensor) -> None:
        raise FloatingPointError("NaN")

    with pytest.raises(FloatingPointError):
        tiled(family, z, {"watch": broken}, chunk=2)
