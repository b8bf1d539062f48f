"""Tiles with one set of statistics: exact where norms are per position, seamless elsewhere."""

from __future__ import annotations

import itertools
import math
from typing import Any

import how_much
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import relative_error, tiny_latents, tiny_vae, unsplit  # noqa: E402
from live_storages import LiveStorages  # noqa: E402
from plain_engine import PlainEngine  # noqa: E402
from program_doubles import (  # noqa: E402
    CPU,
    Counter,
    FailingOperators,
    compiled_tiles,
    family_of,
    graph_of,
    in_tiles,
    parameters_of,
)
from small_decoders import RMS, C, attention, chain, layer, module, resnet  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding import tiled_run  # noqa: E402
from hy3d_rocm.decoding.backends.statistics import reduced, spread  # noqa: E402
from hy3d_rocm.decoding.faults import retry_out_of_memory  # noqa: E402
from hy3d_rocm.decoding.graph import record  # noqa: E402
from hy3d_rocm.decoding.layers import (  # noqa: E402
    Conv,
    ModuleWeights,
    Norm,
)
from hy3d_rocm.decoding.report import DecodeCancelled  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
    pytest.mark.usefixtures("one_thread", "no_gradients"),
]
PADS: dict[str, Any] = {"before": (2, 1, 1), "after": (0, 1, 1)}
UP = Conv(module(C, C, 3, 3, 3, seed=8), **PADS, modes=("replicate",) * 3, up=(1, 2, 2))
EVERYTHING = 1000  # latents of a chunk, so that the part of the statistics is all there is


def last(norm: Norm) -> Any:
    return layer(Conv(module(3, C, 3, 3, 3, seed=9), **PADS, norm=norm, act="silu"))


def small_decoder(norm: Norm = RMS, attends: bool = True) -> Any:
    """Frames twice as high and wide as the latent; norms of the kind that is asked for, three of
    them behind the attention."""
    before = [resnet(C, C, 1, True, norm=norm), attention("frame", 2, 4, norm=norm)]
    behind = [resnet(C, C, 5, True, norm=norm), layer(UP), last(norm)]
    return chain(*(before if attends else []), *behind)


def group_norm() -> Norm:
    affine = torch.nn.GroupNorm(2, C)
    generator = torch.Generator().manual_seed(5)
    affine.weight.data = 1 + 0.3 * torch.randn(C, generator=generator)
    affine.bias.data = 0.3 * torch.randn(C, generator=generator)
    return Norm("group", affine, 1e-6, groups=2, bias="bias")


def latent(frames: int, height: int, width: int) -> Any:
    """Smooth with some noise, as pictures give."""
    generator = torch.Generator().manual_seed(frames)
    coarse = torch.randn(1, C, 2, 3, 3, generator=generator)
    size = (frames, height, width)
    smooth = torch.nn.functional.interpolate(coarse, size=size, mode="trilinear")
    return 1.5 * smooth + 0.2 * torch.randn(1, C, *size, generator=generator)


def tiled(decoder: Any, x: Any, run: Any = None, **request: Any) -> tuple[Any, Any, Any]:
    """The frames, the run and its program."""
    graph = graph_of(decoder, x)
    program = compiled_tiles(graph, x, **request).program
    out = torch.empty(1, 3, x.shape[2], *(2 * n for n in x.shape[3:]))
    return out, in_tiles(graph, x, program, out, **(run or {})), program


def psnr(got: Any, wanted: Any) -> float:
    mse = float((got - wanted).double().square().mean())
    return 10 * math.log10(float(wanted.max() - wanted.min()) ** 2 / mse) if mse else math.inf


def parts_of(program: Any) -> list[tuple[int, ...]]:
    """(T, H, W) of the parts that statistics are estimated from."""
    return [tuple(s["size"]) for s in program.sections if s["kind"] == 2]


@pytest.mark.parametrize("attends", [True, False])
def test_tiles_with_the_full_halo_are_exact_for_norms_per_position(attends: bool) -> None:
    decoder, x = small_decoder(attends=attends), latent(4, 24, 20)
    wanted, counts = decoder(PlainEngine(), x), set()
    for level in range(6):
        got, run, program = tiled(decoder, x, level=level, chunk=2)
        counts.add(program.candidate["tiles"])
        assert program.candidate["is_exact"]
        assert relative_error(got, wanted) <= 1e-5, level
        assert run.estimate_error == 0.0
    assert len(counts) == 6


@pytest.mark.parametrize("chunk", [1, 3, 9])
def test_cuts_in_time_change_nothing_in_a_tile(chunk: int) -> None:
    decoder, x = small_decoder(), latent(5, 24, 20)
    wanted, _, _ = tiled(decoder, x, level=3, chunk=5, halo=4)
    got, _, program = tiled(decoder, x, level=3, chunk=chunk, halo=4)
    assert program.candidate["tiles"] > 3
    assert relative_error(got, wanted) <= 1e-5


def test_wan_in_two_tiles_is_what_diffusers_decodes() -> None:
    family = family_of("wan", tiny_vae("wan"))
    z = tiny_latents(family.vae, 1, 27, 3)
    graph, wanted = record(family), unsplit(family.vae, z)
    program = compiled_tiles(graph, z, level=1, least=32).program
    in_tiles(graph, z, program, out := torch.empty_like(wanted))
    assert program.candidate["tiles"] == 2
    assert relative_error(out, wanted) <= 1e-5


def test_statistics_of_everything_give_the_whole_decode() -> None:
    decoder, x = small_decoder(group_norm()), latent(4, 24, 20)
    wanted = decoder(PlainEngine(), x)
    for level in (0, 2, 5):
        got, run, program = tiled(decoder, x, level=level, chunk=EVERYTHING)
        assert parts_of(program) == [(4, 24, 20)]
        assert relative_error(got, wanted) <= 1e-5
        assert run.estimate_error <= 1e-5


def test_each_pass_corrects_a_norm_more_until_the_decode_is_exact() -> None:
    decoder, x = small_decoder(group_norm()), latent(6, 28, 24)
    wanted, errors = decoder(PlainEngine(), x), []
    for passes in range(4):
        got, run, program = tiled(decoder, x, level=2, statistic_passes=passes)
        assert program.cut["group_norms"] == 3
        assert len(set(parts_of(program))) == 1
        assert math.prod(parts_of(program)[0]) < 6 * 28 * 24 / 2
        errors.append(run.estimate_error)
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] <= 1e-5
    assert relative_error(got, wanted) <= 1e-5


def test_the_error_of_the_estimate_is_the_one_that_is_reported() -> None:
    """By hand: the one norm behind the cut sees the prefix's output, whatever the estimate."""
    norm, x = group_norm(), latent(6, 32, 28)
    front = chain(resnet(C, C, 1, True), attention("frame", 2, 4))
    _, run, program = tiled(chain(front, last(norm), layer(SPREAD)), x, level=2)
    assert program.cut["group_norms"] == 1
    grid = front(PlainEngine(), x)
    (keep,) = parts_of(program)
    assert keep != tuple(grid.shape[2:])
    part = reduced(lambda f: grid[:, :, slice(*f)], tuple(grid.shape[2:]), keep)  # type: ignore[arg-type]
    found, truth = (
        torch.var_mean(x.double().view(2, -1), dim=1, correction=0) for x in (part, grid)
    )
    mean = (found[1] - truth[1]).abs() / truth[0].sqrt()
    spread = (found[0].sqrt() / truth[0].sqrt() - 1).abs()
    assert run.estimate_error == pytest.approx(float(torch.maximum(mean, spread).max()), rel=1e-4)


SPREAD = Conv(module(3, 3, 1, 1, 1), up=(1, 2, 2))


def test_out_of_memory_in_place_of_any_operator_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of those on activations, and while the true statistics are gathered; what is computed of a
    few numbers is not tried again. Replay: the number is in the message."""
    decoder, x = small_decoder(group_norm()), latent(2, 14, 12)
    graph, wanted = graph_of(decoder, x), torch.empty(1, 3, 2, 28, 24)
    program = compiled_tiles(graph, x, level=2, halo=2, statistic_passes=1).program
    with FailingOperators(set(), activations=True) as counting:
        in_tiles(graph, x, program, wanted)
    assert counting.count > 150
    reliefs: list[int] = []
    recover, got = retry_out_of_memory(lambda: reliefs.append(1)), torch.empty_like(wanted)
    numbers = range(4, counting.count, counting.count // how_much.of(12, 30))
    for number in numbers:
        with FailingOperators({number}, activations=True):
            in_tiles(graph, x, program, got, recover=recover)
        assert torch.equal(got, wanted), number
    assert len(reliefs) == len(numbers)
    wants, calls = tiled_run.statistics.channel_moments, itertools.count()

    def sometimes(frames: Any) -> Any:
        if next(calls) % 3 == 0:
            raise torch.OutOfMemoryError("the test's, in the true statistics")
        return wants(frames)

    monkeypatch.setattr(tiled_run.statistics, "channel_moments", sometimes)
    in_tiles(graph, x, program, got, recover=recover)
    assert next(calls) > 30
    assert torch.equal(got, wanted)


def test_progress_counts_to_its_end_and_a_stop_is_seen() -> None:
    decoder, x = small_decoder(group_norm()), latent(5, 24, 20)
    counter = Counter()
    request = {"level": 2, "chunk": 2, "statistic_passes": 1}
    _, _, program = tiled(decoder, x, {"counter": counter}, **request)
    steps, tiles = counter.steps, program.candidate["tiles"]
    assert len(steps) == program.candidate["steps"]
    assert tiles > 3
    assert {s.tile for s in steps if s.kind == "statistics"} == set(range(tiles))
    emitted = [s.tile for s in steps if s.kind == "emit"][-3 * tiles :]
    assert emitted == [n for n in range(tiles) for _ in range(3)]
    stopping = Counter(50, DecodeCancelled)
    with pytest.raises(DecodeCancelled):
        tiled(decoder, x, {"counter": stopping}, **request)
    assert len(stopping.steps) == 50


def test_memory_of_tiles_is_what_is_stated_and_does_not_grow_with_the_video() -> None:
    decoder, peaks = small_decoder(attends=False), set()
    for frames in (12, 40):
        x = latent(frames, 24, 20)
        graph = graph_of(decoder, x)
        program = compiled_tiles(graph, x, level=2, chunk=2, input_bytes=4).program
        out = torch.zeros(1, 3, frames, 48, 40)
        with LiveStorages([x, out, *parameters_of(graph)], CPU) as live:
            in_tiles(graph, x, program, out)
        peaks.add(live.peak)
        assert live.peak <= program.candidate["device_bytes"]
    assert len(peaks) == 1


@pytest.mark.parametrize(
    ("length", "keep", "block"), [(20, 10, 4), (64, 17, 8), (9, 3, 3), (5, 9, 2)]
)
def test_blocks_are_spread_evenly_and_in_order(length: int, keep: int, block: int) -> None:
    found = spread(length, keep, block)
    assert found == sorted(set(found))
    assert len(found) == min(keep, length)
    assert 0 <= found[0] <= length - 1 - found[-1] + 1
    assert spread(length, keep, block, from_start=True)[0] == 0


@pytest.mark.parametrize("result", [torch.float32, torch.bfloat16])
def test_tiles_in_bfloat16_differ_by_its_rounding_only(result: torch.dtype) -> None:
    """No further from the decode in float32 than the plain reading in bfloat16, but for half a
    decibel: the same roundings in another order."""
    decoder, x = small_decoder(group_norm()), latent(3, 24, 20)
    wanted = decoder(PlainEngine(), x)
    plain = decoder(PlainEngine(ModuleWeights(torch.bfloat16, CPU)), x.bfloat16())
    graph, narrow = graph_of(decoder, x), x.bfloat16()
    program = compiled_tiles(graph, narrow, level=3, chunk=EVERYTHING).program
    in_tiles(graph, narrow, program, out := torch.empty(wanted.shape, dtype=result))
    assert psnr(out.float(), wanted) >= psnr(plain.float(), wanted) - 0.5
