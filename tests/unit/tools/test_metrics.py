"""The figures that validate holds decodes to, on frames whose figures are known beforehand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from hy3d_rocm.decoding.report import DecodeReport  # noqa: E402
from hy3d_rocm.tools import metrics, pictures  # noqa: E402
from hy3d_rocm.tools.validate import borders_of  # noqa: E402


def video(frames: int = 3, height: int = 24, width: int = 32, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(1, 3, frames, height, width, generator=generator)


def test_psnr_of_a_constant_error_is_known() -> None:
    exact = torch.zeros(1, 1, 2, 4, 4)
    exact[..., 0] = 1.0  # range 1
    assert metrics.psnr(exact + 0.125, exact) == pytest.approx(20 * math.log10(8), abs=1e-12)
    assert metrics.psnr(exact, exact) == math.inf
    assert metrics.largest_error(exact + 0.125, exact) == 0.125
    assert metrics.largest_error(exact, exact) == 0.0


def test_videos_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="can't be held against"):
        metrics.psnr(video(2), video(3))


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.2])
def test_ssim_is_that_of_scikit_image(noise: float) -> None:
    """Gaussian windows, borders left out; differences are the order of sums."""
    skimage = pytest.importorskip("skimage.metrics")
    exact, changed = video(), video() + noise * video(seed=1)
    span = metrics.span(exact)
    wanted = np.mean([
        skimage.structural_similarity(
            changed[0, :, t].double().numpy(), exact[0, :, t].double().numpy(), channel_axis=0,
            data_range=span, gaussian_weights=True, sigma=1.5, use_sample_covariance=False,
        )
        for t in range(3)
    ])  # fmt: skip
    assert metrics.ssim(changed, exact) == pytest.approx(float(wanted), abs=1e-12)


def test_ssim_of_equal_frames_is_one_also_where_the_window_is_larger_than_the_picture() -> None:
    assert metrics.ssim(video(2, 6, 40), video(2, 6, 40)) == pytest.approx(1.0, abs=1e-12)


def test_a_step_at_a_border_is_a_seam_and_one_elsewhere_is_none() -> None:
    ramp = torch.arange(32.0).expand(1, 1, 2, 24, 32).clone()  # every column step is 1
    assert metrics.seams(ramp, [], [16]) == 1.0
    stepped = ramp.clone()
    stepped[..., 16:] += 2.0  # that step is 3: nine times the energy
    assert metrics.seams(stepped, [], [16]) == 9.0
    assert metrics.seams(stepped, [], [27]) == 1.0
    assert metrics.seams(stepped.transpose(3, 4), [16], []) == 9.0
    assert math.isnan(metrics.seams(ramp, [], []))


def test_borders_beside_each_other_do_not_hide_each_other() -> None:
    ramp = torch.arange(32.0).expand(1, 1, 1, 4, 32).clone()
    ramp[..., 16:] += 2.0
    ramp[..., 18:] += 2.0
    assert metrics.seams(ramp, [], [16, 18]) == 9.0


def test_a_jump_between_chunks_is_flicker() -> None:
    steady = torch.arange(17.0).view(1, 1, 17, 1, 1).expand(1, 1, 17, 4, 4).clone()
    assert metrics.flicker(steady, [5, 9, 13]) == 1.0
    jumping = steady.clone()
    jumping[:, :, 9:] += 1.0
    assert metrics.flicker(jumping, [9]) == 4.0
    assert metrics.flicker(jumping, [5, 9, 13]) == 2.0
    assert math.isnan(metrics.flicker(steady[:, :, :1], [5]))


def test_the_map_is_the_mean_error_where_it_is() -> None:
    exact = torch.zeros(1, 2, 4, 3, 3)
    exact[0, 0, 0, 0, 0] = 2.0  # range 2
    wrong = exact.clone()
    wrong[:, :, :, 1, 2] += 1.0
    found = metrics.error_map(wrong, exact)
    wanted = torch.zeros(3, 3).double()
    wanted[1, 2] = 0.5
    assert torch.equal(found, wanted)


class _Family:
    factor = (4, 8)


def test_chunks_are_cut_where_the_frames_of_a_later_latent_begin() -> None:
    """T latents make 4 (T - 1) + 1 frames: the third's first is frame 5."""
    found = borders_of(
        _Family(), (1, 16, 7, 4, 4), {"parameters": {"engine": "chunks", "chunk": 2}}
    )
    assert found.frames == (5, 13, 21)
    assert (found.rows, found.columns) == ((), ())
    assert borders_of(_Family(), (1, 16, 7, 4, 4), {}).frames == ()


def test_numbers_at_borders_do_not_run_into_each_other() -> None:
    """A blend has three borders close together; a side of 480 pixels has room for one in 40."""
    places = (100, 108, 116, 139, 140, 200, 239, 240)
    assert pictures._labels(places, 480) == ["100", "", "", "", "140", "200", "", "240"]
    assert pictures._labels((), 480) == []


def test_a_heat_map_shows_where_the_error_is(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    values = np.full((24, 32), 1e-6)
    values[:, 16] = 1e-2
    panels = [
        pictures.Panel("whole", "bit-identical", np.zeros((24, 32))),
        pictures.Panel("tiled", "50 dB", values, (12,), (16,)),
    ]
    path = tmp_path / "map.png"
    pictures.draw_heat_map(path, panels, "a heading")
    from PIL import Image

    shown = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).astype(int)
    # The last shade (yellow) is where the largest error is, the first (dark blue) where none is.
    for wanted in pictures._ANCHORS[[0, -1]]:
        assert np.abs(shown - wanted).max(1).min() <= 3


def report(**changes: Any) -> DecodeReport:
    base: dict[str, Any] = {
        "vae": "Wan", "latent_shape": (1, 16, 5, 40, 40), "out_shape": (1, 3, 17, 320, 320),
        "device": "cuda:0", "dtype": "bfloat16", "budget_bytes": 8 << 30, "budget_rule": "as given",
        "strategy": "streamed", "seconds": 5.0, "planning_seconds": 0.1,
        "predicted_peak_bytes": 4 << 30, "measured_peak_bytes": 3 << 30,
        "plan": {"gmacs": 1e4, "parameters": {"engine": "chunks"}, "candidates": []},
    }  # fmt: skip
    return DecodeReport(**(base | changes))


def test_a_decode_that_went_well_needs_no_advice() -> None:
    assert report().recommendations == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"events": [{"event": "out of memory"}] * 3}, 'budget="6553MB"'),
        (
            {"events": [{"event": "not finite", "next_dtype": "float32"}], "dtype": "float32"},
            'precision="fp32"',
        ),
        ({"events": [{"event": "not finite", "without": "MIOpen"}]}, "MIOpen was to blame"),
        ({"events": [{"event": "a convolution that failed"}]}, "hy3d_rocm.protect()"),
        ({"measured_peak_bytes": 5 << 30}, "HY3D_ROCM_CAPTURE"),
        ({"strategy": "cpu"}, "the host decoded"),
        ({"seconds": 60.0}, "hy3d-rocm tune"),
        ({"planning_seconds": 9.0}, 'strategy="streamed"'),
        ({"seconds": 60.0, "plan": {"gmacs": 1e6, "resident_bytes": 1 << 30}}, "host memory"),
    ],
)
def test_each_trouble_has_its_sentence_and_only_one(changes: dict[str, Any], said: str) -> None:
    found = report(**changes).recommendations
    assert len(found) == 1, found
    assert said in found[0]
    assert report(**changes).as_dict()["recommendations"] == found


def test_an_approximation_says_what_an_exact_decode_needs() -> None:
    plan = {
        "parameters": {"engine": "tiles"},
        "candidates": [
            {"strategy": "whole", "device_bytes": 40 << 30},
            {"strategy": "streamed", "device_bytes": 10 << 30},
            {"strategy": "tiled", "device_bytes": 2 << 30},
        ],
    }
    found = report(strategy="tiled", plan=plan, estimate_error=0.02).recommendations
    assert any("statistic_passes=2" in line for line in found)
    assert any("10.00 GB" in line for line in found)
