"""_core.interpolate: attributes of vertices at pixels; and what all four functions of the texture
stage have in common: threads, CPU levels, cancels."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from core_memory import memory
from raster_mesh_support import LEVELS, THREADS, Array, digests, digests_at, floats

from hy3d_rocm import _core

PIXELS, VERTICES, FACES = 3001, 50, 80


def oracle(attributes: Array, faces: Array, face_index: Array, barycentric: Array) -> Array:
    """In float64, 0 where face_index is 0."""
    corners = attributes.astype(np.float64)[faces[face_index - 1]]
    mixed = (barycentric.astype(np.float64)[:, :, None] * corners).sum(1)
    return np.where((face_index == 0)[:, None], 0.0, mixed)


def scene(channels: int, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "attributes": floats(rng, VERTICES, channels),
        "faces": rng.integers(0, VERTICES, (FACES, 3), dtype=np.int32),
        "face_index": rng.integers(0, FACES + 1, PIXELS, dtype=np.int32),
        "barycentric": floats(rng, PIXELS, 3),
    }


def interpolated(given: dict[str, Array], **options: Any) -> Array:
    out = np.full((len(given["face_index"]), given["attributes"].shape[1]), 7.0, np.float32)
    assert _core.interpolate(**given, out=out, **options) is None
    return out


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 8, 16, 17, 40])
def test_small_integers_are_mixed_exactly(channels: int) -> None:
    given = scene(channels, seed=channels)
    rng = np.random.default_rng(channels)
    given["attributes"] = rng.integers(-8, 9, (VERTICES, channels)).astype(np.float32)
    given["barycentric"] = rng.integers(-4, 5, (PIXELS, 3)).astype(np.float32) / 4
    np.testing.assert_array_equal(interpolated(given), oracle(**given))


@pytest.mark.parametrize("channels", [1, 3, 6, 19])
def test_any_numbers_are_within_three_roundings_of_the_terms(channels: int) -> None:
    """A term is rounded as a product and in at most two sums: (1 + 2^-24)^3 - 1 < 3.1 * 2^-24."""
    given = scene(channels, seed=100 + channels)
    sizes = {name: abs(a) if a.dtype == np.float32 else a for name, a in given.items()}
    error = abs(interpolated(given) - oracle(**given))
    assert (error <= 3.1 * 2.0**-24 * oracle(**sizes)).all()


def test_an_empty_pixel_is_zero_whatever_its_weights_and_the_vertices_are() -> None:
    given = scene(3, seed=3)
    given["attributes"][:] = np.nan
    given["barycentric"][:] = np.inf
    given["face_index"][:] = 0
    given["face_index"][5] = 1
    out = interpolated(given)
    assert np.isnan(out[5]).all()
    assert not np.delete(out, 5, 0).any()


def test_nothing_drawn_needs_no_mesh() -> None:
    given = {
        "attributes": np.empty((0, 2), np.float32),
        "faces": np.empty((0, 3), np.int32),
        "face_index": np.zeros(4, np.int32),
        "barycentric": np.zeros((4, 3), np.float32),
    }
    assert not interpolated(given).any()
    given["face_index"], given["barycentric"] = np.zeros(0, np.int32), np.zeros((0, 3), np.float32)
    assert interpolated(given).shape == (0, 2)


BAD: list[tuple[str, Callable[[dict[str, Array]], Any], str]] = [
    ("attributes", lambda g: g["attributes"].astype(np.float64), "must be float32"),
    ("attributes", lambda g: g["attributes"][:, :0].copy(), "no channels"),
    ("attributes", lambda g: g["attributes"][0], "1 dimensions: it needs 2"),
    ("attributes", lambda g: [[1.0]], "must be a NumPy array"),
    ("attributes", lambda g: g["attributes"].astype(">f4"), "native byte order"),
    ("attributes", lambda g: g["attributes"][::2], "not C-contiguous"),
    ("faces", lambda g: g["faces"].astype(np.int64), "must be int32"),
    ("faces", lambda g: g["faces"].astype(np.uint32), "must be int32"),
    ("faces", lambda g: np.full((2, 4), 0, np.int32), "4 values a row: it needs 3"),
    ("faces", lambda g: np.full((FACES, 3), VERTICES, np.int32), "index 50 in face 0"),
    ("face_index", lambda g: g["face_index"].astype(np.float32), "must be int32"),
    ("face_index", lambda g: g["face_index"][1:].copy(), "has 3000 in dimension 0"),
    ("face_index", lambda g: np.full(PIXELS, FACES + 1, np.int32), "has 81 at pixel 0"),
    ("face_index", lambda g: np.where(np.arange(PIXELS) > 70, -1, 1).astype(np.int32),
     "has -1 at pixel 71"),
    ("barycentric", lambda g: g["barycentric"][:, :2].copy(), "2 values a row"),
    ("out", lambda g: np.zeros((PIXELS, 4), np.float32), "has size 4 in dimension 1"),
    ("out", lambda g: np.zeros((PIXELS, 6), np.float32)[:, ::2], "not C-contiguous"),
    ("out", lambda g: np.frombuffer(bytes(12 * PIXELS), np.float32).reshape(-1, 3), "read-only"),
    ("out", lambda g: g["barycentric"], "share memory"),
    ("attributes", lambda g: np.frombuffer(bytearray(13), np.uint8)[1:].view(np.float32)
     .reshape(1, 3), "not aligned"),
    ("threads", lambda g: -1, "must be 0 to 1024"),
    ("cancel", lambda g: 1, "must be a CancelFlag"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "sentence"), BAD, ids=[b[0] + "-" + b[2] for b in BAD])
def test_what_has_no_meaning_is_told_and_nothing_is_written(
    name: str, make: Callable[[dict[str, Array]], Any], sentence: str
) -> None:
    given = scene(3, seed=4)
    out = np.full((PIXELS, 3), 7.0, np.float32)
    call: dict[str, Any] = {**given, "out": out}
    call[name] = make(given)
    with pytest.raises((ValueError, TypeError), match=f"{name}.*{re.escape(sentence)}"):
        _core.interpolate(**call)
    assert (out == 7).all()


def test_a_cancel_is_an_error_of_its_own() -> None:
    flag = _core.CancelFlag()
    flag.request()
    with pytest.raises(_core.Hy3dError) as caught:
        interpolated(scene(3, seed=5), cancel=flag)
    assert caught.value.name == "HY3D_ERR_CANCELLED"


def test_thread_count_and_cpu_level_change_no_bit() -> None:
    """Of interpolation, scatter, normals and in-painting."""
    wanted = digests(1)
    for level in LEVELS:
        for threads, made in zip(THREADS, digests_at(level), strict=True):
            assert made == wanted, (level, threads)


def test_every_failed_allocation_is_a_memory_error_and_leaves_nothing_behind() -> None:
    """Of scatter, normals and in-painting; interpolation asks for none."""
    wanted = digests(1)
    live, start = memory.live(), memory.asked()
    _core.trim()
    digests(1)
    asked = memory.asked() - start
    assert asked > 20
    for k in range(1, asked + 1, 3):
        memory.fail(k, True)  # one alone may be served from a workspace that was kept
        try:
            with pytest.raises(MemoryError, match="no memory"):
                digests(1)
        finally:
            memory.fail(0)
        assert memory.live() == live, k
    assert digests(1) == wanted
