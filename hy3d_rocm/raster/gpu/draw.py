"""The launches that make a picture and interpolate over it; tensors of one device, checked by type and
shape. Imports the kernels, hence triton."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.raster.gpu import kernels

# A fused multiply-add rounds once where the C core rounds twice.
OPTIONS = {"enable_fp_fusion": False}
_NONE = 2**63 - 1
# Programs a launch: some milliseconds, so that a cancel is heard and no watchdog is woken.
_ITEMS_A_LAUNCH = 1 << 18


@dataclass(frozen=True)
class Sizes:
    """Of blocks. most_pixels: of a face's box, for it to be drawn by one lane."""

    faces: int = 64
    most_pixels: int = 48
    tile: int = 16
    pixels: int = 128
    checked: int = 1024
    face_warps: int = 2
    tile_warps: int = 1
    settle_warps: int = 8
    pixel_warps: int = 4


SIZES = Sizes()


@dataclass(frozen=True)
class Problem:
    """What is wrong with the values: a "vertex" that is not finite, the "index" of a "face"'s corner
    or of a "pixel"'s face that is out of range. `at`: the first one's number."""

    kind: str
    at: int


def draw(
    clip: Tensor, triangles: Tensor, height: int, width: int, *, compat: bool,
    prior: Tensor | None = None, cancel: Callable[[], object] | None = None, sizes: Sizes = SIZES,
) -> tuple[Tensor, Tensor, Tensor] | Problem:  # fmt: skip
    """(face_index, barycentric, depth) as in hy3d_rocm.raster.rasterize, or what is wrong.

    clip (V, 4) float32, triangles (F, 3) int32, prior (height, width) float32: dense, on one device.
    cancel is called between launches; what it raises passes. The host waits for the device once.
    """
    device, faces, vertices = clip.device, triangles.shape[0], clip.shape[0]
    keys = torch.full((height, width), _NONE, dtype=torch.int64, device=device)
    status = torch.full((3,), _NONE, dtype=torch.int64, device=device)
    if vertices:
        grid = (-(-vertices // sizes.checked),)
        kernels.check_vertices[grid](clip, status, vertices, BLOCK=sizes.checked, num_warps=4)
    if faces:
        tiles = torch.empty(faces, dtype=torch.int32, device=device)
        grid = (-(-faces // sizes.faces),)
        kernels.draw_faces[grid](
            clip, triangles, keys if prior is None else prior, keys, tiles, status,
            vertices, faces, width, height, COMPAT=compat, HAS_PRIOR=prior is not None,
            MOST=sizes.most_pixels, TILE=sizes.tile, BLOCK=sizes.faces,
            num_warps=sizes.face_warps, **OPTIONS,
        )  # fmt: skip
        ends = torch.cumsum(tiles, 0, dtype=torch.int64)
        status[2] = ends[-1]
    bad_vertex, bad_face, items = status.tolist()
    if bad_vertex != _NONE:
        return Problem("vertex", bad_vertex)
    if bad_face != _NONE:
        return Problem("face", bad_face)
    if faces and items:
        doubts = torch.empty(min(items, _ITEMS_A_LAUNCH), dtype=torch.int32, device=device)
        for first in range(0, items, _ITEMS_A_LAUNCH):
            if cancel is not None:
                cancel()
            for kernel, warps in (
                (kernels.draw_tiles, sizes.tile_warps), (kernels.settle_tiles, sizes.settle_warps)
            ):
                kernel[(min(items - first, _ITEMS_A_LAUNCH),)](
                    clip, triangles, keys if prior is None else prior, keys, tiles, ends, doubts,
                    faces, width, height, first, COMPAT=compat, HAS_PRIOR=prior is not None,
                    TILE=sizes.tile, num_warps=warps, **OPTIONS,
                )  # fmt: skip
    return _read(clip, triangles, keys, compat, sizes)


def _read(
    clip: Tensor, triangles: Tensor, keys: Tensor, compat: bool, sizes: Sizes
) -> tuple[Tensor, Tensor, Tensor]:
    height, width = keys.shape
    face_index = torch.empty((height, width), dtype=torch.int32, device=keys.device)
    barycentric = torch.empty((height, width, 3), dtype=torch.float32, device=keys.device)
    depth = torch.empty((height, width), dtype=torch.float32, device=keys.device)
    grid: Any = (-(-width // sizes.pixels), height)
    kernels.read_keys[grid](
        clip, triangles, keys, face_index, barycentric, depth, width, height,
        COMPAT=compat, BLOCK=sizes.pixels, num_warps=sizes.pixel_warps, **OPTIONS,
    )  # fmt: skip
    return face_index, barycentric, depth


def interpolate(
    attributes: Tensor, triangles: Tensor, face_index: Tensor, barycentric: Tensor
) -> Tensor | Problem:
    """(N, C) float32 of attributes (V, C), triangles (F, 3), face_index (N,), barycentric (N, 3): as
    in hy3d_rocm.raster.interpolate, or what is wrong. Dense, int32 and float32, on one device."""
    (vertices, channels), faces = attributes.shape, triangles.shape[0]
    pixels, device = face_index.shape[0], attributes.device
    status = torch.full((2,), _NONE, dtype=torch.int64, device=device)
    for slot, (values, limit) in enumerate(((triangles, vertices), (face_index, faces + 1))):
        if values.numel():
            kernels.check_indices[(-(-values.numel() // SIZES.checked),)](
                values, status, values.numel(), limit, slot, BLOCK=SIZES.checked, num_warps=4
            )
    out = torch.empty((pixels, channels), dtype=torch.float32, device=device)
    if pixels and channels:
        across = min(32, 1 << (channels - 1).bit_length())
        block = 1024 // across if across > 4 else 256
        kernels.interpolate_pixels[(-(-pixels // block), -(-channels // across))](
            attributes, triangles, face_index, barycentric, out, vertices, faces, channels, pixels,
            BLOCK=block, CHANNELS=across, num_warps=4, **OPTIONS,
        )  # fmt: skip
    bad_index, bad_pixel = status.tolist()
    if bad_index != _NONE:
        return Problem("face", bad_index // 3)
    return Problem("pixel", bad_pixel) if bad_pixel != _NONE else out
