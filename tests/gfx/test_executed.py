"""The kernels executed as AMD machine code, launched by the package's own code: a share of what
tests/long/check_gfx_run.py and the checks with --device gfx1100 do, of each architecture."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import check_fused
import check_fused_gfx
import check_gfx_run
import check_raster_gpu
import check_triton_numerics as numerics
import gfx_layers
import gfx_problems
import how_much
import pytest
import raster_gpu_scenes as scenes
import torch
import triton_device
from program_doubles import carried_out, compiled, graph_of, rules

from hy3d_rocm.conv.triton import configs, jit
from hy3d_rocm.conv.triton.work import Target
from hy3d_rocm.decoding import layers
from hy3d_rocm.decoding.backends.triton import backend as fused
from hy3d_rocm.decoding.backends.triton import trial
from hy3d_rocm.decoding.backends.triton.backend import TritonBackend
from hy3d_rocm.decoding.memory.steps import StepWorkspace
from hy3d_rocm.raster.gpu import draw
from tools.dev import variants

SEED = 7
TYPES = {"gfx1100": "f16", "gfx1201": "bf16", "gfx942": "f32"}
MULTIPLYING = ("conv_rows", "conv_points")
COPYING = ("load_rows_and_weight", "add_parts", "load_rows", "combine_moments")
# What multiplies has instructions of each architecture; the others are executed on each in turns.
PAIRS = how_much.in_turns(COPYING, tuple(TYPES))
ASKED = {arch: {*MULTIPLYING, *(name for name, on in PAIRS if on == arch)} for arch in TYPES}


@pytest.fixture(params=list(TYPES))
def watch(request: pytest.FixtureRequest) -> Iterator[triton_device.Watch]:
    """A process whose GPU is the emulator."""
    found = triton_device.Watch(request.param)
    try:
        yield found
        assert jit._direct.usable
    finally:
        found.watched.remove()


def test_a_variant_of_each_kernel_is_right(watch: triton_device.Watch) -> None:
    arch, dtype = watch.device, TYPES[watch.device]
    tiles = list(configs.offered(arch, dtype))[: how_much.of(1, 3)]
    found = itertools.chain(
        ((*one, gfx_problems) for one in
         variants.sources(arch, dtype, tiles=tiles, select=variants.values).items()),
        ((*one, gfx_layers) for one in
         check_fused_gfx.sources(arch, dtype, tiles, variants.values).items()),
    )  # fmt: skip
    runner = check_gfx_run.Runner(arch, dtype, watch)
    asked = Counter[Any]()
    for variant, source, module in found:
        few = getattr(getattr(source, "job", None), "size", ()) != (128, 130)  # many positions
        assert variant.function in (*MULTIPLYING, *COPYING), "a new kernel: of which kind is it?"
        taken = how_much.FULL or variant.function in ASKED[arch]
        of = module, variant.function
        if taken and few and asked[of] < how_much.of(1, 4):
            asked[of] += 1
            runner.run(variant, source, module)
    assert set(runner.rows) >= ASKED[arch]
    for row in runner.rows.values():
        assert row.is_right, "\n".join(row.wrong)
    assert sum(row.instructions for row in runner.rows.values()) > 100_000
    assert {one.direct for one in watch.watched.launches} == {False, True}


def test_random_convolutions_equal_the_c_reference(watch: triton_device.Watch) -> None:
    for index in range(how_much.of(1, 8)):
        config = numerics.config_for(watch.device, SEED, index)
        differing, compared = numerics.differing_values(config, SEED, watch.device)
        assert compared, config
        assert not differing, config
        assert numerics.fraction_of_bound(config, SEED, watch.device) <= 1, config


def test_what_the_doctor_tries_is_right(
    watch: triton_device.Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "_sound", set())
    backend = TritonBackend(check_fused.Plain(), "cpu", Target(watch.device, 4))
    backend.checked_on = ("cpu",)
    row = trial.tried(backend.device, backend)
    assert (row["verdict"], row["detail"]) == ("ok", "")
    assert row["kernels"] >= 8


@pytest.mark.parametrize("watch", ["gfx1100"], indirect=True)
def test_weights_packed_in_each_step_change_no_bit(watch: triton_device.Watch) -> None:
    """A residual block carried out by both programs of the core: packed weights stay, or not."""
    rng = torch.Generator().manual_seed(SEED)
    convs = []
    for _ in range(2):
        module = torch.nn.Conv3d(16, 16, 3, dtype=torch.float16).requires_grad_(False)
        norm = torch.nn.GroupNorm(4, 16, dtype=torch.float16).requires_grad_(False)
        convs.append(layers.Conv(
            module, (2, 1, 1), (0, 1, 1), ("replicate",) * 3,
            norm=layers.Norm("group", norm, 1e-6, 4, bias="bias"), act="silu",
        ))  # fmt: skip
    x = torch.randn(1, 16, 3, 6, 7, generator=rng).half()
    graph = graph_of(lambda e, x: e.conv(e.conv(x, convs[0]), convs[1], add=x), x)
    weights = layers.ModuleWeights(torch.float16, "cpu")

    def backend() -> TritonBackend:
        return TritonBackend(weights, "cpu", Target(watch.device, 4))

    asked = StepWorkspace(graph, backend(), rules(), x.dtype)
    made, budget = list[torch.Tensor](), 0
    for repacks in (0, 1):
        found = compiled(
            graph, x, asked=asked, is_host=0, may_repack=1, device_budget=budget, slice_bytes=2000
        )
        assert found.program.candidate["repacks"] == repacks
        budget = found.program.candidate["device_bytes"] - 1
        first = len(watch.watched.launches)
        made.append(carried_out(graph, x, found.program, backend=backend()))
        names = [one.kernel.name for one in watch.watched.launches[first:]]
        assert (names.count("pack_weight") > len(convs)) == bool(repacks)
    assert torch.equal(*made)


def test_random_layers_are_within_the_bound(watch: triton_device.Watch) -> None:
    for index in range(how_much.of(1, 8)):
        case = check_fused.case_for(watch.device, SEED, index)
        assert check_fused.check(case, SEED, False, watch.device) == 0, case
        assert check_fused.check(case, SEED, True, watch.device) <= 1, case


@pytest.mark.parametrize("watch", ["gfx1100"], indirect=True)
def test_a_scene_is_the_c_cores_bit_for_bit(watch: triton_device.Watch) -> None:
    covered = 0
    for index in range(how_much.of(1, 10)):
        of, sizes = scenes.scene(SEED, index), check_raster_gpu.sizes_of(watch.device, index)
        made = draw.draw(
            of.clip, of.faces, *of.size, compat=of.rule == "compat", prior=of.prior, sizes=sizes
        )
        assert made is not None
        wanted = scenes.core(of)
        assert [scenes.differing(a, b) for a, b in zip(made, wanted, strict=True)] == [0, 0, 0]
        covered += int((wanted[0] > 0).sum())
    assert covered


@pytest.mark.parametrize("watch", ["gfx942"], indirect=True)
def test_lanes_that_meet_at_a_pixel_of_negative_depth(watch: triton_device.Watch) -> None:
    """Triton 3.6 makes one of the signed minima of a wave's lanes on CDNA, compared as unsigned:
    keys of pixels are never negative."""
    of, sizes = scenes.scene(1, 34), check_raster_gpu.sizes_of(watch.device, 34)
    made = draw.draw(of.clip, of.faces, *of.size, compat=of.rule == "compat", sizes=sizes)
    assert made is not None
    wanted = scenes.core(of)
    assert (wanted[2] < 0).any()
    assert [scenes.differing(a, b) for a, b in zip(made, wanted, strict=True)] == [0, 0, 0]


@pytest.mark.parametrize("watch", ["gfx1100"], indirect=True)
def test_frames_of_a_pair_that_nobody_wants_are_not_multiplied(
    watch: triton_device.Watch,
) -> None:
    """An up-sampled video is made in pairs of frames: (1, 2), (3, 4). Two frames of two pairs take
    as many products as one pair (twice as many where both pairs are multiplied), a frame half."""
    torch.manual_seed(SEED)
    module = torch.nn.Conv3d(64, 16, 3, dtype=torch.float16)
    layer = layers.Conv(
        module, (2, 1, 1), (0, 1, 1), ("replicate",) * 3, up=(2, 2, 2), keep_first=True
    )
    x = torch.rand(1, 64, 3, 9, 17, dtype=torch.float16)
    x = x.contiguous(memory_format=torch.channels_last_3d)
    machine = Target(watch.device, 4, tile=configs.Config(64, 16, 16, 4, 2))
    backend = TritonBackend(check_fused.Plain(), "cpu", machine)
    executed, made = dict[tuple[int, int], int](), list[torch.Tensor]()
    for frames in ((1, 3), (2, 4), (3, 5), (2, 3)):
        with torch.no_grad():
            out, _ = backend.convolve(layer, layers.Pieces((x,), 0, 3), frames)
        launched = [one for one in watch.watched.launches if one.kernel.name == "conv_rows"]
        watch.watched.launches.clear()
        executed[frames] = sum(one.counts.instructions for one in launched)
        made.append(out)
    assert torch.equal(made[1], torch.cat([made[0][:, :, 1:], made[2][:, :, :1]], 2))
    assert executed[2, 4] < 1.5 * executed[1, 3]
    assert executed[2, 3] < 0.75 * executed[1, 3]
