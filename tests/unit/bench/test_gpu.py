"""`python -m tools.dev.bench gpu`: its arithmetic, with scripted tiers and a clock of figures."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from places import ROOT
from router_doubles import one_thread
from tier_calls import make_call

from hy3d_rocm import cli
from hy3d_rocm.bench.decode_gpu import exact_float32
from hy3d_rocm.bench.timing import BenchError, Target
from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.probe import Case, Outcome
from hy3d_rocm.tune.measure import share
from tools.dev.bench import gpu_command
from tools.dev.bench.__main__ import main
from tools.dev.bench.gpu import GpuReport, GpuSettings, Peak, run_gpu
from tools.dev.bench.gpu_cells import LAYOUTS, Cell, Figure
from tools.dev.bench.gpu_errors import reference
from tools.dev.bench.gpu_layers import DEFAULT_SETS, SHIPPED, Layer, load_layers
from tools.dev.bench.gpu_prove import spec_of, unproven
from tools.dev.bench.gpu_summary import checks, geomean, summarise
from tools.dev.bench.gpu_sweep import sweep_text
from tools.dev.bench.gpu_text import gpu_dict, gpu_text

CPU = torch.device("cpu")
SMALL = Layer("s", (1, 4, 4, 6, 5), (6, 4, 3, 3, 3), (1,) * 3, (0,) * 3, (1,) * 3, 1, 2)
FLAT = Layer("s", (2, 4, 6, 5), (3, 4, 3, 3), (1, 1), (1, 1), (1, 1), 1, 2)


class Lab:
    """Scripted tiers and a watch that takes each one's time from a table."""

    def __init__(self, **milliseconds: float) -> None:
        self.milliseconds = {"default": 1.0, **milliseconds}
        self.acts: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        self.refusals: dict[str, str] = {}
        self.extra: dict[str, int] = {}
        self.now = 0.0
        self.last = "default"

    def make(self, name: str) -> ScriptedTier:
        return ScriptedTier(name, self)

    def clock(self) -> float:
        return self.now

    def seconds(self, function: Callable[[], Any], calls: int) -> float:
        self.last = "default"
        function()
        taken = self.milliseconds[self.last] / 1e3
        self.now += calls * taken
        return taken

    def watched(self, function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int | None]:
        self.last = "default"
        return function(), self.extra.get(self.last, 0)

    def run(self, *layers: Layer, **options: Any) -> GpuReport:
        settings = GpuSettings(
            layers or (SMALL,), CPU, clock=self.clock, watch=self, make=self.make,
            **{"dtypes": ("f32",), **options},
        )  # fmt: skip
        with one_thread():
            return run_gpu(settings)


class ScriptedTier:
    def __init__(self, name: str, lab: Lab) -> None:
        self.name, self.lab = name, lab

    def label(self, call: ConvCall) -> str:
        return self.name

    def workspace_bytes(self, spec: ConvSpec) -> int:
        return 0

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        return self.lab.refusals.get(self.name)

    def run(self, call: ConvCall) -> torch.Tensor:
        out = call.run_current()
        self.lab.last = self.name
        return self.lab.acts.get(self.name, lambda t: t)(out)


def raising(text: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def act(out: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(text)

    return act


def verdicts(report: GpuReport) -> dict[str, str]:
    return {check.text: check.verdict for check in checks(summarise(report))}


def test_the_bench_takes_the_layers_that_the_tests_use() -> None:
    assert SHIPPED.samefile(ROOT / "tests/shapes/video_vae_layers.json")


def test_every_layer_of_a_gflop_is_taken_once() -> None:
    layers = load_layers(None, DEFAULT_SETS, 1.0)
    assert len(layers) == 24 + 21
    data = json.loads(SHIPPED.read_text())
    listed = [row["gflop"] for name in DEFAULT_SETS for row in data[name]["layers"]]
    wanted = sorted(g for g in listed if g >= 1)
    for mine, theirs in zip(sorted(layer.flops / 1e9 for layer in layers), wanted, strict=True):
        assert abs(mine - theirs) <= 0.005001  # the file has two digits after the point


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "has no set 's'"),
        ("nonsense", "is no list of layers"),
        ('{"s": {"layers": [{"input": [1]}]}}', "is no list of layers"),
        ('{"s": {"layers": []}}', "no layer of s"),
    ],
)
def test_a_file_that_is_no_list_of_layers_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "layers.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=said):
        load_layers(path, ("s",), 1.0)
    with pytest.raises(BenchError, match="can't be read"):
        load_layers(tmp_path / "none.json", ("s",), 1.0)


def test_ratios_are_those_of_the_clock_in_each_layout() -> None:
    lab = Lab(triton=0.5, gemm=2.0)
    lab.extra = {"triton": 10, "gemm": 20}
    report = lab.run(SMALL, FLAT, tiers=("triton", "gemm"))
    assert [cell.layout for cell in report.cells] == [*LAYOUTS] * 2
    for cell in report.cells:
        assert cell.ratio("triton") == 0.5
        assert cell.ratio("gemm") == 2.0
        assert cell.error_ratios("gemm") == (1.0, 1.0)
        assert cell.figures["gemm"].extra_bytes == 20
    for summary in summarise(report):
        assert summary.count == 2
        expected = {"default": 1.0, "triton": 0.5, "gemm": 2.0}[summary.tier]
        assert summary.geomean == pytest.approx(expected, rel=1e-15)
    assert set(verdicts(report).values()) == {"pass"}


def test_a_tier_that_fails_or_refuses_is_said_and_the_others_go_on() -> None:
    lab = Lab(triton=0.5, gemm=2.0, native=3.0)
    lab.acts["triton"] = raising("HIP out of memory. Tried to allocate 8.54 GiB")
    lab.refusals["native"] = "too large"
    report = lab.run(tiers=("triton", "gemm", "native"))
    text = gpu_text(report)
    assert "HIP out of memory" in text
    assert "refused: too large" in text
    assert verdicts(report)["triton, f32, NCDHW: time, geometric mean"] == "no figure"
    assert verdicts(report)["gemm, f32, NCDHW: time, geometric mean"] == "pass"


def test_a_lost_device_ends_the_bench_and_keeps_the_figures() -> None:
    lab = Lab(gemm=0.5, conv2d=1.0)
    lab.acts["conv2d"] = raising("HIP error: an illegal memory access was encountered")
    report = lab.run(SMALL, FLAT, tiers=("gemm", "conv2d"))
    assert len(report.cells) == 4
    text = gpu_text(report)
    assert "Ended early" in text
    assert "illegal memory access" in text
    assert "not all layers were measured" in text


@pytest.mark.parametrize("wrong", [lambda out: out + 1, lambda out: out * math.nan])
def test_a_wrong_result_fails_its_target(wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
    lab = Lab(triton=0.5, gemm=1.0)
    lab.acts["triton"] = wrong
    found = verdicts(lab.run(SMALL, FLAT, tiers=("triton", "gemm")))
    assert found["triton, f32, NCDHW: RMS error, worst layer"] == "FAIL"
    assert found["triton, f32, NCDHW: largest error, geometric mean"] == "FAIL"
    assert found["gemm, f32, NCDHW: RMS error, worst layer"] == "pass"


def test_slow_tiers_fail_their_targets_and_name_the_layer() -> None:
    lab = Lab(triton=1.31, gemm=2.51)
    lab.extra = {"triton": 65 * 2**20, "gemm": 257 * 2**20}
    report = lab.run(tiers=("triton", "gemm"), dtypes=("bf16", "f32"))
    found = checks(summarise(report))
    slow = [c for c in found if "time" in c.text or "memory" in c.text]
    assert {c.verdict for c in slow} == {"FAIL"}
    assert all(c.at == SMALL.text for c in slow if "worst" in c.text)
    limits = {c.text: c.limit for c in found}
    assert limits["triton, bf16, channels-last: time, geometric mean"] == 1.15
    assert limits["triton, f32, channels-last: time, geometric mean"] == 1.0
    assert limits["gemm, bf16, NCDHW: memory beyond the result"] == 256


def test_what_the_time_does_not_allow_is_listed() -> None:
    lab = Lab(triton=1000.0, conv2d=1.0)
    large = dataclasses.replace(SMALL, input=(1, 4, 4, 6, 6))
    report = lab.run(SMALL, large, tiers=("triton", "conv2d"), seconds=1.0)
    assert report.left_out == [
        f"{large.text}, f32: triton", f"{SMALL.text}, f32: conv2d", f"{large.text}, f32: conv2d",
    ]  # fmt: skip
    text = gpu_text(report)
    assert all(f"  {line}" in text for line in report.left_out)
    assert "not all layers were measured" in text


def test_on_rocm_the_library_is_called_only_where_a_child_came_back() -> None:
    """In order of layers, dtypes, layouts: the first of the four calls hung."""
    lab = Lab(gemm=2.0, conv2d=3.0)
    asked: list[Case] = []

    def probe(cases: list[Case], **options: Any) -> list[Outcome]:
        asked.extend(cases)
        return [Outcome(c, "hang" if i == 0 else "ok", detail="gone") for i, c in enumerate(cases)]

    def prove(*arguments: Any) -> Any:
        return unproven(*arguments, probe)

    report = lab.run(tiers=("gemm", "conv2d"), is_rocm=True, prove=prove)
    assert [case.tier for case in asked] == ["vendor", "conv2d"] * 2
    hung = [cell for cell in report.cells if cell.layout == LAYOUTS[0]]
    assert all(c.figures["default"].reason == "not called: hang in a child: gone" for c in hung)
    assert [c.ratio("gemm") for c in report.cells if "gemm" in c.figures] == [None, 2.0]
    assert [c.figures["conv2d"].seconds for c in report.cells if "conv2d" in c.figures] == [
        3e-3
    ] * 2
    assert "no figure, default: not called: hang" in gpu_text(report)


@pytest.mark.parametrize("layer", [SMALL, FLAT])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layers_spec_is_that_of_its_call(layer: Layer, layout: str) -> None:
    x, weight = torch.zeros(layer.input), torch.zeros(layer.weight)
    if layout == LAYOUTS[1]:
        last = torch.channels_last if layer.ndim == 2 else torch.channels_last_3d
        x, weight = (t.to(memory_format=last) for t in (x, weight))
    call = make_call(x, weight, torch.zeros(layer.weight[0]), layer.stride, layer.padding)
    assert spec_of(layer, "f32", layout, CPU) == call.spec


def test_ctrl_c_keeps_what_was_measured() -> None:
    lab = Lab(triton=0.5)
    calls = iter(range(10**6))

    def act(out: torch.Tensor) -> torch.Tensor:
        if next(calls) > 20:
            raise KeyboardInterrupt
        return out

    lab.acts["triton"] = act
    report = lab.run(*[SMALL] * 9, tiers=("triton",))
    assert report.interrupted
    assert 0 < len(report.cells) < 18
    assert "Interrupted" in gpu_text(report)


def test_tf32_is_off_inside_and_as_before_after_an_error() -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (cudnn.allow_tf32, matmul.allow_tf32)
    cudnn.allow_tf32, matmul.allow_tf32 = True, True
    try:
        inside = []
        with contextlib.suppress(ZeroDivisionError), exact_float32():
            inside += [cudnn.allow_tf32, matmul.allow_tf32]
            raise ZeroDivisionError
        assert inside == [False, False]
        assert (cudnn.allow_tf32, matmul.allow_tf32) == (True, True)
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = before


@pytest.mark.parametrize(
    ("size", "weight", "options"),
    [
        ((2, 4, 5, 7, 6), (6, 4, 3, 3, 3), {}),
        ((1, 4, 5, 7, 6), (6, 2, 3, 2, 1), {"stride": (2, 1, 3), "groups": 2}),
        ((1, 3, 5, 9, 8), (4, 3, 2, 3, 3), {"padding": (1, 2, 1), "dilation": (2, 2, 1)}),
        ((3, 4, 7, 6), (4, 1, 3, 3), {"padding": 1, "groups": 4}),
    ],
)
def test_the_reference_is_the_convolution(
    size: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]
) -> None:
    """Small whole numbers: every sum is exact."""
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randint(-4, 5, s, generator=generator).float() for s in (size, weight))
    b = torch.randint(-4, 5, weight[:1], generator=generator).float()
    conv = F.conv3d if len(weight) == 5 else F.conv2d
    truth = reference(make_call(x, w, b, **options))
    assert truth.exact.numel() == 256
    assert truth.error(conv(x, w, b, **options)) == (0.0, 0.0)
    assert truth.error(conv(x, w, b, **options) + 2.0) == (2.0, 2.0)


@pytest.mark.parametrize("seconds", [1e-6, 3e-5, 1e-3, 0.02, 0.2, 0.3, 5.0])
def test_small_calls_are_queued_and_large_ones_are_few(seconds: float) -> None:
    calls, rounds = share(seconds, 0.25)
    assert 1 <= calls <= 20
    assert calls * seconds >= 2e-3 or calls == 20
    assert rounds >= (2 if seconds > 0.25 else 3)
    assert rounds <= 7
    assert calls * rounds * seconds <= max(0.25, 3 * calls * seconds)


def test_the_geometric_mean_shows_what_is_no_number() -> None:
    assert geomean([]) is None
    assert geomean([0.5, 2.0]) == 1.0
    assert math.isnan(geomean([1.0, math.nan]) or 0.0)
    assert Target("t", math.nan, 1.0).verdict == "FAIL"
    assert Target("t", None, 1.0).verdict == "no figure"
    assert Target("t", 1.0, 1.0).verdict == "pass"


def test_nothing_beats_arithmetic_and_memory() -> None:
    peak = Peak({"bf16": 1e12, "f32": 1e11}, 1e9)
    flops = 2 * 6 * (2 * 4 * 3) * 4 * 27
    assert SMALL.flops == flops
    moved = 4 * 4 * 6 * 5 + 6 * 4 * 27 + 6 * 2 * 4 * 3
    assert peak.least_seconds(SMALL, "bf16") == max(flops / 1e12, 2 * moved / 1e9)
    assert peak.least_seconds(SMALL, "f32") == max(flops / 1e11, 4 * moved / 1e9)


def test_the_sweep_says_what_the_guess_lost() -> None:
    cell = Cell(SMALL, "bf16", LAYOUTS[0], {"default": Figure()}, ("64x64x32w4s2g8",))
    cell.sweep = {"": 1.1e-3, "128x64x32w4s2g8": 1.0e-3, "64x64x32w4s2g8": 1.1e-3}
    assert sweep_text(cell) == (
        "took 64x64x32w4s2g8, 1.1 ms; best 128x64x32w4s2g8, 1 ms (10% lost);"
        " then 64x64x32w4s2g8 1.1"
    )


@pytest.fixture
def no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_command, "find_gpu", lambda text: CPU)


@pytest.mark.usefixtures("no_gpu_needed")
def test_the_command_runs_real_tiers_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layer = {k: v for k, v in dataclasses.asdict(SMALL).items() if k != "set"}
    shapes, out = tmp_path / "shapes.json", tmp_path / "out.json"
    shapes.write_text(json.dumps({"mine": {"layers": [layer]}}))
    words = ["gpu", "--shapes", str(shapes), "--sets", "mine", "--min-gflop", "1e-6"]
    words += ["--dtypes", "f32", "--tiers", "gemm,native,triton", "--json", str(out)]
    with one_thread():
        assert main(words) == 0
    said = capsys.readouterr()
    assert "Targets:" in said.out
    assert SMALL.text in said.err
    data = json.loads(out.read_text())
    assert [cell["layout"] for cell in data["cells"]] == [*LAYOUTS] * 2
    assert data["cells"][0]["figures"]["gemm"]["seconds"] > 0
    for words_of_error in (["--tiers", "magic"], ["--dtypes", "f8"]):
        assert main([*words, *words_of_error]) == 1
        assert "is none of" in capsys.readouterr().err


def test_without_a_gpu_a_sentence_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for command, arguments in ((main, ["gpu"]), (cli.main, ["bench", "decode"])):
        assert command(arguments) == 2
        assert "PyTorch sees no GPU" in capsys.readouterr().err


def test_the_report_is_plain_json() -> None:
    report = Lab(triton=0.5).run(tiers=("triton",))
    assert json.loads(json.dumps(gpu_dict(report)))["left_out"] == []
