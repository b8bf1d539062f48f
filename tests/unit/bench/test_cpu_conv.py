"""`python -m tools.dev.bench conv`: layers, timing, errors, figures, the command on tiny layers."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hy3d_rocm import _native
from hy3d_rocm.bench.timing import BenchError
from hy3d_rocm.conv import prepared
from tools.dev.bench import cpu_conv
from tools.dev.bench.__main__ import main
from tools.dev.bench.children import needed_variables, run_quietly
from tools.dev.bench.cpu_conv import COLD, OURS, TORCH, ConvReport, ConvRow, ConvSettings, run_conv
from tools.dev.bench.cpu_errors import exact_blocks, largest_error
from tools.dev.bench.cpu_layers import OTHER, WIDE, Choice, Operands, choose_layers, group_of
from tools.dev.bench.cpu_memory import SLACK_BYTES, memory_job
from tools.dev.bench.cpu_sums import sums_of, targets
from tools.dev.bench.cpu_text import conv_dict, conv_text, is_over
from tools.dev.bench.cpu_timing import PeakProbe, median_ratio, timed_rounds
from tools.dev.bench.cpu_watch import Told, listening
from tools.dev.bench.gpu_layers import Layer

needs_core = pytest.mark.skipif(not _native.available, reason=f"no C core: {_native.missing}")


def layer(size: tuple[int, ...], weight: tuple[int, ...], **options: Any) -> Layer:
    axes = len(weight) - 2
    usual = {"stride": (1,) * axes, "padding": (0,) * axes, "dilation": (1,) * axes, "groups": 1,
             "count": 2}  # fmt: skip
    return Layer("tiny", size, weight, **{**usual, **options})


SMALL = layer((1, 16, 5, 10, 10), (16, 16, 3, 3, 3))
FLAT = layer((2, 8, 9, 9), (4, 8, 3, 3), padding=(1, 1))


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    """A file of two sets; the first layer is in both."""
    rows = [
        {"input": x.input, "weight": x.weight, "stride": x.stride, "padding": x.padding,
         "dilation": x.dilation, "groups": x.groups, "count": x.count}
        for x in (SMALL, FLAT)
    ]  # fmt: skip
    file = tmp_path / "layers.json"
    file.write_text(json.dumps({"one": {"layers": rows}, "two": {"layers": rows[:1]}}))
    return file


def test_a_shape_of_two_sets_is_measured_once_and_counts_for_both(shapes: Path) -> None:
    found = choose_layers(Choice(shapes, ("one", "two"), min_gflop=0))
    assert [(one.weight, one.count) for one in found] == [(SMALL.weight, 4), (FLAT.weight, 2)]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"kernel": (3, 3)}, [FLAT.weight]),
        ({"min_channels": 5}, [SMALL.weight]),
        ({"max_gflop": FLAT.flops / 1e9}, [FLAT.weight]),
        ({"min_gflop": SMALL.flops / 1e9}, [SMALL.weight]),
    ],
)
def test_layers_are_chosen_by_kernel_channels_and_size(
    shapes: Path, options: dict[str, Any], kept: list[Any]
) -> None:
    found = choose_layers(Choice(shapes, ("one",), **{"min_gflop": 0, **options}))
    assert [one.weight for one in found] == kept


def test_a_choice_without_layers_is_a_sentence(shapes: Path) -> None:
    with pytest.raises(BenchError, match="no layer of one is left"):
        choose_layers(Choice(shapes, ("one",), min_channels=999, min_gflop=0))
    with pytest.raises(BenchError, match="no set 'three'; it has one, two"):
        choose_layers(Choice(shapes, ("three",)))


def test_the_shipped_file_has_the_layers_that_the_targets_are_set_for() -> None:
    groups = [group_of(one) for one in choose_layers(Choice())]
    assert (groups.count(WIDE), groups.count(OTHER)) == (17, 19)


def integers(one: Layer) -> Operands:
    """Sums of these are exact in float64 and float32, in any order."""
    generator = torch.Generator().manual_seed(7)
    tensors = (
        torch.randint(-8, 9, size, generator=generator).float()
        for size in (one.input, one.weight, one.weight[:1])
    )
    return Operands(one, *tensors)


@pytest.mark.parametrize(
    "one",
    [
        layer((1, 2, 5, 9, 8), (3, 2, 3, 3, 3)),
        layer((2, 4, 4, 9, 11), (6, 2, 3, 3, 3), padding=(1, 1, 2), groups=2),
        layer((1, 2, 7, 13, 12), (3, 2, 3, 2, 3), stride=(2, 3, 2), dilation=(1, 2, 1),
              padding=(2, 0, 1)),
        layer((2, 3, 12, 10), (2, 3, 3, 3), padding=(1, 1), stride=(1, 2)),
        layer((1, 3, 1, 1, 1), (2, 3, 1, 1, 1)),
    ],
)  # fmt: skip
def test_sampled_float64_blocks_are_those_of_the_whole_convolution(one: Layer) -> None:
    operands = integers(one)
    function = getattr(torch.nn.functional, f"conv{one.ndim}d")
    whole = function(*(t.double() for t in (operands.x, operands.weight, operands.bias)),
                     one.stride, one.padding, one.dilation, one.groups)  # fmt: skip
    blocks = exact_blocks(operands, side=3)
    for found in blocks:
        assert found.sums.numel() > 0
        assert torch.equal(found.sums, whole[0][(slice(None), *found.block)])
    assert largest_error(whole, blocks) == 0
    middle = blocks[-1].block
    whole[(0, 0, *(part.start for part in middle))] += 0.25
    assert largest_error(whole, blocks) == 0.25
    whole[(0, 0, *(part.start for part in middle))] = math.nan
    assert math.isnan(largest_error(whole, blocks))


class Clock:
    """Time passes only in calls."""

    def __init__(self) -> None:
        self.now, self.order = 0.0, ""

    def __call__(self) -> float:
        return self.now

    def taking(self, name: str, *seconds: float) -> Any:
        left = list(seconds)

        def call() -> None:
            self.order += name
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


def test_calls_take_turns_and_short_ones_fill_a_sample() -> None:
    clock = Clock()
    spent = {"a": 0.02, "b": 0.2, "c": 0.01}
    functions = {name: clock.taking(name, seconds) for name, seconds in spent.items()}
    times, _ = timed_rounds(functions, 2, clock, single=("c",), sample_s=0.05)
    assert clock.order == "ab" + "aaabc" * 2
    assert times["a"] == pytest.approx([0.02, 0.02], rel=1e-12)
    assert len(times["b"]) == len(times["c"]) == 2


def test_the_ratio_is_of_pairs_so_that_a_clock_that_changes_cancels() -> None:
    ours, theirs = [1.0, 2.0, 4.0], [3.0, 6.0, 12.0]
    assert median_ratio(theirs, ours) == 3.0
    assert median_ratio([1.0, 9.0, 9.0], [1.0, 1.0, 3.0]) == 3.0
    assert median_ratio([], []) is None


def test_variables_hold_torch_to_the_level_that_is_asked_for() -> None:
    assert needed_variables("float32", None, {}) == {}
    avx2 = {"HY3D_CPU": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
            "OPENBLAS_CORETYPE": "Haswell"}  # fmt: skip
    assert needed_variables("float32", "avx2", {}) == avx2
    assert needed_variables("bfloat16", None, {"HY3D_CPU": "avx2"}) == avx2
    assert needed_variables("bfloat16", None, {}) == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    users = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}
    assert needed_variables("bfloat16", None, users) == users
    ref = {"HY3D_CPU": "ref", "OPENBLAS_CORETYPE": "Prescott"}
    assert needed_variables("float32", "ref", {}) == ref
    users = {"OPENBLAS_CORETYPE": "Core2"}
    assert needed_variables("float64", "ref", users) == {"HY3D_CPU": "ref", **users}
    assert needed_variables("float64", None, {}) == {}


@needs_core
@pytest.mark.parametrize(
    ("described", "name"),
    [
        ("OpenBLAS 0.3.34 DYNAMIC_ARCH NO_AFFINITY; core type Zen, at most 63 callers, from /a/b",
         "OpenBLAS 0.3.34"),
        ("not an OpenBLAS: /opt/mkl/libmkl_rt.so.2; one caller at a time, by its own threads",
         "libmkl_rt.so.2"),
        ("not an OpenBLAS: libblas.so.3", "libblas.so.3"),
    ],
)  # fmt: skip
def test_who_computed_names_the_library_where_it_is_blas(
    monkeypatch: pytest.MonkeyPatch, described: str, name: str
) -> None:
    monkeypatch.setitem(vars(_native), "blas_info", lambda: {"text": described})
    assert Told("panel-sgemm", 2, 1).library == name
    assert Told("panel-dgemm", 2, 1).text == f"panel-dgemm x2, {name}"
    assert Told("thin", 1, 1).library is None
    assert Told("thin", 1, 1).text == "thin x1"


@needs_core
def test_a_layer_in_float64_is_computed_by_blas_at_half_the_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_conv, "PeakProbe", lambda *_: lambda: 2e12)
    report = run_conv(ConvSettings([SMALL], "float64", repeats=1, sample_s=0.001))
    row = report.rows[0]
    assert row.told is not None
    assert row.told.strategy == "panel-dgemm"
    assert row.told.library
    assert row.errors[OURS] < 1e-12  # 432 terms in double
    single = run_conv(ConvSettings([SMALL], repeats=1, sample_s=0.001))
    assert (report.peak, single.peak) == (1e12, 2e12)
    assert f"panel-dgemm x1, {row.told.library}" in conv_text(report)
    assert conv_dict(report)["layers"][0]["library"] == row.told.library
    assert conv_dict(single)["layers"][0]["library"] is None


@needs_core
def test_listening_hears_public_calls_and_leaves_no_trace() -> None:
    import hy3d_rocm

    real = _native.conv3d
    with pytest.raises(ZeroDivisionError), listening() as told:  # noqa: PT012
        hy3d_rocm.conv3d(torch.ones(1, 2, 3, 8, 8), torch.ones(2, 2, 3, 3, 3), threads=1)
        raise ZeroDivisionError
    assert _native.conv3d is real
    assert [one.threads for one in told] == [1]
    assert told[0].strategy


@needs_core
def test_the_peak_counts_768_operations_a_round_and_eight_grains_a_thread() -> None:
    from hy3d_rocm import _core

    assert _core.peak_run(1, 10) == 8 * 10 * 768
    with pytest.raises(ValueError, match=r"rounds is 0: it must be 1 to 2\*\*22"):
        _core.peak_run(1, 0)
    with pytest.raises(ValueError, match="threads is -1"):
        _core.peak_run(-1, 1)
    with pytest.raises(TypeError, match="threads"):
        _core.peak_run("1", 1)


@needs_core
def test_a_clock_that_stands_still_does_not_run_the_peak_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds: list[int] = []
    monkeypatch.setattr(PeakProbe, "_run", lambda self: rounds.append(self.rounds) or 1.0)
    PeakProbe(1, Clock())()
    assert rounds == [1000, 16_000, 256_000, 4_096_000, 1 << 22]


def row(one: Layer, ours: float, theirs: float, **options: Any) -> ConvRow:
    told = Told("double", 2, 4 << 20)
    return ConvRow(one, told, {OURS: [ours], TORCH: [theirs]}, [1e9], {OURS: 1e-6, TORCH: 1e-7},
                   10, **options)  # fmt: skip


def report(rows: list[ConvRow], **options: Any) -> ConvReport:
    return ConvReport(ConvSettings([one.layer for one in rows], **options), rows)


LARGE = layer((1, 64, 3, 9, 9), (64, 64, 3, 3, 3), count=3)


def test_sums_weigh_totals_by_count_and_ratios_alike() -> None:
    second = layer((1, 64, 3, 8, 8), (64, 64, 3, 3, 3), count=1)
    rows = [row(LARGE, 1.0, 2.0), row(second, 1.0, 8.0), row(SMALL, 1.0, 0.5)]
    wide, other = sums_of(report(rows))
    assert (wide.group, wide.layers) == (WIDE, 2)
    assert wide.geomean == pytest.approx(4.0, rel=1e-12)
    assert wide.lowest == (2.0, LARGE.text)
    assert wide.totals == {OURS: 4.0, TORCH: 14.0}
    assert wide.total_ratio == 3.5
    assert wide.workspace is not None
    assert wide.workspace[0] == 2 << 20
    assert (other.geomean, other.total_ratio) == (0.5, 0.5)


def test_targets_pass_fail_and_follow_level_type_and_accuracy() -> None:
    rows = [row(LARGE, 1.0, 2.7), row(SMALL, 1.0, 0.9)]

    def verdicts(level: str, **options: Any) -> list[str]:
        return [one.verdict for one in targets(report(rows, **options), level)]

    # Speed, total, lowest, error, workspace; then the others' speed and lowest.
    assert verdicts("avx512") == ["FAIL", "FAIL", "pass", "pass", "pass", "FAIL", "pass"]
    assert verdicts("avx2") == ["pass", "pass", "pass", "pass", "pass", "FAIL", "pass"]
    assert verdicts("avx512", accuracy="exact") == ["pass", "FAIL", "pass"]
    # Speed, total, error beside torch's, workspace.
    assert verdicts("avx512", dtype="bfloat16") == ["pass", "pass", "FAIL", "pass"]
    assert verdicts("avx512", dtype="float16") == []
    rows[0].errors[OURS] = math.nan
    assert verdicts("avx512")[3] == "FAIL"


def test_a_figure_that_is_missing_is_a_line_with_its_reason() -> None:
    lost = ConvRow(SMALL, reason="torch: RuntimeError: no kernel")
    text = conv_text(report([lost, row(LARGE, 0.5, 1.0)]))
    assert f"{SMALL.text}: torch: RuntimeError: no kernel" in text
    assert "2.00" in text
    assert conv_dict(report([lost]))["measured"] is False


def test_a_busy_machine_is_told_from_the_peak() -> None:
    steady, busy = (report([row(LARGE, 1.0, 2.0)]) for _ in range(2))
    steady.rows[0].peaks = [100e9, 61e9]
    busy.rows[0].peaks = [100e9, 59e9]
    assert "Other programs" not in conv_text(steady)
    assert "(59 to 100)" in conv_text(busy)
    assert "--clock cpu is steadier" in conv_text(busy)
    two = report([row(LARGE, 1.0, 2.0)], threads=2)
    two.rows[0].peaks = busy.rows[0].peaks
    assert "repeat this on a quiet machine" in conv_text(two)


def test_more_memory_than_said_is_seen() -> None:
    kept = row(LARGE, 1.0, 2.0, extra_bytes={OURS: 5 << 20, TORCH: 9 << 20})
    assert not is_over(kept)
    kept.extra_bytes[OURS] += 1
    assert is_over(kept)
    assert f"{LARGE.text}" in conv_text(report([kept])).split("More than the workspace")[1]


class Cache:
    """The cache of prepared weights, without weights."""

    def __init__(self) -> None:
        self.cleared = 0

    def clear(self) -> None:
        self.cleared += 1

    def stats(self) -> prepared.CacheStats:
        return prepared.CacheStats(3, 1, 1, 0, 0, 1, 4096, 1 << 20)


@needs_core
def test_cold_calls_prepare_their_weights_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache()
    monkeypatch.setattr(prepared, "cache", lambda: cache)
    monkeypatch.setattr(cpu_conv, "our_call", lambda *_: cpu_conv.torch_call(_[0]))
    found = run_conv(ConvSettings([FLAT], repeats=3, cold=True, sample_s=1e-4))
    assert cache.cleared == 1 + 3
    assert [len(found.rows[0].seconds[name]) for name in (COLD, OURS, TORCH)] == [3, 3, 3]
    text = conv_text(found)
    assert "cold ms" in text
    assert "4.0 kB" in text
    assert "3 of 4 calls found their weights prepared (75%)" in text
    assert conv_dict(found)["cache"]["hit_rate"] == 0.75


@needs_core
def test_an_interrupt_keeps_the_figures_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    made = cpu_conv.make_operands

    def interrupted(one: Layer, dtype: str) -> Operands:
        if one is SMALL:
            raise KeyboardInterrupt
        return made(one, dtype)

    monkeypatch.setattr(cpu_conv, "make_operands", interrupted)
    threads = torch.get_num_threads()
    found = run_conv(ConvSettings([FLAT, SMALL], threads=1, repeats=1, sample_s=1e-4))
    assert found.interrupted
    assert [one.layer for one in found.rows] == [FLAT]
    assert torch.get_num_threads() == threads
    assert "Interrupted" in conv_text(found)


@needs_core
def test_the_command_writes_a_table_json_and_a_plot(
    shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "conv.json", tmp_path / "conv.png"
    command = ["conv", "--shapes", str(shapes), "--entries", "one", "--min-gflop", "0",
               "--threads", "1", "--repeats", "1", "--accuracy", "exact"]  # fmt: skip
    assert main([*command, "--json", str(file), "--plot", str(picture)]) == 0
    figures = json.loads(file.read_text())
    assert [one["text"] for one in figures["layers"]] == [SMALL.text, FLAT.text]
    for one in figures["layers"]:
        assert one["ratio"] > 0
        assert one["told"]["threads"] == 1
        # Sums of at most 433 products of numbers up to 1, each operation rounding by 2^-24.
        products = math.prod(one["layer"]["weight"][1:]) + 1
        assert one["errors"]["ours"] < products**2 * 2.0**-24
    assert figures["peak_gflops"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert SMALL.text in capsys.readouterr().out


@needs_core
def test_a_level_is_measured_in_a_child(shapes: Path, tmp_path: Path) -> None:
    if "avx2" not in _native.cpu_info()["levels"]:
        pytest.skip("no AVX2 here")
    file = tmp_path / "conv.json"
    command = ["conv", "--shapes", str(shapes), "--entries", "two", "--min-gflop", "0",
               "--threads", "1", "--repeats", "1", "--cpu-level", "avx2"]  # fmt: skip
    assert main([*command, "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    assert figures["machine"]["level"] == "avx2"
    assert figures["machine"]["variables"]["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    assert len(figures["layers"]) == 1


@needs_core
def test_memory_of_a_call_is_measured_in_a_child_and_is_at_most_what_was_said() -> None:
    import hy3d_rocm

    wide = layer((1, 16, 6, 40, 40), (32, 16, 3, 3, 3))
    found = run_quietly(memory_job(wide, "ours", "float32", "exact", 1), {"MALLOC_ARENA_MAX": "1"})
    with listening() as told:
        hy3d_rocm.conv3d(torch.ones(wide.input), torch.ones(wide.weight), threads=1)
    assert 0 <= found["bytes"] <= told[0].workspace_bytes + SLACK_BYTES


def test_a_child_that_fails_is_a_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BenchError, match="ended with code 1"):
        run_quietly({"run": "json:loads"}, {})  # does not import torch
    assert "TypeError: the JSON object must be str" in capfd.readouterr().err


def test_options_that_cannot_be_met_are_sentences(
    shapes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["conv", "--shapes", str(shapes), "--entries", "one", "--min-gflop", "0"]
    if _native.available:
        assert main([*command, "--clock", "cpu", "--threads", "2"]) == 2
        assert "--clock cpu measures one thread" in capsys.readouterr().err
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        assert main([*command, "--plot", "conv.png"]) == 1
        assert "pip install matplotlib" in capsys.readouterr().err
    for bad in (["--kernel", "3x"], ["--threads", "0"], ["--max-gflop", "much"]):
        with pytest.raises(SystemExit):
            main([*command, *bad])
    monkeypatch.setattr(_native, "available", False)
    assert main(command) == 1
    assert "the C core is not there" in capsys.readouterr().err
