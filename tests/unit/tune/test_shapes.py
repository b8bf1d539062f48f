"""The shapes of a decode, measuring on small tensors, and the command. No GPU."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from router_doubles import one_thread
from tier_calls import make_call

from hy3d_rocm import cli
from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.tiers import make_tier
from hy3d_rocm.conv.verdict_store.store import Store
from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.decoding.memory.budget import Budget
from hy3d_rocm.decoding.planning.compiled import plan_job
from hy3d_rocm.decoding.planning.jobs import Job, MakeBackend
from hy3d_rocm.tools import loading
from hy3d_rocm.tune import command, fused, session
from hy3d_rocm.tune.measure import Lab, Measured
from hy3d_rocm.tune.shapes import Shape, collect, load_vae
from tools.dev.bench.gpu_layers import SHIPPED

TINY = {
    "_class_name": "AutoencoderKLHunyuanVideo", "block_out_channels": [8, 8, 8, 8],
    "norm_num_groups": 4, "layers_per_block": 1,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "size", "frames", "recorded"),
    [
        ("hunyuan", (608, 640), 33, "hunyuan_video_33x640x608_framewise"),
        ("wan", (320, 320), 17, "wan21_17x320x320"),
    ],
)
def test_shapes_are_those_recorded_from_real_decodes(
    name: str, size: tuple[int, int], frames: int, recorded: str
) -> None:
    pytest.importorskip("diffusers")
    vae = load_vae(name, torch.bfloat16)
    latent = loading.latent_shape(family_for(vae), frames, *reversed(size))
    found = collect(vae, latent, torch.bfloat16, "cuda:0")
    data = json.loads(SHIPPED.read_text())[recorded]
    assert list(latent) == data["latent"]
    wanted = Counter(
        {(*map(tuple, (row["input"], row["weight"], row["stride"], row["padding"])),): row["count"]
         for row in data["layers"]}
    )  # fmt: skip
    mine: Counter[Any] = Counter()
    for shape in found:
        spec = shape.spec
        assert spec.pad_before == spec.pad_after
        mine[spec.x_size, spec.weight_size, spec.stride, spec.pad_before] += shape.count
    assert mine == wanted
    assert {str(shape.spec.device) for shape in found} == {"cuda:0"}
    assert {shape.spec.dtype for shape in found} == {torch.bfloat16}
    work = [shape.weight for shape in found]
    assert work == sorted(work, reverse=True)


def test_shapes_are_those_that_a_protected_decode_meets(folder: Path) -> None:
    """The router's own specs, from a decode that computes."""
    diffusers = pytest.importorskip("diffusers")
    import hy3d_rocm

    options = {k: v for k, v in TINY.items() if not k.startswith("_")}
    vae = diffusers.AutoencoderKLHunyuanVideo(**options).eval()
    seen: Counter[tuple[str, str]] = Counter()
    guard = hy3d_rocm.protect(on_event=lambda e: seen.update([(e.op, e.shape)]))
    with one_thread(), torch.no_grad(), guard:
        vae.decode(torch.zeros(1, 16, 2, 2, 3))
    found = collect(load_vae(str(folder), torch.float32), (1, 16, 2, 2, 3), torch.float32, "cpu")
    mine: Counter[tuple[str, str]] = Counter()
    for shape in found:
        sizes = "x".join(map(str, shape.spec.x_size)) + f" -> {shape.spec.weight_size[0]}"
        mine[shape.spec.op, sizes] += shape.count
    assert mine == seen


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "has no config.json"),
        ("nonsense", "does not tell the VAE's class"),
        ("[]", "does not tell the VAE's class"),
        ('{"_class_name": "NoVae"}', "NoVae"),
    ],
)
def test_a_folder_without_a_video_vae_is_said(tmp_path: Path, text: str | None, said: str) -> None:
    pytest.importorskip("diffusers")
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        load_vae(str(tmp_path), torch.float32)


class ScriptedTier:
    def __init__(self, name: str, act: Callable[[ConvCall], torch.Tensor]) -> None:
        self.name, self.run = name, act

    def label(self, call: ConvCall) -> str:
        return self.name

    def workspace_bytes(self, spec: ConvSpec) -> int:
        return 0

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        return "not today" if self.name == "conv2d" else None


class FigureWatch:
    """Takes a call's time from the tensor's attribute `cost`."""

    def seconds(self, function: Callable[[], Any], calls: int) -> float:
        return float(function().cost)

    def watched(self, function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int | None]:
        out = function()
        return out, int(out.cost * 1000)  # type: ignore[attr-defined]


def at_cost(cost: float, change: float = 0.0) -> Callable[[ConvCall], torch.Tensor]:
    def act(call: ConvCall) -> torch.Tensor:
        out = call.run_current() + change
        out.cost = cost  # type: ignore[attr-defined]
        return out

    return act


def raising(text: str) -> Callable[[ConvCall], torch.Tensor]:
    def act(call: ConvCall) -> torch.Tensor:
        raise RuntimeError(text)

    return act


def measure(**acts: Callable[[ConvCall], torch.Tensor]) -> dict[str, Measured]:
    spec = make_call(torch.zeros(1, 4, 3, 5, 5), torch.zeros(4, 4, 3, 3, 3)).spec
    tiles = [(f"tile {i}", at_cost(cost)) for i, cost in enumerate((0.3, 0.1, 0.2))]
    lab = Lab(
        FigureWatch(), lambda name: ScriptedTier(name, acts.get(name, at_cost(1.0))),
        lambda call: [(words, lambda act=act: act(call)) for words, act in tiles],
    )  # fmt: skip
    return lab.measure(spec, tuple(acts))


def test_each_tier_is_checked_timed_and_its_memory_taken() -> None:
    found = measure(
        gemm=at_cost(0.5), native=at_cost(0.7, change=1.0), conv2d=at_cost(1.0),
        vendor=raising("miopenStatusUnknownError"),
        cpu=raising("DefaultCPUAllocator: can't allocate memory"),
    )  # fmt: skip
    verdicts = {tier: one.verdict for tier, one in found.items()}
    assert verdicts == {
        "gemm": "ok", "native": "wrong", "vendor": "error", "conv2d": "refused", "cpu": "oom",
    }  # fmt: skip
    assert (found["gemm"].seconds, found["gemm"].peak_bytes) == (0.5, 500)
    assert found["native"].seconds is None
    assert found["conv2d"].detail == "not today"


def test_the_fastest_tile_is_kept_in_the_detail() -> None:
    found = measure(triton=at_cost(9.0))["triton"]
    assert (found.verdict, found.seconds, found.detail) == ("ok", 0.1, "tile 1")


def test_a_lost_device_names_its_tier() -> None:
    spec = make_call(torch.zeros(1, 4, 3, 5, 5), torch.zeros(4, 4, 3, 3, 3)).spec
    act = raising("HIP error: an illegal memory access was encountered")
    lab = Lab(FigureWatch(), lambda name: ScriptedTier(name, act))
    with pytest.raises(RuntimeError, match="illegal memory"):
        lab.measure(spec, ("gemm",))
    assert lab.running == "gemm"


def test_real_tiers_are_measured_on_the_cpu() -> None:
    spec = make_call(torch.zeros(1, 4, 3, 5, 5), torch.zeros(4, 4, 3, 3, 3), torch.zeros(4)).spec
    with one_thread():
        found = Lab(make=make_tier).measure(spec, ("gemm", "native", "triton"))
    assert {t: m.verdict for t, m in found.items()} == {
        "gemm": "ok", "native": "ok", "triton": "refused",
    }  # fmt: skip
    assert all(found[t].seconds for t in ("gemm", "native"))


def test_the_command_keeps_records_and_a_second_run_adds_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("diffusers")
    store = Store.open(folder / "knowledge.db")
    monkeypatch.setattr("hy3d_rocm.conv.verdict_store.store._own", store)
    monkeypatch.setattr(command, "find_gpu", lambda text: torch.device("cpu"))
    only = [Shape(make_call(torch.zeros(1, 4, 3, 5, 5), torch.zeros(4, 4, 3, 3, 3)).spec, 3)]
    monkeypatch.setattr("hy3d_rocm.tune.shapes.collect", lambda *a: only)
    words = ["tune", "--vae", str(folder), "--size", "16x16", "--frames", "5", "--dtype", "f32"]
    words += ["--tiers", "gemm,native", "--json", str(folder / "out.json")]
    with one_thread():
        assert cli.main(words) == 0
        first = capsys.readouterr()
        assert cli.main(words) == 0
    assert "2 new records" in first.out
    assert "[1/1] 3 x conv3d 1x4x3x5x5 -> 4" in first.err
    assert "0 new records" in capsys.readouterr().out
    assert {row.record.tier for row in store.rows()} == {"gemm", "native"}
    data = json.loads((folder / "out.json").read_text())
    assert data["shapes"][0]["count"] == 3
    assert cli.main([*words, "--tiers", "fused"]) == 0
    said = capsys.readouterr()
    assert "is not computed by fused kernels" in said.err
    assert "0 new records" in said.out
    calls: list[dict[str, Any]] = []

    def measure_layers(layers: Any, device: Any, say: Any, *, look: Any, **how: Any) -> Any:
        calls.append(how)
        if len(calls) == 2:
            raise RuntimeError("HIP error: an illegal memory access was encountered")
        return SimpleNamespace(sentence=lambda: "3 of 9 kinds")

    with monkeypatch.context() as patched:
        patched.setattr(fused, "is_fused", lambda *_: True)
        patched.setattr(fused, "layers_of", lambda *_: ["a layer"])
        patched.setattr(fused, "measure_layers", measure_layers)
        patched.setattr(fused, "compile_decode", lambda *_: "")
        for wanted in ("3 of 9 kinds", "were not measured: HIP error: an illegal memory access"):
            assert cli.main([*words, "--tiers", "fused,gemm", "--again", "--limit", "9"]) == 0
            said = capsys.readouterr()
            assert wanted in said.err
            assert "1 new record" in said.out, "the other tiers have what is left of the time"
    assert calls == [{"limit_s": 9.0, "again": True}] * 2
    for raised, code in ((KeyboardInterrupt(), 130), (RuntimeError("the GPU is gone"), 0)):

        def compile_ahead(*_: Any, raised: BaseException = raised) -> Any:
            raise raised

        with monkeypatch.context() as patched:
            patched.setattr(fused, "is_fused", lambda *_: True)
            patched.setattr(fused, "compile_ahead", compile_ahead)
            assert cli.main(words) == code
        said = capsys.readouterr()
        assert "0 new records" in said.out, "the table comes first"
        assert ("were not compiled: the GPU is gone" in said.err) is (code == 0)
    monkeypatch.setattr(fused, "compile_decode", lambda *_: "")
    assert cli.main([*words, "--tiers", "fused"]) == 0
    assert "this decode is not computed by fused kernels" in capsys.readouterr().err

    def tune_decode(*_: Any, **__: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(fused, "tune_decode", tune_decode)
    assert cli.main([*words, "--tiers", "fused"]) == 130
    said = capsys.readouterr().err
    assert "the tiles that were measured by then are kept" in said
    assert "before anything" not in said
    assert cli.main([*words, "--tiers", "magic"]) == 1
    assert "is none of" in capsys.readouterr().err
    store.close()


def test_the_fused_kernels_of_a_decode_are_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the plan, waited for; nothing where the decode has none, or is computed on the
    CPU."""
    vae = load_vae("wan", torch.bfloat16)
    latent = loading.latent_shape(family_for(vae), 5, 64, 64)
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    family = session.plan_decode(vae, latent, torch.float32, cpu)[0].family
    budget = Budget(4 << 30, 1 << 40, False, "")
    asked: list[Any] = []
    monkeypatch.setattr(fused, "compile_ahead", lambda *job: asked.append(job) or new.pop())
    monkeypatch.setattr(fused.ahead, "finish", lambda look: look())
    new, looks = [[], ["left", *map(str, range(26))]], []  # taken from the end
    monkeypatch.setattr(fused.ahead, "is_new", lambda name: name == "left")
    for backend, device, strategy, sentence in (
        ("fused", gpu, "streamed", "compiled 26 GPU kernels of the decode streamed"),
        ("fused", gpu, "streamed", "the GPU kernels of the decode streamed"),
        ("fused", gpu, "cpu", ""), ("torch", gpu, "streamed", ""), ("torch", cpu, "streamed", ""),
    ):  # fmt: skip
        job = Job(family, latent, device, torch.bfloat16, torch.bfloat16, MakeBackend("gfx1100"))
        plan = plan_job(job, budget, strategy)
        job = replace(job, make_backend=MakeBackend(backend))
        said = fused.compile_decode(job, plan, lambda: looks.append(1))
        assert said.startswith(sentence)
        assert bool(said) is bool(sentence)
    assert len(asked) == len(looks) == 2
    assert fused.compile_decode(job, None) == ""


def test_without_a_gpu_a_sentence_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert cli.main(["tune", "--vae", "wan", "--size", "320x320", "--frames", "17"]) == 2
    assert "PyTorch sees no GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--size", "640"], ["--frames", "0"], ["--limit", "-1"], ["--dtype", "f8"]]
)
def test_arguments_that_are_none_end_with_code_2(words: list[str]) -> None:
    usual = ["tune", "--vae", "wan", "--size", "320x320", "--frames", "17"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*usual, *words])
    assert ended.value.code == 2
