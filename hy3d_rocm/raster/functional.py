"""The rasteriser, and what a texture stage does with its pictures, for NumPy arrays and tensors.

NumPy arrays give NumPy arrays, torch tensors give tensors on the same device; tensors on a GPU are
rasterised there where that is possible (`raster/gpu`), else copied to main memory and back. Any
strides will do. Numbers are computed in float32: float64, float16 and bfloat16 are converted. No
gradient is known here, as in the rasteriser that this stands in for: inputs that require grad are
read as if detached, and results do not require grad.

Inputs must not be changed by another thread during a call: they are read where they are, without
the GIL, and were checked before. Of subclasses of NumPy's array the plain array is read and given
back; masked arrays are refused.

Errors, all sentences: TypeError for what is no array, mixed kinds and wrong types of numbers;
ValueError for shapes, devices, sizes, NaN or infinite vertices and bad indices (which one is said);
Hy3dError where the C core is not there, and for a cancelled call; MemoryError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hy3d_rocm import _native
from hy3d_rocm.raster import arrays
from hy3d_rocm.units import brief

RULES = ("topleft", "compat")
FILTERS = ("linear", "nearest")
WEIGHTINGS = ("area", "angle")
METHODS = ("smooth",)


def rasterize(
    clip: Any,
    faces: Any,
    size: Sequence[int],
    *,
    rule: str = "topleft",
    prior: Any = None,
    threads: int | None = None,
    cancel: Any = None,
) -> arrays.Raster:
    """Which face is seen in each pixel, and where on it.

    clip: (V, 4) vertices X, Y, Z, W in clip space, all finite.  faces: (F, 3) integers below V.
    size: (height, width), 1 to 32768 each. Row 0 is Y = -1, column 0 is X = -1.
    rule: "topleft" is OpenGL's, Vulkan's and Direct3D's (what is nearer than the near plane or
        beyond the far one is cut off, each pixel of a shared edge is covered once); "compat" is
        the texture packs' (edges belong to both sides, nothing is clipped).
    prior: (height, width) Z/W of what was drawn before; what is nearer is left out (depth peeling).
    threads: 1 to 1024; None takes torch.get_num_threads() of the calling thread where torch is
        imported, else every CPU this process may use. The result has the same bits by any number.
    cancel: a CancelFlag of hy3d_rocm._native.

    Front and back faces are drawn; of equal depths the lower face is seen. No faces give an empty
    picture.
    """
    return drawn(clip, faces, size, rule, prior=prior, threads=threads, cancel=cancel)


def drawn(
    clip: Any,
    faces: Any,
    size: Sequence[int],
    rule: str,
    *,
    prior: Any = None,
    with_depth: bool = True,
    threads: int | None = None,
    cancel: Any = None,
) -> arrays.Raster:
    """`rasterize`; without depth that of the result is None or whatever was made on the way."""
    height, width = arrays.checked_size(size)
    _one_of("rule", rule, RULES)
    door = arrays.door_of({"clip": clip, "faces": faces}, prior=prior)
    threads = arrays.checked_threads(threads)
    if door.on_gpu and (gpu := _gpu()) is not None:
        found: arrays.Raster | None = gpu.rasterize_on_gpu(
            clip, faces, (height, width), rule=rule, prior=prior, cancel=cancel
        )
        if found is not None:
            return found
    needed = None if prior is None else door.floats(prior, "prior", (height, width))
    vertices = door.floats(clip, "clip", ("V", 4))
    triangles = door.indices(faces, "faces", ("F", 3))
    index = np.empty((height, width), np.int32)
    barycentric = np.empty((height, width, 3), np.float32)
    depth = np.empty((height, width), np.float32) if with_depth else None
    _native.rasterize(
        vertices, triangles, needed, index, barycentric, depth, rule=rule,
        threads=threads, cancel=cancel,
    )  # fmt: skip
    given = door.give(depth) if depth is not None else None
    return arrays.Raster(door.give(index), door.give(barycentric), given)


def interpolate(
    attributes: Any,
    faces: Any,
    face_index: Any,
    barycentric: Any,
    *,
    threads: int | None = None,
    cancel: Any = None,
) -> Any:
    """Attributes of vertices at the pixels of a picture; 0 where nothing was drawn.

    attributes: (V, C), C at least 1.  faces: (F, 3).  face_index: (...) and barycentric: (..., 3)
    as `rasterize` gives them. The result is (..., C) float32. `faces` may be other triples than
    those of the picture, as long as there are as many: indices of texture coordinates.
    """
    door = arrays.door_of({"attributes": attributes, "faces": faces, "face_index": face_index,
                    "barycentric": barycentric})  # fmt: skip
    threads = arrays.checked_threads(threads)
    space, weights = arrays.leading(barycentric, "barycentric", (3,))
    if tuple(face_index.shape) != space:
        raise ValueError(
            f"face_index has shape {tuple(face_index.shape)} and barycentric "
            f"{tuple(barycentric.shape)}: they must be (...) and (..., 3) of one picture"
        )
    if door.on_gpu and (gpu := _gpu()) is not None:
        found = gpu.interpolate_on_gpu(attributes, faces, face_index, barycentric)
        if found is not None:
            return found
    values = door.floats(attributes, "attributes", ("V", "C"))
    result = np.empty((weights.shape[0], values.shape[1]), np.float32)
    _native.interpolate(
        values, door.indices(faces, "faces", ("F", 3)),
        door.indices(face_index, "face_index", space).reshape(-1),
        door.floats(weights, "barycentric", ("N", 3)), result,
        threads=threads, cancel=cancel,
    )  # fmt: skip
    return door.give(result.reshape((*space, values.shape[1])))


def scatter(
    values: Any,
    uv: Any,
    size: Sequence[int],
    *,
    weights: Any = None,
    filter: str = "linear",  # noqa: A002  (the word for it)
    threads: int | None = None,
    cancel: Any = None,
) -> arrays.Scattered:
    """Puts values into a texture where their texture coordinates say: back-projection.

    values: (..., C).  uv: (..., 2) in 0..1, (0, 0) the middle of the first texel and (1, 1) that
        of the last one, u along the width, v along the height (no flip); what is outside is left
        out.  size: (height, width).  weights: (...), None for 1 each.
    filter: "linear" shares a value among four texels, "nearest" gives it to one.
    """
    height, width = arrays.checked_size(size)
    _one_of("filter", filter, FILTERS)
    door = arrays.door_of({"values": values, "uv": uv}, weights=weights)
    threads = arrays.checked_threads(threads)
    space, places = arrays.leading(uv, "uv", (2,))
    _, flat = arrays.leading(values, "values", ("C",))
    named = {"values": tuple(values.shape[:-1])}
    if weights is not None:
        named["weights"] = tuple(weights.shape)
    for name, found in named.items():
        if found != space:
            raise ValueError(
                f"{name} is for {found} pixels and uv for {space}: their leading sizes must agree"
            )
    colours = door.floats(flat, "values", ("N", "C"))
    counted = None if weights is None else door.floats(weights, "weights", space).reshape(-1)
    texture = np.zeros((height, width, colours.shape[1]), np.float32)
    total = np.zeros((height, width), np.float32)
    _native.scatter(
        colours, door.floats(places, "uv", ("N", 2)), counted, texture, total, filter=filter,
        threads=threads, cancel=cancel,
    )  # fmt: skip
    return arrays.Scattered(door.give(texture), door.give(total))


def vertex_normals(
    positions: Any,
    faces: Any,
    *,
    weighting: str = "area",
    threads: int | None = None,
    cancel: Any = None,
) -> Any:
    """Smooth unit normals of vertices, (V, 3): of the faces around, weighted by their area or by
    the angle at the vertex; 0 for a vertex without a face that has an area.

    positions: (V, 3).  faces: (F, 3).
    """
    _one_of("weighting", weighting, WEIGHTINGS)
    door = arrays.door_of({"positions": positions, "faces": faces})
    threads = arrays.checked_threads(threads)
    places = door.floats(positions, "positions", ("V", 3))
    normals = np.empty(places.shape, np.float32)
    _native.vertex_normals(
        places, door.indices(faces, "faces", ("F", 3)), normals, weighting=weighting,
        threads=threads, cancel=cancel,
    )  # fmt: skip
    return door.give(normals)


def inpaint_vertices(
    texture: Any,
    mask: Any,
    positions: Any,
    uvs: Any,
    faces: Any,
    uv_faces: Any,
    *,
    method: str = "smooth",
    cancel: Any = None,
) -> tuple[Any, Any]:
    """Colours at vertices that the mask leaves out, from their neighbours over the mesh.

    texture: (H, W, C).  mask: (H, W) uint8 or bool, not 0 where the texture is known.
    positions: (V, 3).  uvs: (U, 2), v = 1 is row 0.  faces, uv_faces: (F, 3) into them.
    Returns a new texture (float32) and a new mask (of the mask's type); inputs stay as they are.
    """
    _one_of("method", method, METHODS)
    door = arrays.door_of({"texture": texture, "mask": mask, "positions": positions, "uvs": uvs,
                    "faces": faces, "uv_faces": uv_faces})  # fmt: skip
    painted = np.array(door.floats(texture, "texture", ("H", "W", "C")), order="C")
    known = door.bytes_of(mask, "mask", painted.shape[:2])
    _native.inpaint_vertices(
        painted, known, door.floats(positions, "positions", ("V", 3)),
        door.floats(uvs, "uvs", ("U", 2)), door.indices(faces, "faces", ("F", 3)),
        door.indices(uv_faces, "uv_faces", ("F", 3)), method=method, cancel=cancel,
    )  # fmt: skip
    return door.give(painted), door.give(known, like=mask)


def _gpu() -> Any:
    """What computes on the tensors' GPU; its functions answer None where that cannot be done."""
    try:
        from hy3d_rocm.raster.gpu import dispatch
    except ImportError:  # no Triton here, or one that does not load
        return None
    return dispatch


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is {brief(value)}: give one of {', '.join(choices)}")
