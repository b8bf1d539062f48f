"""validate and optimize on a VAE whose layers are not known: whole and tiled, as decode() has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from unknown_vaes import HALO, MB, ConvNet, latents  # noqa: E402

from hy3d_rocm.tools import loading, optimize, runs, validate  # noqa: E402
from hy3d_rocm.tools.planning import plan_of  # noqa: E402

ALL = ("whole", "streamed", "tiled", "cpu")


@pytest.fixture
def subject() -> runs.Subject:
    torch.set_num_threads(1)
    return runs.Subject(ConvNet(), latents(3, 16, 18), "somebody's own VAE", True)


def test_validate_holds_whole_and_tiles_against_its_own_decode(subject: runs.Subject) -> None:
    """The halo covers what the convolutions reach, so tiles are exact up to rounding."""
    whole = plan_of(subject, 1 << 40, "whole").need.device_bytes
    found = validate.validate(subject, ALL, budget=whole + MB, options=HALO)
    assert [row.outcome.setting.name for row in found.rows] == ["whole", "tiled"]
    assert [row.outcome.error for row in found.rows] == [None, None]
    tiled = found.rows[1]
    assert tiled.borders.rows or tiled.borders.columns
    assert tiled.psnr > 100
    assert found.holds, found.verdicts
    assert any(text.startswith("tiled: seams") for _, text in found.verdicts)


def test_a_tile_that_sees_too_little_is_told_in_a_verdict(subject: runs.Subject) -> None:
    """Never counted among the exact strategies, which would be held to another figure."""
    from dataclasses import replace

    found = validate.validate(
        subject, ("tiled",), budget="1GB", options=replace(HALO, halo_pixels=0, overlap_pixels=0)
    )
    assert found.rows[0].outcome.error is None
    assert any("dB, at least 45" in text for _, text in found.verdicts)


def test_optimize_tries_what_there_is(subject: runs.Subject) -> None:
    settings = optimize.settings_for(subject, optimize.Choices(), quarter=64 * MB)
    assert {s.strategy for s in settings} == {"whole", "tiled"}
    sweep = optimize.optimize(subject, optimize.Choices(("whole",)), repeats=1)
    assert sweep.rows[0].ended
    with pytest.raises(ValueError, match="whole and tiled only"):
        optimize.settings_for(subject, optimize.Choices(("streamed",)))


def test_latents_of_a_size_are_found_by_asking_the_vae() -> None:
    vae = ConvNet()
    vae.config = SimpleNamespace(latent_channels=4)
    made = loading.random_latents(vae, 5, 32, 48)
    assert tuple(made.shape) == (1, 4, 3, 8, 12)
    with pytest.raises(loading.LoadingError, match="give a capture"):
        loading.random_latents(ConvNet(), 5, 32, 48)
