"""_core.scatter: points into a texture, against sums in extended precision."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from raster_mesh_support import Array, floats

from hy3d_rocm import _core


def scattered(
    values: Any, uv: Any, weights: Any, size: tuple[int, int], kind: str = "linear", **options: Any
) -> tuple[Array, Array]:
    texture = np.full((*size, values.shape[1]), 7.0, np.float32)
    total = np.full(size, 7.0, np.float32)
    assert _core.scatter(values, uv, weights, texture, total, filter=kind, **options) is None
    return texture, total


def oracle(
    values: Array, uv: Array, weights: Array, size: tuple[int, int], kind: str = "linear"
) -> tuple[Array, Array, Array]:
    """Sums of share * value and of shares, and how many points a texel got, in long double."""
    height, width = size
    sums = np.zeros((height * width, values.shape[1]), np.longdouble)
    shares = np.zeros(height * width, np.longdouble)
    points = np.zeros(height * width)
    position = uv.astype(np.longdouble) * [width - 1, height - 1]
    if kind == "nearest":
        position = np.floor(position + np.longdouble(0.5))
    low = np.floor(position)
    part = position - low
    for right in (0, 1):
        for below in (0, 1):
            column = low[:, 0].astype(int) + right
            row = low[:, 1].astype(int) + below
            share = np.where(right, part[:, 0], 1 - part[:, 0])
            share = share * np.where(below, part[:, 1], 1 - part[:, 1]) * weights
            got = share > 0
            at = (row * width + column)[got]
            np.add.at(sums, at, share[got, None] * values[got])
            np.add.at(shares, at, share[got])
            np.add.at(points, at, 1)
    return sums.reshape(*size, -1), shares.reshape(size), points.reshape(size)


@pytest.mark.parametrize("kind", ["linear", "nearest"])
@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [(9, 17), (17, 9), (65, 5), (1, 9), (3, 1), (1, 1)])
def test_small_integers_are_summed_exactly(size: tuple[int, int], channels: int, kind: str) -> None:
    """Positions are quarters of texels: sums are exact, and the mean is rounded as NumPy's."""
    rng = np.random.default_rng(channels + 10 * size[0])
    n = 2000
    values = rng.integers(-8, 9, (n, channels)).astype(np.float32)
    weights = rng.integers(0, 4, n).astype(np.float32)
    cells = np.array([max(size[1] - 1, 1), max(size[0] - 1, 1)]) * 4
    uv = (rng.integers(0, cells + 1, (n, 2)) / cells).astype(np.float32)
    sums, shares, _ = oracle(values, uv, weights, size, kind)
    texture, total = scattered(values, uv, weights, size, kind)
    mean = np.divide(sums, shares[..., None], where=shares[..., None] > 0, out=np.zeros_like(sums))
    np.testing.assert_array_equal(total, shares)
    np.testing.assert_array_equal(texture, mean.astype(np.float64).astype(np.float32))


@pytest.mark.parametrize("kind", ["linear", "nearest"])
@pytest.mark.parametrize("size", [(50, 70), (301, 11)])
def test_any_numbers_are_within_the_bound_that_the_header_says(
    size: tuple[int, int], kind: str
) -> None:
    rng = np.random.default_rng(size[0])
    n = 40000
    values, uv = floats(rng, n, 3), rng.random((n, 2), np.float32)
    weights = rng.random(n, np.float32)
    sums, shares, points = oracle(values, uv, weights, size, kind)
    magnitudes, _, _ = oracle(abs(values), uv, weights, size, kind)
    texture, total = scattered(values, uv, weights, size, kind)
    assert (texture[points == 0] == 0).all()
    assert (total[points == 0] == 0).all()
    some = points > 0
    slack = 2.0**-52 * (points[some] + 8)
    assert (abs(total[some] - shares[some]) <= (2.0**-24 + slack) * shares[some]).all()
    mean = sums[some] / shares[some, None]
    room = (2.0**-24 + slack[:, None]) * magnitudes[some] / shares[some, None]
    assert (abs(texture[some] - mean) <= room).all()


def test_it_is_the_adjoint_of_bilinear_sampling_with_aligned_corners() -> None:
    """sum over points of value * sample(image) = sum over texels of (what they got) * image: exact,
    since positions are eighths of texels and all else small integers."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    height, width, n = 17, 33, 500
    uv = (rng.integers(0, 65, (n, 2)) / 64).astype(np.float32)
    values = rng.integers(-8, 9, (n, 1)).astype(np.float32)
    image = rng.integers(-8, 9, (height, width)).astype(np.float64)
    grid = torch.from_numpy(uv.astype(np.float64) * 2 - 1)[None, :, None]
    sampled = torch.nn.functional.grid_sample(
        torch.from_numpy(image)[None, None], grid, mode="bilinear", align_corners=True
    ).numpy()[0, 0, :, 0]
    sums, shares, _ = oracle(values, uv, np.ones(n), (height, width))
    texture, total = scattered(values, uv, None, (height, width))
    np.testing.assert_array_equal(total, shares)
    assert float((sums[..., 0] * image).sum()) == float((values[:, 0] * sampled).sum())
    mean = np.divide(sums[..., 0], shares, where=shares > 0, out=np.zeros_like(shares))
    np.testing.assert_array_equal(texture[..., 0], mean.astype(np.float32))


def test_what_was_rendered_comes_back() -> None:
    """A texture read at all its texels' centres and scattered there again is the same texture."""
    rng = np.random.default_rng(9)
    image = floats(rng, 33, 65, 3)
    row, column = np.divmod(np.arange(33 * 65), 65)
    uv = np.stack([column / 64, row / 32], 1).astype(np.float32)
    for kind in ("linear", "nearest"):
        texture, total = scattered(image.reshape(-1, 3), uv, None, (33, 65), kind)
        np.testing.assert_array_equal(texture, image)
        assert (total == 1).all()


def test_points_outside_and_of_weight_zero_are_left_out() -> None:
    uv = np.array([[-1e-6, 0], [0, 1.00001], [3e38, 0], [0.5, 0.5]], np.float32)
    values = np.full((4, 1), np.nan, np.float32)
    texture, total = scattered(values, uv, np.array([1, 1, 1, 0], np.float32), (3, 3))
    assert not texture.any()
    assert not total.any()


def test_a_value_that_is_no_number_reaches_only_the_texels_that_it_has_a_share_in() -> None:
    uv = np.array([[0.5, 0.25], [1, 1]], np.float32)
    values = np.array([[np.nan], [2]], np.float32)
    texture, total = scattered(values, uv, None, (3, 3))
    assert np.isnan(texture[..., 0]).sum() == 2
    assert np.isnan(texture[:2, 1, 0]).all()
    assert texture[2, 2, 0] == 2
    assert total.sum() == 2


def test_the_borders_of_bands_lose_and_double_nothing() -> None:
    """Wide rows, so that each has a band of its own; each point counts once."""
    rng = np.random.default_rng(10)
    uv = rng.integers(0, 2**12 + 1, (5000, 2)).astype(np.float32) / 2**12
    values = np.ones((5000, 40), np.float32)
    texture, total = scattered(values, uv, None, (9, 2049))
    assert total.astype(np.float64).sum() == 5000
    assert (texture[total > 0] == 1).all()


BAD: list[tuple[str, Callable[[], Any], str]] = [
    ("uv", lambda: np.array([[0, 0], [0, np.nan]], np.float32), "a NaN or an infinity in point 1"),
    ("uv", lambda: np.array([[np.inf, 0], [0, 0]], np.float32), "a NaN or an infinity in point 0"),
    ("uv", lambda: np.zeros((2, 3), np.float32), "3 values a row: it needs 2"),
    ("weights", lambda: np.array([1, -1], np.float32), "negative at point 1"),
    ("weights", lambda: np.array([1, np.inf], np.float32), "a NaN or an infinity in point 1"),
    ("weights", lambda: np.ones(3, np.float32), "has size 3"),
    ("values", lambda: np.ones((3, 1), np.float32), "has size 3"),
    ("values", lambda: np.ones((2, 2), np.float32), "has size 2 in dimension 1"),
    ("values", lambda: np.ones((2, 1), np.float16), "must be float32"),
    ("texture", lambda: np.ones((0, 4, 1), np.float32), "0 pixels high"),
    ("texture", lambda: np.ones((1, 32769, 1), np.float32), "32769 pixels wide"),
    ("texture", lambda: np.ones((4, 4, 0), np.float32), "no channels"),
    ("total", lambda: np.ones((4, 5), np.float32), "has size 5 in dimension 1"),
    ("filter", lambda: "cubic", 'must be "linear" or "nearest"'),
]


@pytest.mark.parametrize(("name", "make", "sentence"), BAD, ids=[b[0] + "-" + b[2] for b in BAD])
def test_what_has_no_meaning_is_told_and_nothing_is_written(
    name: str, make: Callable[[], Any], sentence: str
) -> None:
    texture, total = np.full((4, 4, 1), 7, np.float32), np.full((4, 4), 7, np.float32)
    call: dict[str, Any] = {
        "values": np.ones((2, 1), np.float32), "uv": np.zeros((2, 2), np.float32),
        "weights": np.ones(2, np.float32), "texture": texture, "total": total,
    }  # fmt: skip
    call[name] = make()
    with pytest.raises(ValueError, match=f"{name}.*{re.escape(sentence)}"):
        _core.scatter(**call)
    assert (texture == 7).all()
    assert (total == 7).all()
