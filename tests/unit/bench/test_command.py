"""`hy3d-rocm bench` as a user calls it, with the tiny model on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hy3d_rocm.bench.benches import closeness, smaller_sizes
from hy3d_rocm.cli import main

pytest.importorskip("diffusers")
pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
TINY = ["--tiny", "--device", "cpu", "--size", "32", "--steps", "1", "--repeats", "1"]


@pytest.fixture(autouse=True)
def _states_kept() -> Iterator[None]:
    from diffusers.utils import logging

    before, verbosity = torch.get_rng_state(), logging.get_verbosity()
    yield
    assert torch.equal(torch.get_rng_state(), before)
    logging.set_verbosity(verbosity)


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what --json wrote."""
    file = tmp_path / "figures.json"
    code = main(["bench", *arguments, "--json", str(file)])
    return code, json.loads(file.read_text())


@pytest.mark.parametrize(
    ("bench", "variants", "choices"),
    [
        ("offload", ["resident", "offload"], {"resident"}),
        ("precision", ["float32", "float16", "bfloat16"], {"float32", "float16", "bfloat16"}),
        ("resolution", ["32x32", "24x24", "16x16"], {"32x32"}),
    ],
)
def test_each_bench_measures_its_variants_and_recommends_one(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    bench: str,
    variants: list[str],
    choices: set[str],
) -> None:
    code, figures = run(tmp_path, bench, *TINY)
    assert code == 0
    assert [row["variant"] for row in figures["variants"]] == variants
    assert figures["recommendation"] in choices
    for row in figures["variants"]:
        assert (row["reason"] is None) == (row["median_seconds"] is not None)
        assert row["peak_bytes"] is None
    out = capsys.readouterr().out
    assert "not measured: a CPU" in out
    assert f"Recommendation: {figures['recommendation']}" in out


def test_offload_without_an_accelerator_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, figures = run(tmp_path, "offload", *TINY)
    assert figures["variants"][1]["reason"].startswith("no accelerator")
    assert "offload: no accelerator" in capsys.readouterr().out


def test_precisions_are_compared_on_the_same_noise(tmp_path: Path) -> None:
    _, figures = run(tmp_path, "precision", *TINY)
    close = figures["closeness"]
    assert close["float32"]["max_difference"] == 0
    # Another noise would be as far away as another picture: 10 to 20 dB.
    assert 30 < close["bfloat16"]["psnr_db"] < close["float16"]["psnr_db"]


@pytest.mark.parametrize(("backend", "works"), [("eager", True), ("nonsense", False)])
def test_a_compiler_that_is_not_there_is_a_reason_and_not_the_end(
    tmp_path: Path, backend: str, works: bool
) -> None:
    code, figures = run(tmp_path, "compile", *TINY, "--backend", backend)
    torch.compiler.reset()
    assert code == 0
    eager, compiled = figures["variants"]
    assert eager["median_seconds"] is not None
    assert (compiled["reason"] is None) == works
    assert works or figures["recommendation"] == "eager"


def test_a_saved_model_is_measured(tmp_path: Path) -> None:
    from hy3d_rocm.bench.session import random_pipeline

    folder = tmp_path / "hunyuan3d-delight-v2-0"
    random_pipeline("tiny", "cpu", torch.float32).save_pretrained(folder)
    code, figures = run(tmp_path, "resolution", "--model", str(folder), *TINY[1:])
    assert code == 0
    assert str(folder) in figures["facts"][0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--model", "/nowhere"], "holds no model_index.json"),
        (["--tiny", "--device", "gpu0"], "give cpu, cuda, cuda:1 or auto"),
        (["--tiny", "--device", "cuda:99"], "torch sees"),
        (["--tiny", "--size", "33"], "give a multiple of"),
    ],
)
def test_a_wrong_argument_is_a_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert main(["bench", "offload", "--device", "cpu", *arguments]) == 1
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--steps", "0"], ["--repeats", "-1"], ["--free", "much"]])
def test_numbers_that_make_no_sense_are_refused(option: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "offload", *option])


def test_ctrl_c_gives_the_figures_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hy3d_rocm.bench.session import Session

    real, calls = Session.picture, []

    def interrupted(self: Session, *sizes: int, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(self, *sizes, **options)

    monkeypatch.setattr(Session, "picture", interrupted)
    code, figures = run(tmp_path, "resolution", *TINY)
    assert code == 130
    assert figures["interrupted"]
    assert figures["variants"][0]["median_seconds"] is not None
    assert "the figures so far" in capsys.readouterr().out


def test_the_help_needs_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; from hy3d_rocm.cli import main; "
        "main(['bench', 'precision', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--model DIR" in done.stdout


def test_sizes_are_multiples_and_each_once() -> None:
    assert smaller_sizes(512, 64) == [512, 384, 256]
    assert smaller_sizes(64, 64) == [64]
    assert smaller_sizes(400, 64) == [400, 320, 192]


def test_closeness_counts_nan_and_knows_equal_pictures() -> None:
    picture = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(1))
    assert closeness(picture, picture).psnr_db == float("inf")
    assert closeness(picture + 0.5, picture).max_difference == pytest.approx(0.5)
    assert closeness(torch.full((3, 8, 8), 0.75), torch.full((3, 8, 8), 0.5)).psnr_db == (
        pytest.approx(12.0412, abs=1e-4)  # 20 log10(4)
    )
    broken = picture.clone()
    broken[0, 0, :5] = float("nan")
    assert closeness(broken, picture).nans == 5
