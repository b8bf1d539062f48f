"""Device code of the rasteriser for GPU tensors. Imports triton.

These launches make a picture, bit for bit that of the C core (csrc/raster):

    draw_faces    a lane a face: small ones are drawn, of those left it notes their tiles
    draw_tiles    a program a tile of such a face
    settle_tiles  the same, where draw_tiles found doubts
    read_keys     a lane a pixel: which face won, its barycentrics and depth, worked out again

What is drawn is a minimum over 64-bit keys (depth's step, then face): it does not matter who comes
when, nor who comes twice. A pixel in doubt (rounding leaves open whether it is covered) and every
pixel of a face that is odd (faces.py) is drawn with exact signs, by settle_tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hy3d_rocm.raster.gpu.exact import exact_pixel
from hy3d_rocm.raster.gpu.faces import (
    box,
    depth_of_steps,
    edges_at,
    is_cut,
    is_hidden,
    key_of,
    load_corner,
    pixel,
    prepare,
    screen,
    side_of,
    steps_of,
    steps_of_depth,
    sum_of,
)

EMPTY = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def _offer(
    keys, prior, at, steps, is_out, careful, face, mask,
    HAS_PRIOR: tl.constexpr, COMPAT: tl.constexpr,
):  # fmt: skip
    """The minimum of what is at pixels and a fragment of that depth, where careful faces are not
    out of the planes. careful: 1 or 0."""
    mask = mask & ((careful * is_out.to(tl.int32)) == 0)
    if HAS_PRIOR:
        before = tl.load(prior + at, mask=mask, other=0.0).to(tl.float64)
        mask = mask & (is_hidden(steps, before, COMPAT) == 0)
    key = tl.where(mask, key_of(steps, careful > 0, face), EMPTY)
    # What another program has just written may not be seen yet; it can only be larger then.
    there = tl.load(keys + at, mask=mask, other=0)
    tl.atomic_min(keys + at, key, mask=mask & (key < there), sem="relaxed")


@triton.jit
def _may_cover(e0, e1, e2, bound):
    least = bound * -1.0
    return (e0 >= least) & (e1 >= least) & (e2 >= least)


@triton.jit
def _covered(e0, e1, e2, w0, w1, w2, bound, careful, COMPAT: tl.constexpr):
    """Whether pixels are surely covered, and whether they may be. careful: 1 or 0."""
    sure = (e0 > bound) & (e1 > bound) & (e2 > bound)
    if COMPAT:
        # Corners on both sides of the eye that nearly cancel are left to exact weights.
        total = sum_of(e0, e1, e2, w0, w1, w2, COMPAT)
        clear = tl.abs(total) > ((e0 + e1) + e2) * 0.000244140625  # 2^-12
        sure = sure & (clear | (careful == 0))
    return sure, _may_cover(e0, e1, e2, bound)


@triton.jit(do_not_specialize=["vertices", "faces", "width", "height"])
def draw_faces(
    clip, triangles, prior, keys, tiles, status, vertices, faces, width, height,
    COMPAT: tl.constexpr, HAS_PRIOR: tl.constexpr, MOST: tl.constexpr, TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK faces whose boxes have at most MOST pixels, none of them in doubt.

    clip (vertices, 4) float32, triangles (faces, 3) int32, prior (height, width) float32, keys
    (height, width) int64. To tiles (faces,) int32: how many of TILE x TILE pixels draw_tiles has to
    draw. status[1], int64: the least of its own and the numbers of faces with a bad index.
    """
    face = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_there = face < faces
    corner = triangles + face.to(tl.int64) * 3
    i0 = tl.load(corner, mask=is_there, other=0)
    i1 = tl.load(corner + 1, mask=is_there, other=0)
    i2 = tl.load(corner + 2, mask=is_there, other=0)
    good = (i0 >= 0) & (i0 < vertices) & (i1 >= 0) & (i1 < vertices)
    good = good & (i2 >= 0) & (i2 < vertices)
    tl.atomic_min(status + 1 + face * 0, face.to(tl.int64), mask=is_there & (good == 0))
    is_there = is_there & good
    x0, y0, z0, w0 = load_corner(clip, i0, is_there)
    x1, y1, z1, w1 = load_corner(clip, i1, is_there)
    x2, y2, z2, w2 = load_corner(clip, i2, is_there)
    sx, sy = screen(width, height, COMPAT)
    r = sx * sy
    left, columns, top, rows = box(
        x0, y0, w0, x1, y1, w1, x2, y2, w2, sx, sy, width, height, COMPAT
    )
    rows = tl.where(is_there, rows, 0)
    pixels = columns * rows
    wide = tl.cdiv(columns, TILE) * tl.cdiv(rows, TILE)
    is_small = pixels <= MOST
    pixels = tl.where(is_small, pixels, 0)
    a0, a1, a2, b0, b1, b2, c0, c1, c2, bound, d0, d1, d2, odd, careful = prepare(
        x0, y0, z0, w0, x1, y1, z1, w1, x2, y2, z2, w2, r, COMPAT
    )
    careful = careful.to(tl.int32)
    doubts = odd & (pixels > 0)
    most = tl.max(pixels, 0)
    column, row = left, top
    k = 0
    while k < most:
        p, q = pixel(column, row, width, height, sx, sy)
        e0, e1, e2 = edges_at(p, q, a0, a1, a2, b0, b1, b2, c0, c1, c2)
        drawn = (k < pixels) & (odd == 0)
        sure, maybe = _covered(e0, e1, e2, w0, w1, w2, bound, careful, COMPAT)
        doubts = doubts | (drawn & maybe & (sure == 0))
        steps = steps_of(e0, e1, e2, d0, d1, d2, COMPAT)
        at = row.to(tl.int64) * width + column
        is_out = is_cut(steps, z0, w0, z1, w1, z2, w2, COMPAT)
        _offer(keys, prior, at, steps, is_out, careful, face, drawn & sure, HAS_PRIOR, COMPAT)
        is_last = column == left + columns - 1
        column = tl.where(is_last, left, column + 1)
        row = row + is_last.to(tl.int32)
        k += 1
    tl.store(tiles + face, tl.where(is_small & (doubts == 0), 0, wide), mask=face < faces)


@triton.jit
def _face_of(ends, faces, item):
    """The first face whose tiles end beyond `item`."""
    first = item * 0
    last = first + (faces - 1)
    while first < last:
        middle = (first + last) // 2
        is_before = tl.load(ends + middle) <= item
        first = tl.where(is_before, middle + 1, first)
        last = tl.where(is_before, last, middle)
    return first


@triton.jit
def _corners_of(clip, triangles, face, mask):
    corner = triangles + face.to(tl.int64) * 3
    x0, y0, z0, w0 = load_corner(clip, tl.load(corner, mask=mask, other=0), mask)
    x1, y1, z1, w1 = load_corner(clip, tl.load(corner + 1, mask=mask, other=0), mask)
    x2, y2, z2, w2 = load_corner(clip, tl.load(corner + 2, mask=mask, other=0), mask)
    return x0, y0, z0, w0, x1, y1, z1, w1, x2, y2, z2, w2


@triton.jit
def _most(e0, e1, e2, p0, p1, q0, q1):
    """The largest weight on a box of pixels: rounding keeps order."""
    return e0 * tl.where(e0 > 0.0, p1, p0) + (e1 * tl.where(e1 > 0.0, q1, q0) + e2)


@triton.jit
def _tile_of(
    clip, triangles, tiles, ends, faces, width, height, item,
    COMPAT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The face of a tile, its first and last columns, first and last rows."""
    face = _face_of(ends, faces, item)
    tile = (item - (tl.load(ends + face) - tl.load(tiles + face))).to(tl.int32)
    x0, y0, _, w0, x1, y1, _, w1, x2, y2, _, w2 = _corners_of(clip, triangles, face, face >= 0)
    sx, sy = screen(width, height, COMPAT)
    left, columns, top, rows = box(
        x0, y0, w0, x1, y1, w1, x2, y2, w2, sx, sy, width, height, COMPAT
    )
    across = tl.cdiv(columns, TILE)
    right, bottom = left + columns - 1, top + rows - 1
    left, top = left + (tile % across) * TILE, top + (tile // across) * TILE
    right, bottom = tl.minimum(right, left + TILE - 1), tl.minimum(bottom, top + TILE - 1)
    return face, left, right, top, bottom


@triton.jit(do_not_specialize=["faces", "width", "height", "first"])
def draw_tiles(
    clip, triangles, prior, keys, tiles, ends, doubts, faces, width, height, first,
    COMPAT: tl.constexpr, HAS_PRIOR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The tile number `first` + its own of all that draw_faces noted; ends (faces,) int64: their
    sums, each with its own. To doubts, int32, at its own number: whether settle_tiles is needed."""
    item = tl.program_id(0)
    face, left, right, top, bottom = _tile_of(
        clip, triangles, tiles, ends, faces, width, height, item.to(tl.int64) + first, COMPAT, TILE
    )
    x0, y0, z0, w0, x1, y1, z1, w1, x2, y2, z2, w2 = _corners_of(clip, triangles, face, face >= 0)
    sx, sy = screen(width, height, COMPAT)
    r = sx * sy
    a0, a1, a2, b0, b1, b2, c0, c1, c2, bound, d0, d1, d2, odd, careful = prepare(
        x0, y0, z0, w0, x1, y1, z1, w1, x2, y2, z2, w2, r, COMPAT
    )
    p0, q0 = pixel(left, top, width, height, sx, sy)
    p1, q1 = pixel(right, bottom, width, height, sx, sy)
    meets = _may_cover(
        _most(a0, a1, a2, p0, p1, q0, q1), _most(b0, b1, b2, p0, p1, q0, q1),
        _most(c0, c1, c2, p0, p1, q0, q1), bound,
    )  # fmt: skip
    open_ = odd.to(tl.int32)
    if meets & (odd == 0):
        column, row = left + tl.arange(0, TILE)[None, :], top + tl.arange(0, TILE)[:, None]
        p, q = pixel(column, row, width, height, sx, sy)
        e0, e1, e2 = edges_at(p, q, a0, a1, a2, b0, b1, b2, c0, c1, c2)
        inside = (column <= right) & (row <= bottom)
        # A number: Triton's interpreter makes floats of a bool that it broadcasts.
        one = careful.to(tl.int32)
        sure, maybe = _covered(e0, e1, e2, w0, w1, w2, bound, one, COMPAT)
        steps = steps_of(e0, e1, e2, d0, d1, d2, COMPAT)
        at = row.to(tl.int64) * width + column
        is_out = is_cut(steps, z0, w0, z1, w1, z2, w2, COMPAT)
        _offer(keys, prior, at, steps, is_out, one, face, inside & sure, HAS_PRIOR, COMPAT)
        open_ = tl.max(tl.max((inside & maybe & (sure == 0)).to(tl.int32), 1), 0)
    tl.store(doubts + item, open_)


@triton.jit(do_not_specialize=["faces", "width", "height", "first"])
def settle_tiles(
    clip, triangles, prior, keys, tiles, ends, doubts, faces, width, height, first,
    COMPAT: tl.constexpr, HAS_PRIOR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """After draw_tiles, the same tile's pixels in doubt, or all if the face is odd. Without a loop,
    out of which the compiler would move more than there are registers."""
    item = tl.program_id(0)
    if tl.load(doubts + item) == 0:
        return
    face, left, right, top, bottom = _tile_of(
        clip, triangles, tiles, ends, faces, width, height, item.to(tl.int64) + first, COMPAT, TILE
    )
    lane = tl.arange(0, TILE * TILE)
    x0, y0, z0, w0, x1, y1, z1, w1, x2, y2, z2, w2 = _corners_of(
        clip, triangles, face + lane * 0, lane >= 0
    )
    sx, sy = screen(width, height, COMPAT)
    r = sx * sy
    a0, a1, a2, b0, b1, b2, c0, c1, c2, bound, _, _, _, odd, careful = prepare(
        x0, y0, z0, w0, x1, y1, z1, w1, x2, y2, z2, w2, r, COMPAT
    )
    column, row = left + lane % TILE, top + lane // TILE
    p, q = pixel(column, row, width, height, sx, sy)
    e0, e1, e2 = edges_at(p, q, a0, a1, a2, b0, b1, b2, c0, c1, c2)
    sure, maybe = _covered(e0, e1, e2, w0, w1, w2, bound, careful.to(tl.int32), COMPAT)
    here = (column <= right) & (row <= bottom) & (odd | (maybe & (sure == 0)))
    covered, _, _, _, z = exact_pixel(
        x0, y0, z0, w0, x1, y1, z1, w1, x2, y2, z2, w2, p, q, r, COMPAT
    )
    steps = steps_of_depth(z, COMPAT)
    at = row.to(tl.int64) * width + column
    is_out = is_cut(steps, z0, w0, z1, w1, z2, w2, COMPAT)
    _offer(keys, prior, at, steps, is_out, lane * 0 + 1, face, here & covered, HAS_PRIOR, COMPAT)


@triton.jit(do_not_specialize=["width", "height"])
def read_keys(
    clip, triangles, keys, face_index, barycentric, depth, width, height,
    COMPAT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """To face_index (height, width) int32, barycentric (height, width, 3) and depth (height, width)
    float32: what keys say of BLOCK pixels of a row."""
    column, row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
    is_there = column < width
    at = row.to(tl.int64) * width + column
    key = tl.load(keys + at, mask=is_there, other=EMPTY)
    drawn = key != EMPTY
    face = tl.where(drawn, key & 0x7FFFFFFF, 0)
    x0, y0, z0, w0, x1, y1, z1, w1, x2, y2, z2, w2 = _corners_of(clip, triangles, face, drawn)
    sx, sy = screen(width, height, COMPAT)
    r = sx * sy
    a0, a1, a2, b0, b1, b2, c0, c1, c2, bound, d0, d1, d2, odd, careful = prepare(
        x0, y0, z0, w0, x1, y1, z1, w1, x2, y2, z2, w2, r, COMPAT
    )
    p, q = pixel(column, row, width, height, sx, sy)
    e0, e1, e2 = edges_at(p, q, a0, a1, a2, b0, b1, b2, c0, c1, c2)
    z = depth_of_steps(steps_of(e0, e1, e2, d0, d1, d2, COMPAT), COMPAT)
    sure, _ = _covered(e0, e1, e2, w0, w1, w2, bound, careful.to(tl.int32), COMPAT)
    f0, f1, f2 = e0.to(tl.float32), e1.to(tl.float32), e2.to(tl.float32)
    total = ((f0 + f1) + f2).to(tl.float64)
    total = tl.where(careful, sum_of(e0, e1, e2, w0, w1, w2, COMPAT), total)
    # Rounded twice, to float64 and to float32, a quotient of float32 is the same as rounded once.
    share = 1.0 / total
    once = share.to(tl.float32)
    if COMPAT:
        e0, e1, e2 = e0 * side_of(w0), e1 * side_of(w1), e2 * side_of(w2)
    s0 = tl.where(careful, (e0 * share).to(tl.float32), f0 * once)
    s1 = tl.where(careful, (e1 * share).to(tl.float32), f1 * once)
    s2 = tl.where(careful, (e2 * share).to(tl.float32), f2 * once)
    open_ = drawn & (odd | (sure == 0))
    if tl.max(open_.to(tl.int32), 0) > 0:
        _, t0, t1, t2, exact_z = exact_pixel(
            x0, y0, z0, w0, x1, y1, z1, w1, x2, y2, z2, w2, p, q, r, COMPAT
        )
        s0 = tl.where(open_, t0.to(tl.float32), s0)
        s1 = tl.where(open_, t1.to(tl.float32), s1)
        s2 = tl.where(open_, t2.to(tl.float32), s2)
        z = tl.where(open_, exact_z, z)
    tl.store(face_index + at, tl.where(drawn, face + 1, 0).to(tl.int32), mask=is_there)
    tl.store(depth + at, tl.where(drawn, z, float("inf")).to(tl.float32), mask=is_there)
    tl.store(barycentric + at * 3, tl.where(drawn, s0, 0.0), mask=is_there)
    tl.store(barycentric + at * 3 + 1, tl.where(drawn, s1, 0.0), mask=is_there)
    tl.store(barycentric + at * 3 + 2, tl.where(drawn, s2, 0.0), mask=is_there)


@triton.jit(do_not_specialize=["vertices"])
def check_vertices(clip, status, vertices, BLOCK: tl.constexpr):
    """status[0], int64: the least of its own and the numbers of vertices that are not finite."""
    number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for k in tl.static_range(4):
        x = tl.load(clip + number * 4 + k, mask=number < vertices, other=0.0)
        bad = (tl.abs(x) < float("inf")) == 0
        tl.atomic_min(status + number * 0, number, mask=(number < vertices) & bad)


@triton.jit(do_not_specialize=["count", "limit", "slot"])
def check_indices(values, status, count, limit, slot, BLOCK: tl.constexpr):
    """status[slot], int64: the least of its own and the places of values, int32, that are not of
    0 .. limit - 1."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + at, mask=at < count, other=0).to(tl.int64)
    bad = (value < 0) | (value >= limit)
    tl.atomic_min(status + slot + at * 0, at, mask=(at < count) & bad)


@triton.jit(do_not_specialize=["vertices", "faces", "channels", "pixels"])
def interpolate_pixels(
    attributes, triangles, face_index, barycentric, out, vertices, faces, channels, pixels,
    BLOCK: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """out[p, c] = (b0 * x0[c] + b1 * x1[c]) + b2 * x2[c] for BLOCK pixels and CHANNELS channels.

    attributes (vertices, channels), barycentric (pixels, 3), out (pixels, channels) float32;
    face_index (pixels,) int32, 0 for none. A bad index reads nothing.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    number = tl.load(face_index + at, mask=at < pixels, other=0).to(tl.int64)
    drawn = (number > 0) & (number <= faces)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros((BLOCK, CHANNELS), tl.float32)
    for k in tl.static_range(3):
        vertex = tl.load(triangles + (number * 3 + (k - 3)), mask=drawn, other=0).to(tl.int64)
        share = tl.load(barycentric + (at * 3 + k), mask=drawn, other=0.0)
        wanted = (drawn & (vertex >= 0) & (vertex < vertices))[:, None]
        x = tl.load(
            attributes + (vertex[:, None] * channels + channel[None, :]),
            mask=wanted & (channel < channels)[None, :], other=0.0,
        )  # fmt: skip
        total = share[:, None] * x if k == 0 else total + share[:, None] * x
    to = out + (at[:, None] * channels + channel[None, :])
    tl.store(to, total, mask=(at < pixels)[:, None] & (channel < channels)[None, :])
