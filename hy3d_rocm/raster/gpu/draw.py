"""The launches that make a picture, and interpolate over one. Imports the kernels, hence triton.

Tensors here are dense, of the types that are said, and all on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.raster.gpu import kernels

# A fused multiply-add rounds once where the C core rounds twice.
_ROUNDING = {"enable_fp_fusion": False}
_NONE = 2**63 - 1
# Programs a launch: some milliseconds, so that a cancel is heard and no watchdog is woken.
_TILES_A_LAUNCH = 1 << 18

Picture = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Sizes:
    """Of blocks, and how many waves share one.

    most_pixels: of a face's box, for one lane to draw it. checked: values looked at by a program.
    """

    faces: int = 64
    most_pixels: int = 128
    tile: int = 16
    pixels: int = 128
    checked: int = 1024
    face_warps: int = 2
    tile_warps: int = 1
    settle_warps: int = 8
    pixel_warps: int = 4


def sizes_for(wave: int) -> Sizes:
    """A face or pixel a lane, for waves of 32 or 64 lanes."""
    return Sizes() if wave == 32 else Sizes(face_warps=1, settle_warps=4, pixel_warps=2)


def draw(
    clip: Tensor, triangles: Tensor, height: int, width: int, *, compat: bool,
    prior: Tensor | None = None, is_cancelled: Callable[[], bool] = lambda: False,
    sizes: Sizes | None = None,
) -> Picture | None:  # fmt: skip
    """(face_index, barycentric, depth) as of hy3d_rocm.raster.rasterize. None: a vertex is not
    finite, an index out of range, or the call is cancelled; the C core finds words for it.

    clip (V, 4) float32, triangles (F, 3) int32, prior (height, width) float32. The host waits for
    the device once. Takes 8 bytes a pixel and 12 a face.
    """
    sizes = sizes or Sizes()
    keys = torch.full((height, width), _NONE, dtype=torch.int64, device=clip.device)
    rules = {"COMPAT": compat, "HAS_PRIOR": prior is not None, "TILE": sizes.tile}
    before = keys if prior is None else prior
    drawn = _draw_faces(clip, triangles, before, keys, rules, sizes)
    if drawn is None:
        return None
    tiles, ends, count = drawn
    waiting = min(count, _TILES_A_LAUNCH)
    doubts = torch.empty(waiting, dtype=torch.int32, device=clip.device)
    for first in range(0, count, _TILES_A_LAUNCH):
        if is_cancelled():
            return None
        for kernel, warps in (
            (kernels.draw_tiles, sizes.tile_warps),
            (kernels.settle_tiles, sizes.settle_warps),
        ):
            kernel[(min(count - first, _TILES_A_LAUNCH),)](
                clip, triangles, before, keys, tiles, ends, doubts, triangles.shape[0], width,
                height, first, **rules, num_warps=warps, **_ROUNDING,
            )  # fmt: skip
    return _read(clip, triangles, keys, compat, sizes)


def _draw_faces(
    clip: Tensor, triangles: Tensor, before: Tensor, keys: Tensor, rules: Any, sizes: Sizes
) -> tuple[Tensor, Tensor, int] | None:
    """Small faces, and checks. Of those left: each one's tiles, their sums, and their number. None
    where a value is wrong."""
    device, faces, vertices = clip.device, triangles.shape[0], clip.shape[0]
    height, width = keys.shape
    status = torch.full((3,), _NONE, dtype=torch.int64, device=device)
    tiles = torch.empty(faces, dtype=torch.int32, device=device)
    if vertices:
        kernels.check_vertices[(-(-vertices // sizes.checked),)](
            clip, status, vertices, BLOCK=sizes.checked, num_warps=4
        )
    if faces:
        kernels.draw_faces[(-(-faces // sizes.faces),)](
            clip, triangles, before, keys, tiles, status, vertices, faces, width, height, **rules,
            MOST=sizes.most_pixels, BLOCK=sizes.faces, num_warps=sizes.face_warps, **_ROUNDING,
        )  # fmt: skip
    ends = torch.cumsum(tiles, 0, dtype=torch.int64)
    status[2:] = ends[-1:].sum()  # 0 without faces
    bad_vertex, bad_face, count = status.tolist()
    return (tiles, ends, count) if bad_vertex == bad_face == _NONE else None


def _read(clip: Tensor, triangles: Tensor, keys: Tensor, compat: bool, sizes: Sizes) -> Picture:
    height, width = keys.shape
    face_index = torch.empty((height, width), dtype=torch.int32, device=keys.device)
    barycentric = torch.empty((height, width, 3), dtype=torch.float32, device=keys.device)
    depth = torch.empty((height, width), dtype=torch.float32, device=keys.device)
    grid: Any = (-(-width // sizes.pixels), height)
    kernels.read_keys[grid](
        clip, triangles, keys, face_index, barycentric, depth, width, height,
        COMPAT=compat, BLOCK=sizes.pixels, num_warps=sizes.pixel_warps, **_ROUNDING,
    )  # fmt: skip
    return face_index, barycentric, depth


def interpolate(
    attributes: Tensor, triangles: Tensor, face_index: Tensor, barycentric: Tensor
) -> Tensor | None:
    """(N, C) as of hy3d_rocm.raster.interpolate. None: an index is out of range.

    attributes (V, C) and barycentric (N, 3) float32, triangles (F, 3) and face_index (N,) int32.
    """
    (vertices, channels), faces = attributes.shape, triangles.shape[0]
    pixels, device, checked = face_index.shape[0], attributes.device, Sizes().checked
    status = torch.full((2,), _NONE, dtype=torch.int64, device=device)
    for slot, (values, limit) in enumerate(((triangles, vertices), (face_index, faces + 1))):
        if values.numel():
            kernels.check_indices[(-(-values.numel() // checked),)](
                values, status, values.numel(), limit, slot, BLOCK=checked, num_warps=4
            )
    out = torch.empty((pixels, channels), dtype=torch.float32, device=device)
    if pixels and channels:
        across = min(32, 1 << (channels - 1).bit_length())
        block = 1024 // max(across, 4)
        kernels.interpolate_pixels[(-(-pixels // block), -(-channels // across))](
            attributes, triangles, face_index, barycentric, out, vertices, faces, channels, pixels,
            BLOCK=block, CHANNELS=across, num_warps=4, **_ROUNDING,
        )  # fmt: skip
    return out if status.tolist() == [_NONE, _NONE] else None
