"""`hy3d-rocm bench decode --device cpu` with a small VAE, and its targets from figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hy3d_rocm import _native, checkout
from hy3d_rocm.cli import main
from hy3d_rocm.units import GB
from tools.dev.bench import children, decode_cpu
from tools.dev.bench.decode_cpu import (
    OURS,
    TORCH,
    CpuDecodeReport,
    CpuDecodeSettings,
    Side,
    cpu_decode_text,
    decode_targets,
)

COMMAND = ["bench", "decode", "--device", "cpu", "--scale", "0.25", "--frames", "5",
           "--size", "32x24", "--threads", "1", "--repeats", "1"]  # fmt: skip
needs_core = pytest.mark.skipif(not _native.available, reason=f"no C core: {_native.missing}")


@needs_core
@pytest.mark.parametrize("model", ["hunyuan", "wan"])
def test_both_decodes_are_timed_compared_and_their_peaks_measured(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip("diffusers")
    jobs: list[dict[str, Any]] = []

    def here(job: dict[str, Any], variables: dict[str, str]) -> dict[str, Any]:
        assert not variables
        jobs.append(json.loads(json.dumps(job)))
        return decode_cpu.run_alone(jobs[-1])

    monkeypatch.setattr(children, "run_quietly", here)
    file, threads = tmp_path / "decode.json", torch.get_num_threads()
    assert main([*COMMAND, "--model", model, "--json", str(file)]) == 0
    torch.set_num_threads(threads)
    figures = json.loads(file.read_text())
    assert figures["frames"] == [1, 3, 5, 32, 24]
    assert [job["which"] for job in jobs] == [TORCH, OURS]
    for side in figures["sides"].values():
        assert side["first_seconds"] > 0
        assert len(side["seconds"]) == 1
        # The frames at least: 45 kB of float32.
        assert min(side["peaks"]) >= 5 * 32 * 24 * 3 * 4
    assert figures["psnr"] == "inf" or figures["psnr"] > 80
    out = capsys.readouterr().out
    assert "PSNR against torch's frames" in out
    assert "Targets" not in out  # a quarter of the channels


def report(**options: Any) -> CpuDecodeReport:
    sides = {
        TORCH: Side(TORCH, 9.0, [9.0, 6.0], [3 * GB, 2 * GB]),
        OURS: Side(OURS, 4.0, [3.0, 2.0], [4 * GB, 4 * GB], {"limit_bytes": GB}),
    }
    settings = CpuDecodeSettings(**options)
    return CpuDecodeReport(settings, "a VAE", sides=sides, psnr=79.0, largest_difference=0.1)


def test_targets_hold_speed_quality_and_peak_against_torch() -> None:
    assert [one.verdict for one in decode_targets(report())] == ["pass", "FAIL", "pass"]
    more = report()
    more.sides[OURS].peaks[1] += 1 << 20
    assert decode_targets(more)[2].verdict == "FAIL"
    assert decode_targets(report(model="wan")) == decode_targets(report(scale=0.5)) == []


def test_the_ratio_is_of_pairs_and_the_first_calls_are_apart() -> None:
    assert (report().ratio, report().first_ratio) == (3.0, 2.25)
    text = cpu_decode_text(report())
    assert "3.00" in text
    assert "79.0 dB" in text
    empty = CpuDecodeReport(CpuDecodeSettings(), sides={n: Side(n) for n in (TORCH, OURS)})
    assert "FAIL" not in cpu_decode_text(empty)


def test_options_of_the_cpu_are_refused_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", "--frames", "9", "--size", "64x64"]) == 2
    assert "--frames, --size: only for bench decode --device cpu" in capsys.readouterr().err
    assert main(["bench", "decode", "--device", "cpu", "--cases", "--model", "wan"]) == 2


@needs_core
def test_a_decode_that_fails_is_a_sentence_that_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def calls(*_: Any) -> dict[str, Any]:
        return {TORCH: lambda: torch.zeros(1), OURS: lambda: torch.zeros(2) @ torch.zeros(3)}

    monkeypatch.setattr(decode_cpu, "_subject", lambda *_: (None, torch.zeros(1), "a VAE"))
    monkeypatch.setattr(decode_cpu, "_calls", calls)
    assert main(COMMAND) == 1
    assert f"{OURS} failed: RuntimeError" in capsys.readouterr().err


def test_an_installed_package_says_that_a_checkout_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkout, "ROOTS", (tmp_path,))
    assert main(COMMAND) == 1
    assert "is part of a source checkout, not of an installed package" in capsys.readouterr().err


@needs_core
def test_an_unknown_strategy_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--strategy", "fastest"]) == 1
    assert "--strategy fastest: it is one of" in capsys.readouterr().err
