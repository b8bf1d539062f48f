"""`hy3d-rocm bench decode` with a tiny VAE on the CPU, and its targets from figures."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hy3d_rocm._rng import seeded_on
from hy3d_rocm.bench.decode_gpu import (
    BARE,
    EXACT,
    GUARDED,
    LARGE,
    LIBRARY,
    PROTECTED,
    DecodeReport,
    DecodeSettings,
    decode_checks,
    decode_dict,
    decode_text,
    run_decode,
)
from hy3d_rocm.bench.timing import Measured
from hy3d_rocm.tools.metrics import psnr
from hy3d_rocm.units import GB


class TinyVae(torch.nn.Module):
    """What the bench asks of diffusers' VAE, in one layer."""

    config = SimpleNamespace(latent_channels=4)

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv3d(4, 3, 3, padding=1)

    def decode(self, z: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(sample=self.layer(z))


def tiny_vae(device: torch.device) -> Any:
    with seeded_on(device, 0):
        return TinyVae().to(torch.bfloat16).requires_grad_(False)


def settings(**options: Any) -> DecodeSettings:
    usual = {"repeats": 1, "build": tiny_vae, "latent": (2, 3, 3), "large": (2, 3, 4)}
    return DecodeSettings(torch.device("cpu"), **{**usual, **options})


def test_every_way_is_decoded_compared_and_reported() -> None:
    is_on = torch.backends.cudnn.enabled
    report = run_decode(settings())
    assert torch.backends.cudnn.enabled == is_on
    assert list(report.rows) == [LIBRARY, PROTECTED, GUARDED, EXACT, LARGE, BARE]
    assert not [row.reason for row in report.rows.values() if row.reason]
    assert report.psnr[LIBRARY] == report.psnr[PROTECTED] > 30
    assert "conv3d" in report.table
    text = decode_text(report)
    assert "PSNR lost: 0 dB" in text
    assert json.loads(json.dumps(decode_dict(report)))["measured"]


def test_a_library_that_may_hang_is_not_called() -> None:
    report = run_decode(settings(has_library=False, has_large=False))
    assert list(report.rows) == [PROTECTED, EXACT, BARE]
    assert report.psnr[PROTECTED] > 30
    assert {c.verdict for c in decode_checks(report)} == {"no figure"}


def test_what_the_time_does_not_allow_is_said() -> None:
    times = iter([0.0, 1.0, *[100.0] * 9])
    report = run_decode(settings(clock=lambda: next(times), seconds=50.0))
    assert report.left_out == ["PSNR", LARGE, BARE]
    assert list(report.rows) == [LIBRARY, PROTECTED, GUARDED]
    assert "Left out for want of time" in decode_text(report)


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, []),
        ({PROTECTED: (1.11, 10.0)}, ["time over"]),
        ({PROTECTED: (1.0, 16.1)}, ["the library: peak"]),
        ({LARGE: (9.0, 40.5)}, ["768x1280"]),
        ({GUARDED: (1.021, 10.0)}, ["overhead"]),
    ],
)
def test_each_target_is_missed_by_its_own_figure(
    change: dict[str, tuple[float, float]], missed: list[str]
) -> None:
    figures = {LIBRARY: (1.0, 21.0), PROTECTED: (1.0, 10.0), GUARDED: (1.0, 21.0),
               LARGE: (4.0, 30.0), **change}  # fmt: skip
    report = DecodeReport([], base_bytes=GB, psnr={LIBRARY: 50.0, PROTECTED: 50.5})
    for name, (seconds, peak) in figures.items():
        report.rows[name] = Measured(name, seconds, [seconds], int((peak + 1) * GB))
    found = decode_checks(report)
    failed = [check.text for check in found if check.verdict == "FAIL"]
    assert len(failed) == len(missed)
    assert all(word in text for word, text in zip(missed, failed, strict=True))
    report.psnr[PROTECTED] = 49.4
    lost = next(check for check in decode_checks(report) if "PSNR" in check.text)
    assert lost.verdict == "FAIL"


def test_a_way_that_fails_has_no_figure() -> None:
    report = DecodeReport([])
    report.rows[LIBRARY] = Measured(LIBRARY, 1.0, [1.0])
    report.rows[PROTECTED] = Measured(PROTECTED, 1.0, [1.0], reason="out of memory")
    assert {check.verdict for check in decode_checks(report)} == {"no figure"}
    assert "out of memory" in decode_text(report)


def test_psnr_is_the_formula() -> None:
    exact = torch.tensor([0.0, 1.0, 2.0, 4.0]).reshape(1, 1, 2, 1, 2)
    assert psnr(exact, exact) == math.inf
    assert psnr(exact + 0.5, exact) == 10 * math.log10(4.0**2 * 4 / (4 * 0.25))
