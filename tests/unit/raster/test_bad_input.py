"""Arguments that the rasteriser can't work with get a sentence, sizes at its limits a picture."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import how_much
import numpy as np
import pytest
import torch
from core_memory import memory
from places import LONG
from raster_doubles import Recorder

from hy3d_rocm import _core, raster

Array = Any
RULES = ("compat", "topleft")
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
FUZZ = LONG / "fuzz_arguments.py"


def arguments(height: int = 6, width: int = 5) -> dict[str, Any]:
    """Of a call that works."""
    clip = np.array([[-1, -1, 0, 1], [3, -1, 0, 1], [-1, 3, 0, 1], [0, 0, 0, 1]], np.float32)
    return {
        "clip": clip,
        "faces": np.array([[0, 1, 2], [1, 2, 3]], np.int32),
        "prior": np.full((height, width), -1, np.float32),
        "face_index": np.full((height, width), -7, np.int32),
        "barycentric": np.zeros((height, width, 3), np.float32),
        "depth": np.zeros((height, width), np.float32),
    }


def refused(message: str, kind: Any = ValueError, **changed: Any) -> None:
    """By both rules, with nothing written."""
    for rule in RULES:
        given = arguments() | changed
        before = given["face_index"].copy() if isinstance(given["face_index"], np.ndarray) else None
        with pytest.raises(kind, match=message):
            _core.rasterize(**({"rule": rule} | given))
        if before is not None:
            assert np.array_equal(given["face_index"], before)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", range(4))
def test_a_vertex_that_is_not_finite_is_named(value: float, column: int) -> None:
    clip = arguments()["clip"]
    clip[2, column] = value
    clip[3, 0] = np.nan
    refused("clip has a NaN or an infinity in vertex 2: its values must be finite", clip=clip)
    # Also where no face has it.
    refused("vertex 2", clip=clip, faces=np.array([[0, 1, 3]], np.int32))
    refused("vertex 2", clip=clip, faces=np.zeros((0, 3), np.int32))


def test_signalling_and_negative_nans_are_seen() -> None:
    for bits in (0x7F800001, 0xFFC00000, 0xFFFFFFFF):
        clip = arguments()["clip"]
        clip.view(np.uint32)[1, 3] = bits
        refused("vertex 1", clip=clip)


@pytest.mark.parametrize("value", [-1, 4, INT32_MIN, INT32_MAX])
@pytest.mark.parametrize("corner", range(3))
def test_an_index_out_of_range_is_named(value: int, corner: int) -> None:
    faces = np.array([[0, 1, 2], [1, 2, 3], [3, 0, 1], [9, 9, 9]], np.int32)
    faces[2, corner] = value
    refused(f"faces has index {value} in face 2: there are 4 vertices, and the first is 0",
            faces=faces)  # fmt: skip


def test_the_first_of_many_wrong_values_is_named_by_any_number_of_threads() -> None:
    rng = np.random.default_rng(1)
    clip = np.zeros((70_000, 4), np.float32)
    clip[rng.integers(30_000, 70_000, 50), 2] = np.nan
    first = int(np.nonzero(np.isnan(clip).any(1))[0][0])
    faces = np.zeros((70_000, 3), np.int32)
    faces[rng.integers(20_000, 70_000, 50), 1] = -5
    worst = int(np.nonzero((faces < 0).any(1))[0][0])
    for threads in (1, 2, 8):
        refused(f"vertex {first}:", clip=clip, threads=threads)
        refused(f"index -5 in face {worst}:", faces=faces, threads=threads)


def test_faces_without_vertices_are_refused_and_nothing_at_all_is_a_picture() -> None:
    none = np.zeros((0, 4), np.float32)
    refused("index 0 in face 0", clip=none)
    for rule in RULES:
        for clip in (none, arguments()["clip"]):
            given = arguments() | {"clip": clip, "faces": np.zeros((0, 3), np.int32)}
            given["barycentric"][:] = given["depth"][:] = np.nan
            _core.rasterize(**given, rule=rule)
            assert (given["face_index"] == 0).all()
            assert (given["barycentric"] == 0).all()
            assert (given["depth"] == np.inf).all()


@pytest.mark.parametrize("size", [(0, 0), (0, 5), (6, 0), (32769, 1), (1, 32769)])
def test_pictures_of_a_size_that_can_not_be_are_refused(size: tuple[int, int]) -> None:
    given = arguments(*size)
    del given["clip"], given["faces"]
    refused("pixels (high|wide): it must be 1 to 32768", **given)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 1), (32768, 1), (1, 32768), (2, 32768)])
def test_pictures_of_the_least_and_the_largest_size_are_drawn(
    rule: str, size: tuple[int, int]
) -> None:
    given = arguments(*size)
    _core.rasterize(**given, rule=rule)
    # Along a side of one pixel compat has all in one place: no face has an area.
    empty = rule == "compat" and min(size) == 1
    assert (given["face_index"] == (0 if empty else 1)).all()
    shares = given["barycentric"].astype(np.float64).sum(-1)
    assert np.abs(shares - (not empty)).max() < 4 * 2.0**-24


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("prior", (6, 4)), ("prior", (5, 5)), ("barycentric", (6, 4, 3)),
        ("barycentric", (5, 5, 3)), ("depth", (7, 5)), ("depth", (6, 6)), ("depth", (0, 0)),
    ],
)  # fmt: skip
def test_pictures_of_different_sizes_are_refused(name: str, shape: tuple[int, ...]) -> None:
    refused(f"{name} has size", **{name: np.zeros(shape, np.float32)})


@pytest.mark.parametrize("name", ["clip", "faces", "barycentric"])
def test_rows_of_another_length_are_refused(name: str) -> None:
    array = arguments()[name]
    for other in (array[..., :-1], np.concatenate([array, array], -1)):
        refused(f"{name} has", **{name: np.ascontiguousarray(other)})


@pytest.mark.parametrize("name", ["clip", "faces", "prior", "face_index", "barycentric", "depth"])
def test_other_types_dimensions_and_layouts_are_refused(name: str) -> None:
    array = arguments()[name]
    for code in ("f8", "f2", "i8", "u4", "i2", "u1", "?", "c8", ">f4", ">i4"):
        if np.dtype(code) != array.dtype:
            refused(f"{name} (has|must)", (ValueError, TypeError), **{name: array.astype(code)})
    for other in (array[None], array[0], array.reshape(-1), np.zeros((), array.dtype)):
        refused(f"{name} has \\d dimensions", **{name: other})
    wide = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
    for other in (array[::-1], array[..., ::-1], wide[..., ::2], np.asfortranarray(array)):
        refused(f"{name} is not C-contiguous: pass a copy", **{name: other})
    for other in (7, "text", [[0, 1, 2]], object(), 1.5, {}):
        refused(f"{name} must be", (ValueError, TypeError), **{name: other})
    if name not in ("prior", "barycentric", "depth"):
        refused(f"{name} must be", TypeError, **{name: None})


def test_an_array_at_an_odd_address_is_refused() -> None:
    for name in ("clip", "faces", "prior", "depth"):
        array = arguments()[name]
        room = np.zeros(array.nbytes + 1, np.uint8)
        odd = room[1:].view(array.dtype).reshape(array.shape)
        refused(f"{name} is not aligned", **{name: odd})


@pytest.mark.parametrize("name", ["face_index", "barycentric", "depth"])
def test_results_in_read_only_arrays_are_refused(name: str) -> None:
    array = arguments()[name]
    array.flags.writeable = False
    refused(f"{name} is read-only", **{name: array})


def test_read_only_inputs_are_taken() -> None:
    given = arguments()
    for name in ("clip", "faces", "prior"):
        given[name].flags.writeable = False
    _core.rasterize(**given)
    assert (given["face_index"] == 1).all()


def test_results_that_share_memory_are_refused() -> None:
    room = np.zeros(6 * 5 * 8, np.float32)
    pictures = {
        "face_index": room[:30].view(np.int32).reshape(6, 5),
        "barycentric": room[:90].reshape(6, 5, 3),
        "depth": room[29:59].reshape(6, 5),
        "prior": room[20:50].reshape(6, 5),
        "clip": room[:16].reshape(4, 4),
        "faces": room[:6].view(np.int32).reshape(2, 3),
    }
    for one, two in (("face_index", "barycentric"), ("face_index", "depth"),
                     ("barycentric", "depth"), ("prior", "face_index"), ("prior", "depth"),
                     ("clip", "barycentric"), ("faces", "face_index")):  # fmt: skip
        refused("share memory", **{one: pictures[one], two: pictures[two]})


def test_words_and_numbers_out_of_range_are_refused() -> None:
    refused('rule is "nearest": it must be "compat" or "topleft"', rule="nearest")
    refused("rule", rule="")
    refused("rasterize|rule", (TypeError, ValueError), rule=None)
    for threads in (-1, 1025, 2**40):
        refused(f"threads is {threads}", threads=threads)
    refused("threads", (TypeError, ValueError), threads="two")
    refused("cancel", TypeError, cancel=3)


def test_a_requested_cancel_ends_the_call() -> None:
    flag = _core.CancelFlag()
    flag.request()
    for rule in RULES:
        with pytest.raises(_core.Hy3dError, match="cancelled"):
            _core.rasterize(**arguments(), rule=rule, cancel=flag)
    flag.reset()
    _core.rasterize(**arguments(), cancel=flag)


@pytest.mark.parametrize("rule", RULES)
def test_a_failed_allocation_is_an_error_and_the_next_call_works(rule: str) -> None:
    wanted = arguments()
    _core.trim()
    live, start = memory.live(), memory.asked()
    _core.rasterize(**wanted, rule=rule)
    allocations = memory.asked() - start
    assert allocations >= 1
    for forever in (False, True):
        for k in range(1, allocations + 1):
            _core.trim()
            memory.fail(k, forever)
            try:
                with pytest.raises(MemoryError, match="memory"):
                    _core.rasterize(**arguments(), rule=rule)
            finally:
                memory.fail(0, False)
            _core.trim()
            assert memory.live() == live
            given = arguments()
            _core.rasterize(**given, rule=rule)
            assert np.array_equal(given["face_index"], wanted["face_index"])


@pytest.mark.parametrize("rule", RULES)
def test_values_of_the_prior_may_be_anything(rule: str) -> None:
    given = arguments()
    given["prior"][:] = [np.nan, np.inf, -np.inf, 3e38, -3e38]
    _core.rasterize(**given, rule=rule)
    assert (given["face_index"] == [1, 0, 1, 0, 1]).all()


CLIP = arguments()["clip"]
FACES = arguments()["faces"]
SIZE = (6, 5)
INTS = np.zeros((4, 4), np.int32)
TENSOR = torch.from_numpy(CLIP)
INDICES = torch.from_numpy(FACES)
PIXELS = np.zeros((3, 2), np.float32)
DOOR: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no clip": (lambda: raster.rasterize(None, FACES, SIZE), TypeError, "clip is NoneType: give"),
    "no faces": (lambda: raster.rasterize(CLIP, None, SIZE), TypeError, "faces is NoneType: give"),
    "no face indices": (
        lambda: raster.interpolate(CLIP, FACES, None, CLIP[:, :3]), TypeError, "face_index is None",
    ),
    "no attributes": (
        lambda: raster.interpolate(None, FACES, INTS[0], CLIP[:, :3]), TypeError, "attributes is N",
    ),
    "no values": (lambda: raster.scatter(None, PIXELS, SIZE), TypeError, "values is NoneType"),
    "no uv": (lambda: raster.scatter(CLIP, None, SIZE), TypeError, "uv is NoneType"),
    "no positions": (lambda: raster.vertex_normals(None, None), TypeError, "positions is NoneType"),
    "no mask": (
        lambda: raster.inpaint_vertices(
            np.zeros((4, 4, 1)), None, CLIP[:, :3], PIXELS, FACES, FACES
        ),
        TypeError, "mask is NoneType",
    ),
    "a masked array": (
        lambda: raster.rasterize(np.ma.masked_array(CLIP), FACES, SIZE), TypeError,
        r"clip is a masked array, .*: give clip\.filled",
    ),
    "a masked prior": (
        lambda: raster.rasterize(CLIP, FACES, SIZE, prior=np.ma.zeros(SIZE, "f4")), TypeError,
        "prior is a masked array",
    ),
    "bits for integers": (
        lambda: raster.rasterize(TENSOR, INDICES.to(torch.uint8).view(torch.bits8), SIZE),
        TypeError, r"faces is torch\.bits8: give integers",
    ),
    "an array for a rule": (
        lambda: raster.rasterize(CLIP, FACES, SIZE, rule=np.array([1, 2])), ValueError,  # type: ignore[arg-type]
        r"rule is array\(\[1, 2\]\): give one of topleft, compat",
    ),
    "a tensor for a filter": (
        lambda: raster.scatter(CLIP[:3], PIXELS, SIZE, filter=TENSOR), ValueError,  # type: ignore[arg-type]
        "filter is tensor.*: give one of linear, nearest",
    ),
    "words for threads": (
        lambda: raster.rasterize(CLIP, FACES, SIZE, threads="x"), TypeError,  # type: ignore[arg-type]
        "threads is 'x': give an integer of 1 to 1024, or None",
    ),
    "half a thread": (
        lambda: raster.vertex_normals(CLIP[:, :3], FACES, threads=1.5), TypeError,  # type: ignore[arg-type]
        "threads is 1.5",
    ),
    "too many threads": (
        lambda: raster.scatter(CLIP[:3], PIXELS, SIZE, threads=1025), ValueError, "at most 1024",
    ),
    "threads beyond text": (
        lambda: raster.interpolate(CLIP, FACES, INTS[0], CLIP[:, :3], threads=10**5000), ValueError,
        "threads is a number of thousands of digits",
    ),
    "a size beyond text": (
        lambda: raster.rasterize(CLIP, FACES, (10**5000, 4)), ValueError, "thousands of digits x 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DOOR)
def test_what_the_door_cannot_take_never_reaches_the_core(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, kind, sentence = DOOR[case]
    core = Recorder(monkeypatch)
    with pytest.raises(kind, match=sentence) as problem:
        call()
    assert len(str(problem.value)) < 250
    assert not core.calls


def test_random_arguments_end_in_a_result_or_a_sentence() -> None:
    """A share of tests/long/fuzz_arguments.py --function rasterize, in a process of its own."""
    count = str(how_much.of(1500, 4000))
    done = subprocess.run([sys.executable, str(FUZZ), "--function", "rasterize", "--count", count,
                           "--seed", "3"], capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "returned" in done.stdout
