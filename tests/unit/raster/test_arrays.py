"""What comes in and goes out at the doors of hy3d_rocm.raster: NumPy arrays and torch tensors.

What reaches the core, and what becomes of its answer, is looked at with a core that records; what
the core itself refuses is asked of the real one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from places import ROOT
from raster_doubles import Recorder

from hy3d_rocm import raster
from hy3d_rocm.raster import arrays, functional

CLIP = np.array([[-1, -1, 0, 1], [1, -1, 0, 1], [0, 1, 0, 1], [0, 0, 0.5, 1]], np.float32)
FACES = np.array([[0, 1, 2], [0, 1, 3]], np.int32)
SIZE = (5, 7)


@pytest.fixture(name="core")
def recording_core(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


def as_numpy(array: Any) -> Any:
    return array


MAKERS: list[Callable[[Any], Any]] = [as_numpy, torch.from_numpy]


def is_flat(array: Any, dtype: type) -> bool:
    return bool(array.dtype == dtype and array.flags.c_contiguous and array.flags.aligned)


@pytest.mark.parametrize("made", MAKERS)
def test_results_are_of_the_inputs_kind(core: Recorder, made: Callable[[Any], Any]) -> None:
    picture = raster.rasterize(made(CLIP), made(FACES), SIZE)
    assert [type(part) for part in picture] == [type(made(CLIP))] * 3
    assert tuple(picture.face_index.shape) == SIZE
    assert tuple(picture.barycentric.shape) == (*SIZE, 3)
    assert tuple(picture.depth.shape) == SIZE
    assert str(picture.face_index.dtype).endswith("int32")
    assert str(picture.barycentric.dtype).endswith("float32")
    assert core.named == {"rule": "topleft", "threads": torch.get_num_threads(), "cancel": None}


@pytest.mark.parametrize("made", MAKERS)
def test_flat_arrays_are_passed_on_without_a_copy(
    core: Recorder, made: Callable[[Any], Any]
) -> None:
    raster.rasterize(made(CLIP), made(FACES), SIZE)
    assert np.shares_memory(core.last[0], CLIP)
    assert np.shares_memory(core.last[1], FACES)


@pytest.mark.parametrize("kind", ["float64", "float16", ">f4"])
def test_other_floats_of_numpy_reach_the_core_as_float32(core: Recorder, kind: str) -> None:
    raster.rasterize(CLIP.astype(kind), FACES, SIZE)
    assert is_flat(core.last[0], np.float32)
    assert np.array_equal(core.last[0], CLIP)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats_of_torch_reach_the_core_as_float32(core: Recorder, kind: torch.dtype) -> None:
    raster.rasterize(torch.from_numpy(CLIP).to(kind), torch.from_numpy(FACES), SIZE)
    assert is_flat(core.last[0], np.float32)
    assert np.array_equal(core.last[0], CLIP)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int64", "uint32", "uint64", ">i4"])
def test_any_integers_reach_the_core_as_int32(core: Recorder, kind: str) -> None:
    raster.rasterize(CLIP, FACES.astype(kind), SIZE)
    assert is_flat(core.last[1], np.int32)
    assert np.array_equal(core.last[1], FACES)


class Labelled(np.ndarray[Any, Any]):
    """A subclass of NumPy's array, as a caller may have one."""


@pytest.mark.parametrize("kind", [np.matrix, Labelled, np.memmap])
def test_subclasses_of_numpys_array_are_read_as_plain_arrays_and_give_plain_ones(
    core: Recorder, kind: Any, tmp_path: Path
) -> None:
    def of(array: Any) -> Any:
        if kind is not np.memmap:
            return array.view(kind)
        mapped = np.memmap(tmp_path / str(len(list(tmp_path.iterdir()))), array.dtype, "w+",
                           shape=array.shape)  # fmt: skip
        mapped[:] = array
        return mapped

    pixels, numbers = np.zeros((4, 3), np.float32), np.zeros((4, 2), np.int32)
    mask = np.ones((4, 5), bool)
    found = [
        *raster.rasterize(of(CLIP), of(FACES), SIZE, prior=of(np.ones(SIZE, np.float32))),
        raster.vertex_normals(of(pixels), of(FACES)),
        *raster.scatter(of(pixels), of(pixels[:, :2]), SIZE),
    ]
    if kind is not np.matrix:  # which has no other number of dimensions
        found += [
            raster.interpolate(of(CLIP), of(FACES), of(numbers), of(np.zeros((4, 2, 3), "f4"))),
            *raster.scatter(of(pixels), of(pixels[:, :2]), SIZE, weights=of(pixels[:, 0])),
            *raster.inpaint_vertices(of(np.zeros((4, 5, 1))), of(mask), of(pixels),
                                     of(pixels[:, :2]), of(FACES), of(FACES)),
        ]  # fmt: skip
    assert {type(array) for array in found} == {np.ndarray}
    for _, given, _ in core.calls:
        assert {type(array) for array in given if array is not None} == {np.ndarray}


STRIDED: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "every second": lambda a: np.repeat(a, 2, axis=0)[::2],
    "backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "inside a record": lambda a: np.concatenate([a, a], axis=1)[:, : a.shape[1]],
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("layout", STRIDED)
def test_any_strides_give_what_a_flat_copy_gives(core: Recorder, layout: str) -> None:
    raster.rasterize(STRIDED[layout](CLIP), STRIDED[layout](FACES), SIZE)
    assert is_flat(core.last[0], np.float32)
    assert is_flat(core.last[1], np.int32)
    assert np.array_equal(core.last[0], CLIP)
    assert np.array_equal(core.last[1], FACES)


def test_strided_and_negated_tensors_are_read_as_they_look(core: Recorder) -> None:
    clip = torch.from_numpy(CLIP)
    negated = torch._neg_view(-clip.t().contiguous().t())
    raster.rasterize(negated, torch.from_numpy(FACES).t().contiguous().t(), SIZE)
    assert np.array_equal(core.last[0], CLIP)
    assert np.array_equal(core.last[1], FACES)


def test_gradients_end_here_and_nothing_warns(
    core: Recorder, recwarn: pytest.WarningsRecorder
) -> None:
    clip = torch.from_numpy(CLIP).clone().requires_grad_()
    picture = raster.rasterize(clip, torch.from_numpy(FACES), SIZE)
    assert not any(part.requires_grad for part in picture)
    assert not recwarn.list


def test_a_call_under_inference_mode_is_like_any_other(core: Recorder) -> None:
    with torch.inference_mode():
        picture = raster.rasterize(torch.from_numpy(CLIP) * 1, torch.from_numpy(FACES), SIZE)
    assert np.array_equal(core.last[0], CLIP)
    assert tuple(picture.depth.shape) == SIZE


def test_leading_sizes_of_a_picture_may_be_any(core: Recorder) -> None:
    index, weights = np.zeros((2, 3, 4), np.int64), np.zeros((2, 3, 4, 3), np.float32)
    found = raster.interpolate(CLIP, FACES, index, weights)
    assert found.shape == (2, 3, 4, 4)
    assert np.array_equal(found.reshape(-1), np.arange(found.size) % 251)
    assert core.last[2].shape == (24,)
    assert core.last[3].shape == (24, 3)
    assert raster.interpolate(CLIP, FACES, index[0, 0], weights[0, 0]).shape == (4, 4)


def test_inpainting_leaves_its_inputs_alone_and_keeps_the_masks_type(core: Recorder) -> None:
    texture = np.full((4, 5, 3), 0.5, np.float32)
    for mask in (np.ones((4, 5), np.uint8), np.ones((4, 5), bool)):
        painted, known = raster.inpaint_vertices(
            texture, mask, CLIP[:, :3], CLIP[:, :2], FACES, FACES
        )
        assert np.all(texture == 0.5)
        assert np.all(mask)
        assert painted.dtype == np.float32
        assert known.dtype == mask.dtype
        assert not np.shares_memory(painted, texture)


def test_scattered_pictures_have_the_size_that_was_asked_for(core: Recorder) -> None:
    values, uv = np.ones((6, 7, 3), np.float32), np.zeros((6, 7, 2), np.float32)
    found = raster.scatter(values, uv, (8, 9), weights=np.ones((6, 7), np.float32))
    assert found.texture.shape == (8, 9, 3)
    assert found.total.shape == (8, 9)
    assert core.last[0].shape == (42, 3)
    assert core.last[2].shape == (42,)


@pytest.mark.parametrize("answers", [True, False])
def test_tensors_on_a_gpu_are_drawn_there_or_copied(
    core: Recorder, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """A stand-in for raster/gpu answers or does not; CPU tensors count as a GPU's."""
    picture = raster.Raster("index", "weights", "depth") if answers else None
    seen: list[Any] = []

    def draw(*given: Any, **named: Any) -> Any:
        seen.append((given, named))
        return picture

    gpu = SimpleNamespace(rasterize_on_gpu=draw, interpolate_on_gpu=draw)
    monkeypatch.setattr(functional, "_gpu", lambda: gpu)
    tensors = (torch.from_numpy(CLIP), torch.from_numpy(FACES))
    raster.rasterize(*tensors, SIZE)
    assert not seen
    monkeypatch.setattr(arrays.Door, "on_gpu", True)
    found = raster.rasterize(*tensors, SIZE, rule="compat")
    assert seen == [((*tensors, SIZE), {"rule": "compat", "prior": None, "cancel": None})]
    assert (found is picture) is answers
    assert len(core.calls) == (1 if answers else 2)
    index, weights = torch.zeros(2, dtype=torch.int32), torch.zeros(2, 3)
    values = raster.interpolate(*tensors, index, weights)
    assert len(seen) == 2
    assert (values is picture) is answers


def test_sizes_and_kinds_are_looked_at_before_the_gpu_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(functional, "_gpu", lambda: pytest.fail("asked"))
    monkeypatch.setattr(arrays.Door, "on_gpu", True)
    for bad in (
        lambda: raster.rasterize(TENSOR, INDICES, (0, 4)),
        lambda: raster.rasterize(TENSOR, INDICES, SIZE, rule="gl"),
        lambda: raster.rasterize(TENSOR, FACES, SIZE),
    ):
        with pytest.raises((ValueError, TypeError)):
            bad()


Call = Callable[[], Any]
INTS = np.zeros((4, 4), np.int32)
TENSOR = torch.from_numpy(CLIP)
INDICES = torch.from_numpy(FACES)
HUGE = np.array([[0, 1, 2], [0, 2**40, 2]])
PIXELS = np.zeros((3, 2), np.float32)
REFUSED: dict[str, tuple[Call, type[Exception], str]] = {
    "a list": (lambda: raster.rasterize(CLIP.tolist(), FACES, SIZE), TypeError, "clip is list"),
    "integers for floats": (
        lambda: raster.rasterize(INTS, FACES, SIZE), TypeError, "clip is int32: give floating",
    ),
    "integer tensors for floats": (
        lambda: raster.rasterize(TENSOR.int(), INDICES, SIZE), TypeError, r"such as clip\.float",
    ),
    "floats for integers": (
        lambda: raster.rasterize(CLIP, FACES.astype(float), SIZE), TypeError, "faces is float64",
    ),
    "bools for integers": (
        lambda: raster.rasterize(TENSOR, INDICES.bool(), SIZE), TypeError, "faces is torch.bool",
    ),
    "complex": (
        lambda: raster.rasterize(CLIP.astype(complex), FACES, SIZE), TypeError, "complex128",
    ),
    "mixed kinds": (
        lambda: raster.rasterize(TENSOR, FACES, SIZE), TypeError, "faces is a NumPy array and clip",
    ),
    "mixed devices": (
        lambda: raster.rasterize(TENSOR, INDICES.to("meta"), SIZE), ValueError, "faces on meta",
    ),
    "no data": (
        lambda: raster.rasterize(TENSOR.to("meta"), INDICES.to("meta"), SIZE), ValueError,
        "clip has no data",
    ),
    "sparse": (
        lambda: raster.rasterize(TENSOR.to_sparse(), INDICES, SIZE), ValueError, "dense tensor",
    ),
    "clip of three": (
        lambda: raster.rasterize(CLIP[:, :3], FACES, SIZE), ValueError, r"must be \(V, 4\)",
    ),
    "faces of four": (lambda: raster.rasterize(CLIP, INTS, SIZE), ValueError, r"must be \(F, 3\)"),
    "an index beyond int32": (
        lambda: raster.rasterize(CLIP, HUGE, SIZE), ValueError, r"faces\[1, 1\] is 1099511627776",
    ),
    "no height": (lambda: raster.rasterize(CLIP, FACES, (0, 7)), ValueError, "size is 0 x 7"),
    "no pixel": (lambda: raster.rasterize(CLIP, FACES, (0, 0)), ValueError, "1 to 32768"),
    "too wide": (lambda: raster.rasterize(CLIP, FACES, (1, 32769)), ValueError, "1 x 32769"),
    "three sizes": (lambda: raster.rasterize(CLIP, FACES, (1, 2, 3)), ValueError, "two integers"),
    "half a pixel": (lambda: raster.rasterize(CLIP, FACES, (1.5, 2)), TypeError, "two integers"),  # type: ignore[arg-type]
    "a number as size": (lambda: raster.rasterize(CLIP, FACES, 64), TypeError, "two integers"),  # type: ignore[arg-type]
    "another rule": (
        lambda: raster.rasterize(CLIP, FACES, SIZE, rule="gl"), ValueError, "topleft, compat",
    ),
    "a prior of another size": (
        lambda: raster.rasterize(CLIP, FACES, SIZE, prior=CLIP), ValueError, r"must be \(5, 7\)",
    ),
    "no threads": (
        lambda: raster.rasterize(CLIP, FACES, SIZE, threads=0), ValueError, "at least 1",
    ),
    "pictures that differ": (
        lambda: raster.interpolate(CLIP, FACES, FACES, CLIP[:, :3]), ValueError, "of one picture",
    ),
    "barycentrics of two": (
        lambda: raster.interpolate(CLIP, FACES, FACES, PIXELS), ValueError, r"must be \(\.\.\., 3",
    ),
    "values without channels": (
        lambda: raster.scatter(CLIP[:, 0], CLIP[:, :2], SIZE), ValueError, "leading sizes",
    ),
    "values of other pixels": (
        lambda: raster.scatter(CLIP, PIXELS, SIZE), ValueError, "leading sizes must agree",
    ),
    "another filter": (
        lambda: raster.scatter(CLIP[:3], PIXELS, SIZE, filter="cubic"), ValueError, "linear, near",
    ),
    "another weighting": (
        lambda: raster.vertex_normals(CLIP[:, :3], FACES, weighting="edge"), ValueError, "area, a",
    ),
    "a mask of floats": (
        lambda: raster.inpaint_vertices(
            np.zeros((4, 4, 1)), CLIP, CLIP[:, :3], PIXELS, FACES, FACES
        ),
        TypeError, "mask is float32: give a mask",
    ),
    "a mask of another size": (
        lambda: raster.inpaint_vertices(
            np.zeros((4, 5, 1)), INTS.astype(bool), CLIP[:, :3], PIXELS, FACES, FACES
        ),
        ValueError, r"mask has shape \(4, 4\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_with_a_sentence(core: Recorder, case: str) -> None:
    call, kind, sentence = REFUSED[case]
    with pytest.raises(kind, match=sentence):
        call()
    assert not core.calls


def test_the_door_costs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, hy3d_rocm.raster as r; r.install(); r.status(); r.uninstall();"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_without_torch_numpy_arrays_are_rasterised() -> None:
    code = (
        "import sys, numpy as np, hy3d_rocm.raster as r\n"
        "try: r.rasterize(np.zeros((3, 4), 'f4'), np.zeros((1, 3), int), (4, 4))\n"
        "except Exception as error: print(error)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
