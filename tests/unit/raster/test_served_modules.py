"""The served modules keep the contract of those that they stand in for.

The numbers are small integers and halves, so that equality is exact; where a division comes in, the
bound is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from raster_doubles import Recorder

from hy3d_rocm import _native
from hy3d_rocm.raster import finder, served

HALF = [[-1.0, -1, 0, 1], [1, -1, 0, 1], [-1, 1, 0, 1]]  # the half of a picture above its diagonal


@pytest.fixture(name="cr")
def served_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`import custom_rasterizer`, as a pack does it."""
    if not _native.available:
        pytest.skip("the C core is not built")
    monkeypatch.delenv(finder.VARIABLE, raising=False)
    finder.install()
    import custom_rasterizer  # type: ignore[import-not-found]

    yield custom_rasterizer
    finder.uninstall()


def scene(vertices: Any, faces: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([vertices], dtype=torch.float32), torch.tensor(faces, dtype=torch.int32)


def test_edges_and_corners_are_inside_and_row_0_is_the_lowest_y(cr: Any) -> None:
    pos, tri = scene(HALF, [[0, 1, 2]])
    findices, barycentric = cr.rasterize(pos, tri, (5, 5))
    assert findices.dtype == torch.int32
    assert barycentric.dtype == torch.float32
    assert findices.tolist() == [[1] * (5 - row) + [0] * row for row in range(5)]
    for row in range(5):
        for column in range(5 - row):
            wanted = [1 - Fraction(row + column, 4), Fraction(column, 4), Fraction(row, 4)]
            assert barycentric[row, column].tolist() == [float(part) for part in wanted]
    assert not barycentric[findices == 0].any()


def test_resolution_is_height_and_width(cr: Any) -> None:
    pos, tri = scene(HALF, [[0, 1, 2]])
    for size in ((3, 7), [3, 7], torch.Size((3, 7)), (3.0, 7.0), torch.tensor([3, 7])):
        findices, barycentric = cr.rasterize(pos, tri, size)
        assert findices.shape == (3, 7)
        assert barycentric.shape == (3, 7, 3)
    assert findices[0].tolist() == [1] * 7
    assert findices[:, 0].tolist() == [1] * 3


def test_both_facings_count_and_of_equal_depths_the_lower_face_is_seen(cr: Any) -> None:
    pos, tri = scene(HALF, [[0, 2, 1], [0, 1, 2]])
    assert cr.rasterize(pos, tri, (4, 4))[0].max() == 1
    assert cr.rasterize(pos, tri.flip(0), (4, 4))[0].max() == 1


def test_the_smaller_depth_is_seen(cr: Any) -> None:
    near = [[x, y, -0.5, w] for x, y, _, w in HALF]
    pos, tri = scene(HALF + near, [[0, 1, 2], [3, 4, 5]])
    assert cr.rasterize(pos, tri, (4, 4))[0].unique().tolist() == [0, 2]


def test_depths_less_than_a_step_apart_are_equal(cr: Any) -> None:
    """Steps of 2^-18 of Z/W * 0.49999 + 0.5: 2^-20 less of Z is no step, 2^-16 less is one."""
    for less, seen in ((2.0**-20, 1), (2.0**-16, 2)):
        far = [[x, y, 2.0**-18, w] for x, y, _, w in HALF]
        near = [[x, y, 2.0**-18 - less, w] for x, y, _, w in HALF]
        pos, tri = scene(far + near, [[0, 1, 2], [3, 4, 5]])
        assert cr.rasterize(pos, tri, (4, 4))[0].max() == seen


def test_barycentrics_are_in_perspective(cr: Any) -> None:
    """A face whose corners have W 1, 2 and 2, in the middle of an edge with W 1 and 2: in space
    that is two thirds of the way to the nearer corner."""
    pos, tri = scene([[-1, -1, 0, 1], [2, -2, 0, 2], [-2, 2, 0, 2]], [[0, 1, 2]])
    barycentric = cr.rasterize(pos, tri, (3, 3))[1]
    assert np.allclose(barycentric[0, 1], [2 / 3, 1 / 3, 0], rtol=0, atol=1e-5)
    assert np.allclose(barycentric[1, 1], [0, 0.5, 0.5], rtol=0, atol=1e-5)


def test_nothing_is_clipped(cr: Any) -> None:
    beyond = [[x, y, 5.0, w] for x, y, _, w in HALF]
    pos, tri = scene(beyond, [[0, 1, 2]])
    assert cr.rasterize(pos, tri, (4, 4))[0][0].tolist() == [1] * 4


def test_with_a_prior_what_lies_before_it_is_peeled_off(cr: Any) -> None:
    far = [[x, y, 0.5, w] for x, y, _, w in HALF]
    pos, tri = scene(HALF + far, [[0, 1, 2], [3, 4, 5]])
    prior = torch.full((4, 4), 0.25)
    assert cr.rasterize(pos, tri, (4, 4), prior, 0)[0].max() == 1
    assert cr.rasterize(pos, tri, (4, 4), prior, 1)[0].max() == 2
    assert cr.rasterize(pos, tri, (4, 4), clamp_depth=prior + 0.5, use_depth_prior=1)[0].max() == 0
    assert cr.rasterize(pos, tri, (4, 4), torch.zeros(0), 0)[0].max() == 1
    with pytest.raises(ValueError, match="no clamp_depth"):
        cr.rasterize(pos, tri, (4, 4), use_depth_prior=1)
    with pytest.raises(ValueError, match=r"prior has shape \(0,\)"):
        cr.rasterize(pos, tri, (4, 4), torch.zeros(0), 1)


def test_face_indices_may_come_back_as_floats_and_as_parts_of_a_larger_tensor(cr: Any) -> None:
    """As the packs hand them on: concatenated with the barycentrics, then taken apart."""
    pos, tri = scene(HALF, [[0, 1, 2]])
    findices, barycentric = cr.rasterize(pos, tri, (5, 5))
    together = torch.cat((barycentric, findices.unsqueeze(-1)), dim=-1).unsqueeze(0)
    colours = torch.tensor([[[0.0, 8, 4, 1], [4, 0, 4, 1], [8, 4, 4, 1]]])
    found = cr.interpolate(colours, together[0, ..., -1], together[0, ..., :-1], tri)
    assert found.shape == (1, 5, 5, 4)
    assert torch.equal(found, cr.interpolate(colours, findices, barycentric, tri))
    assert torch.equal(found[0], (barycentric @ colours[0]) * (findices > 0)[..., None])


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 17])
def test_any_number_of_channels_is_interpolated(cr: Any, channels: int) -> None:
    pos, tri = scene(HALF, [[0, 1, 2]])
    findices, barycentric = cr.rasterize(pos, tri, (5, 5))
    values = torch.arange(3.0 * channels).reshape(1, 3, channels) * 4
    found = cr.interpolate(values, findices, barycentric, tri)
    assert torch.equal(found[0], (barycentric @ values[0]) * (findices > 0)[..., None])


def test_numpy_arrays_are_taken_too(cr: Any) -> None:
    pos, tri = (tensor.numpy() for tensor in scene(HALF, [[0, 1, 2]]))
    findices, barycentric = cr.rasterize(pos, tri, (5, 5))
    assert isinstance(findices, np.ndarray)
    found = cr.interpolate(pos, findices.astype(np.float32), barycentric, tri)
    assert found.shape == (1, 5, 5, 4)
    assert isinstance(found, np.ndarray)


def test_a_mesh_without_faces_is_an_empty_picture(cr: Any) -> None:
    pos, _ = scene(HALF, [[0, 1, 2]])
    findices, barycentric = cr.rasterize(pos, torch.zeros((0, 3), dtype=torch.int32), (4, 4))
    assert not findices.any()
    assert not barycentric.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_on_a_gpu_results_stay_there_and_have_the_cpus_bits(cr: Any) -> None:
    """Drawn on the GPU or copied out and back. Replay: the seed is 7."""
    generator = torch.Generator().manual_seed(7)
    pos = torch.randn((1, 300, 4), generator=generator)
    pos[..., 3] = pos[..., 3].abs() + 0.5
    tri = torch.randint(0, 300, (500, 3), generator=generator, dtype=torch.int32)
    prior = torch.full((96, 128), -0.25)
    colours = torch.rand((1, 300, 5), generator=generator)
    for peeled in ((), (prior, 1)):
        found = cr.rasterize(pos, tri, (96, 128), *peeled)
        at_gpu = [part.cuda() if isinstance(part, torch.Tensor) else part for part in peeled]
        on_gpu = cr.rasterize(pos.cuda(), tri.cuda(), (96, 128), *at_gpu)
        shown = cr.interpolate(colours, found[0].float(), found[1], tri)
        shown_there = cr.interpolate(colours.cuda(), on_gpu[0].float(), on_gpu[1], tri.cuda())
        for one, other in zip((*found, shown), (*on_gpu, shown_there), strict=True):
            assert other.device.type == "cuda"
            assert torch.equal(one, other.cpu())
    with pytest.raises(ValueError, match="on cuda:0 and tri on cpu"):
        cr.rasterize(pos.cuda(), tri, (96, 128))


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("made", [lambda tensor: tensor, lambda tensor: tensor.float().numpy()])
def test_a_face_index_that_is_no_whole_number_reaches_the_core_as_minus_1(
    kind: torch.dtype, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not as what a conversion makes of it, which is 0 on some devices: nothing drawn."""
    core = Recorder(monkeypatch)
    findices = torch.tensor([[2.0, float("nan"), float("inf"), -float("inf")],
                             [0.5, -0.0, 2.0**31 if kind.itemsize > 2 else 1.5, -3.0]])  # fmt: skip
    findices = findices.to(kind)
    weights, faces = torch.zeros(2, 4, 3), torch.tensor([[0, 1, 2]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        served.interpolate(
            *(made(part) for part in (torch.zeros(1, 3, 2), findices, weights)),
            faces if isinstance(made(weights), torch.Tensor) else faces.numpy(),
        )
    assert core.last[2].tolist() == [2, -1, -1, -1, -1, 0, -1, -3]


BAD_SIZES = [4, None, ("a", 4), (None, 4), (10**400, 4), (10**5000, 4), (float("nan"), 4),
             (float("inf"), 4), (1e300, 4), (2.5, 4), "44", ("4", 4), (4,), (4, 4, 4), (1j, 4),
             torch.tensor(4), torch.ones(2, 2), object()]  # fmt: skip


@pytest.mark.parametrize("at", range(len(BAD_SIZES)))
def test_a_resolution_that_is_none_is_refused_in_a_short_sentence(at: int) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^size is ") as problem:
        served.rasterize(*scene(HALF, [[0, 1, 2]]), BAD_SIZES[at])
    assert len(str(problem.value)) < 250


@pytest.mark.parametrize("name", ["pos", "tri", "col", "findices", "barycentric"])
@pytest.mark.parametrize("value", [[[1]], None, 7])
def test_what_is_no_array_is_named_as_the_caller_knows_it(name: str, value: Any) -> None:
    pos, tri = scene(HALF, [[0, 1, 2]])
    drawn = {"pos": pos, "tri": tri}
    shown = {"col": pos, "findices": torch.zeros(4, 4), "barycentric": torch.zeros(4, 4, 3)}
    sentence = f"^{name} is {type(value).__name__}: give a NumPy array or a torch tensor"
    if name in drawn:
        with pytest.raises(TypeError, match=sentence):
            served.rasterize(**drawn | {name: value}, resolution=(4, 4))
    if name not in ("pos",):
        with pytest.raises(TypeError, match=sentence):
            served.interpolate(**shown | {"tri": tri} | {name: value})


def bad_calls(cr: Any) -> dict[str, tuple[Any, str]]:
    pos, tri = scene(HALF, [[0, 1, 2]])
    findices, barycentric = cr.rasterize(pos, tri, (4, 4))
    broken = pos.clone()
    broken[0, 1, 2] = float("nan")
    endless = torch.full((4, 4), float("inf"))
    return {
        "two meshes": (lambda: cr.rasterize(pos.repeat(2, 1, 1), tri, (4, 4)), r"\(1, V, 4\)"),
        "no batch": (lambda: cr.rasterize(pos[0], tri, (4, 4)), r"pos has shape \(3, 4\)"),
        "NaN": (lambda: cr.rasterize(broken, tri, (4, 4)), "vertex 1"),
        "an index too high": (lambda: cr.rasterize(pos, tri + 1, (4, 4)), "index 3"),
        "an index below 0": (lambda: cr.rasterize(pos, tri - 1, (4, 4)), "index -1"),
        "no picture": (lambda: cr.rasterize(pos, tri, (0, 4)), "0 x 4"),
        "colours without batch": (
            lambda: cr.interpolate(pos[0], findices, barycentric, tri), r"\(1, V, C\)",
        ),
        "a face that is not there": (
            lambda: cr.interpolate(pos, findices + 1, barycentric, tri), "2",
        ),
        "no face index": (lambda: cr.interpolate(pos, endless, barycentric, tri), "face_index"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "case",
    ["two meshes", "no batch", "NaN", "an index too high", "an index below 0", "no picture",
     "colours without batch", "a face that is not there", "no face index"],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_a_sentence(cr: Any, case: str) -> None:
    call, sentence = bad_calls(cr)[case]
    with pytest.raises(ValueError, match=sentence):
        call()


TRIANGLE = (
    np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]]),
    np.array([[0.0, 0], [1, 0], [0, 1]]),
    np.array([[0, 1, 2]]),
)


@pytest.mark.parametrize("kind", ["numpy", "torch", "lists", "float64", "mixed"])
def test_the_mesh_processor_takes_what_its_callers_pass(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Recorder(monkeypatch)
    texture, mask = np.full((4, 5, 3), 0.5, np.float32), np.ones((4, 5), np.uint8)
    places, uvs, faces = TRIANGLE
    given: tuple[Any, ...] = (texture, mask, places.astype("f4"), uvs.astype("f4"), faces, faces)
    if kind == "torch":
        given = tuple(torch.from_numpy(array) for array in given)
    elif kind == "lists":
        given = tuple(array.tolist() for array in given)
    elif kind == "float64":
        given = (texture.astype(float), mask.astype(bool), places, uvs, faces, faces)
    elif kind == "mixed":
        given = (*given[:2], torch.from_numpy(places), *given[3:5], torch.from_numpy(faces))
    painted, known = served.meshVerticeInpaint(*given)
    assert isinstance(painted, np.ndarray)
    assert painted.dtype == np.float32
    assert painted.shape == (4, 5, 3)
    assert known.dtype == np.uint8
    assert [array.dtype for array in core.last] == [
        np.float32, np.uint8, np.float32, np.float32, np.int32, np.int32,
    ]  # fmt: skip
    assert core.named == {"method": "smooth", "cancel": None}
    assert np.all(texture == 0.5)
    assert np.all(mask == 1)


def inpainted(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> Recorder:
    """The core that records, after a call with a known mesh."""
    core = Recorder(monkeypatch)
    places, uvs, faces = TRIANGLE
    given = {"texture": np.zeros((2, 3, 1), np.float32), "mask": np.ones((2, 3), np.uint8),
             "vtx_pos": places, "vtx_uv": uvs, "pos_idx": faces, "uv_idx": faces}  # fmt: skip
    seen: list[Any] = []
    core_answers = _native.inpaint_vertices

    def looked_at(painted: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        seen.append((painted.copy(), mask.copy()))
        return core_answers(painted, mask, *rest, **named)

    monkeypatch.setattr(_native, "inpaint_vertices", looked_at)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        served.meshVerticeInpaint(**(given | changed))
    core.seen = seen[0]  # type: ignore[attr-defined]
    return core


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        ([[0, 1, 255], [256, -256, 300]], None), ([[0, 1, 255], [256, -256, 2**40]], "int64"),
        ([[0, 1, 255], [0.5, -1e-30, float("inf")]], "float64"),
        ([[0, 1, 255], [0.5, -0.5, 1e-7]], "float16"), ([[0, 1, 255], [256, 512, 1024]], "uint16"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("tensor", [False, True])
def test_any_number_but_0_in_a_mask_is_known(
    mask: Any, kind: str | None, tensor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: Any = mask if kind is None else np.array(mask, kind)
    if tensor:
        given = torch.from_numpy(np.array(given))
    seen = inpainted(monkeypatch, mask=given).seen[1]  # type: ignore[attr-defined]
    assert seen.tolist() == [[0, 1, 255], [255, 255, 255]]


def test_a_mask_of_bytes_is_passed_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = np.array([[0, 1, 2], [127, 128, 255]], np.uint8)
    for given in (mask, torch.from_numpy(mask), mask.astype(np.int8).view(np.uint8), mask.tolist()):
        assert np.array_equal(inpainted(monkeypatch, mask=given).seen[1], mask)  # type: ignore[attr-defined]
    assert inpainted(monkeypatch, mask=mask > 1).seen[1].tolist() == [[0, 0, 1], [1, 1, 1]]  # type: ignore[attr-defined]
    small = np.array([[0, 1, 2], [-1, -128, 127]], np.int8)
    assert inpainted(monkeypatch, mask=small).seen[1].tolist() == [[0, 1, 2], [255, 255, 127]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64, torch.int32])
def test_tensors_of_kinds_that_numpy_lacks_are_read(
    kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    texture = torch.arange(6).reshape(2, 3, 1).to(kind)
    faces = torch.tensor([[0, 1, 2]]).to(kind)
    if kind.is_floating_point:
        texture.requires_grad_()
    core = inpainted(monkeypatch, texture=texture, pos_idx=faces, mask=texture[..., 0])
    painted, known = core.seen  # type: ignore[attr-defined]
    assert painted.dtype == np.float32
    assert painted.ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert known.ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert core.last[4].tolist() == [[0, 1, 2]]


NAN = float("nan")
MASKED = np.ma.masked_array(np.zeros((2, 3)), np.eye(2, 3))
BAD_PROCESSOR: dict[str, tuple[str, Any, type[Exception], str]] = {
    "a mask with a NaN": ("mask", [[0, 1, 1], [0, NAN, 0]], ValueError, r"mask is NaN at \(1, 1\)"),
    "a masked array": ("mask", MASKED, TypeError, "mask is a masked array"),
    "half an index": ("pos_idx", [[0, 1.5, 2]], ValueError, r"pos_idx is 1\.5 at \(0, 1\)"),
    "no index": ("uv_idx", np.array([[0, 1, NAN]]), ValueError, r"uv_idx is nan at \(0, 2\)"),
    "endless": ("uv_idx", torch.tensor([[0, 1, NAN + 1]]), ValueError, "uv_idx is nan"),
    "an index beyond": ("pos_idx", [[0, 1, 1e30]], ValueError, r"pos_idx is 1e\+30 at"),
    "no array": ("texture", None, TypeError, "texture is of object: give an array of real"),
    "words": ("mask", [["a"]], TypeError, "mask is of <U1"),
    "rows that differ": ("vtx_pos", [[1.0], [1.0, 2.0]], TypeError, r"vtx_pos is \[\[1"),
    "complex": ("texture", np.zeros((2, 3, 1), complex), TypeError, "texture is of complex128"),
    "bits": ("mask", torch.zeros(2, 3, dtype=torch.uint8).view(torch.bits8), TypeError, "bits8"),
    "no data": ("texture", torch.zeros(2, 3, 1, device="meta"), ValueError, "texture has no data"),
    "sparse": ("texture", torch.zeros(2, 3, 1).to_sparse(), ValueError, "give a dense tensor"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_PROCESSOR)
def test_the_mesh_processor_refuses_what_does_not_fit_with_a_sentence(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, value, kind, sentence = BAD_PROCESSOR[case]
    with pytest.raises(kind, match=sentence):
        inpainted(monkeypatch, **{name: value})
