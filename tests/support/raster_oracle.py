"""What a picture must be, from the screen-space text of the contract, in float64 with error bounds.

Three steps, none of which uses the homogeneous edge functions of csrc/raster:

1. `triangles` projects faces to the screen. compat: as they are, also through the camera. topleft:
   Sutherland-Hodgman against the near and the far plane, then a fan of triangles.
2. `fragments` takes edge functions from differences of screen positions, and depth from a linear
   interpolation of Z/W over the screen.
3. `resolve` picks the nearest.

Every number is a `Bounded`: a float64 and a bound on its error, by the standard model
fl(a op b) = (a op b)(1 + e), |e| <= 2^-53, carried through each operation. "Tie" is no epsilon by
eye: an edge ties where its value is within its own bound of 0, a depth where a step border is
within its bound. Those pixels are judged by raster_exact.py, in whole numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

Array = Any
U = 2.0**-53
# The bounds themselves are computed in float64, in fewer than 200 operations of positive numbers.
SLACK = 1 + 512 * U
# The smallest normal number: where a product would be subnormal, the model adds half of 2^-1074.
TINY = 2.0**-1022
SCALE = {"compat": 2.0**18, "topleft": 2.0**30}
NEAR_OFFSET = 1e-6
COMPAT_FACTOR = 0.49999
MOST_STEPS = 2.0**30
FACES = 2**20  # more than a scene has


class Bounded:
    """Values and bounds on their errors, of one shape or of shapes that broadcast."""

    __slots__ = ("error", "value")

    def __init__(self, value: Array, error: Array = 0.0) -> None:
        self.value = np.asarray(value, np.float64)
        self.error = np.asarray(error, np.float64)

    def _of(self, value: Array, error: Array) -> Bounded:
        return Bounded(value, (error + U * np.abs(value) + TINY) * SLACK)

    def __add__(self, other: Bounded) -> Bounded:
        return self._of(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Bounded) -> Bounded:
        return self._of(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Bounded) -> Bounded:
        mine, its = np.abs(self.value), np.abs(other.value)
        error = mine * other.error + its * self.error + self.error * other.error
        return self._of(self.value * other.value, error)

    def __truediv__(self, other: Bounded) -> Bounded:
        """Infinitely wrong where the divisor may be 0."""
        quotient = self.value / other.value
        room = np.abs(other.value) - other.error
        error = (np.abs(quotient) * other.error + self.error) / np.where(room > 0, room, np.nan)
        error = np.where(room > 0, error, np.inf)
        return self._of(np.where(room > 0, quotient, 0.0), error)

    def pair(self) -> tuple[Array, Array]:
        return np.broadcast_arrays(self.value, self.error)

    def __getitem__(self, index: Any) -> Bounded:
        value, error = self.pair()
        return Bounded(value[index], error[index])


def stacked(items: list[Bounded], axis: int = 0) -> Bounded:
    pairs = [item.pair() for item in items]
    return Bounded(np.stack([p[0] for p in pairs], axis), np.stack([p[1] for p in pairs], axis))


def joined(a: Bounded, b: Bounded) -> Bounded:
    (p, q), (r, s) = a.pair(), b.pair()
    return Bounded(np.concatenate([p, r]), np.concatenate([q, s]))


class Triangles(NamedTuple):
    """On the screen. A face may have several (its fan); T of them."""

    face: Array  # (T,) its number
    x: Bounded  # (T, 3) in pixels
    y: Bounded
    depth: Bounded  # (T, 3) Z/W
    weight: Bounded  # (T, 3) 1/W
    corner: Bounded  # (T, 3, 3): of each vertex, its barycentrics in the face


class Fragments(NamedTuple):
    """A face at a pixel, in no order."""

    face: Array  # (K,)
    row: Array
    column: Array
    sure: Array  # (K,) False: it may be there
    low: Array  # (K,) the least and the most step of depth that it may have
    high: Array
    depth: Bounded  # (K,)
    barycentric: Bounded  # (K, 3)


@dataclasses.dataclass(frozen=True)
class Reference:
    """A picture. Where `unsure`, the rest is a guess."""

    face_index: Array  # (H, W): 0 is empty, else face + 1
    barycentric: Bounded  # (H, W, 3)
    depth: Bounded  # (H, W)
    unsure: Array  # (H, W)
    fragments: Fragments


class _Vertex(NamedTuple):
    place: Bounded  # (4,) X, Y, Z, W
    corner: Bounded  # (3,) its barycentrics in the face


def _cut(polygon: list[_Vertex], sign: float) -> list[_Vertex]:
    """Sutherland-Hodgman: what has W + sign Z >= 0."""
    kept: list[_Vertex] = []
    distance = [v.place[3] + Bounded(sign) * v.place[2] for v in polygon]
    for k, here in enumerate(polygon):
        there, mine, its = polygon[k - 1], distance[k], distance[k - 1]
        if (mine.value >= 0) != (its.value >= 0):
            way = its / (its - mine)
            kept.append(_Vertex(*(a + way * (b - a) for a, b in zip(there, here, strict=True))))
        if mine.value >= 0:
            kept.append(here)
    return kept


def _is_doubtful(polygon: list[_Vertex]) -> bool:
    """Whether rounding may have a vertex on the wrong side of a plane or of the eye: where the face
    is on the screen is not known then. Z and W of f32 that add up to 0 have nearly no error."""
    for place, _ in polygon:
        for of in (place[3] + place[2], place[3] - place[2], place[3]):
            if abs(of.value) <= of.error and of.error > 16 * TINY:
                return True
    return False


def _clipped(face: Array) -> list[list[_Vertex]]:
    """The fan of what is between the near and the far plane of a face (3, 4)."""
    polygon = [_Vertex(Bounded(v), Bounded(unit)) for v, unit in zip(face, np.eye(3), strict=True)]
    for sign in (1.0, -1.0):
        polygon = _cut(polygon, sign)
        if _is_doubtful(polygon):
            return [[_Vertex(Bounded(v.place.value, np.inf), v.corner) for v in polygon[:3]]]
    return [[polygon[0], polygon[k], polygon[k + 1]] for k in range(1, len(polygon) - 1)]


def _fans(rule: str, clip: Array, faces: Array) -> tuple[Array, Bounded, Bounded]:
    """Faces (T,), vertices (T, 3, 4) and their barycentrics (T, 3, 3) of what is projected."""
    corners = clip.astype(np.float64)[faces.astype(np.int64)].reshape(-1, 3, 4)
    z, w = corners[..., 2], corners[..., 3]
    whole = (w != 0).all(1)
    if rule == "topleft":
        whole &= ((w + z >= 0) & (w - z >= 0)).all(1)
    number = np.nonzero(whole)[0]
    place, corner = Bounded(corners[whole]), Bounded(np.eye(3)[None].repeat(len(number), 0))
    if rule == "topleft":
        cut = [(k, fan) for k in np.nonzero(~whole)[0] for fan in _clipped(corners[k])]
        for part in (0, 1):
            fans = [stacked([vertex[part] for vertex in fan]) for _, fan in cut]
            if fans and part == 0:
                place = joined(place, stacked(fans))
            elif fans:
                corner = joined(corner, stacked(fans))
        number = np.concatenate([number, np.array([k for k, _ in cut], np.int64)])
    return number, place, corner


def triangles(rule: str, clip: Array, faces: Array, size: tuple[int, int]) -> Triangles:
    """The faces on a screen of size (height, width)."""
    number, place, corner = _fans(rule, clip, faces)
    w = place[..., 3]
    at = [
        (place[..., k] / w * Bounded(0.5) + Bounded(0.5))
        * Bounded(size[1 - k] - (1.0 if rule == "compat" else 0.0))
        + Bounded(0.5 if rule == "compat" else 0.0)
        for k in (0, 1)
    ]
    return Triangles(number, at[0], at[1], place[..., 2] / w, Bounded(1.0) / w, corner)


def _inside(t: Triangles, size: tuple[int, int]) -> tuple[list[Bounded], Bounded, Array, Array]:
    """Edge functions (T, H, W), twice the areas (T,), and of each pixel whether it may be inside
    and whether it surely is: all edge functions of one sign, and within the bounding box."""
    down, right = _centres(size[0]), _centres(size[1])
    values: list[Bounded] = []
    shape = (len(t.face), *size)
    some, most = np.ones((2, *shape), bool), np.ones((2, *shape), bool)
    for k in range(3):
        a, b = (k + 1) % 3, (k + 2) % 3
        dx, dy = (v[:, b][:, None] - v[:, a][:, None] for v in (t.x, t.y))
        along = dx * (down - t.y[:, a][:, None])
        across = dy * (right - t.x[:, a][:, None])
        edge = along[:, :, None] - across[:, None, :]
        values.append(edge)
        some &= edge.value >= -edge.error, edge.value <= edge.error
        most &= edge.value > edge.error, edge.value < -edge.error
    in_box = _between(down, t.y)[:, :, None] & _between(right, t.x)[:, None, :]
    area = (t.x[:, 1] - t.x[:, 0]) * (t.y[:, 2] - t.y[:, 0]) - (
        (t.y[:, 1] - t.y[:, 0]) * (t.x[:, 2] - t.x[:, 0])
    )
    # Bounds that overflowed compare as false: such a pixel may be inside.
    lost = ~(np.isfinite(values[0].error) & np.isfinite(values[1].error + values[2].error))
    return values, area, (some.any(0) | lost) & in_box, most.any(0) & ~lost


def _centres(count: int) -> Bounded:
    return Bounded((np.arange(count) + 0.5)[None, :])


def _between(at: Bounded, corners: Bounded) -> Array:
    """(T, n): whether a coordinate may be between those of the vertices (T, 3)."""
    low, high = (corners.value - corners.error).min(1), (corners.value + corners.error).max(1)
    return ~(at.value < low[:, None]) & ~(at.value > high[:, None])


def fragments(
    rule: str, clip: Array, faces: Array, size: tuple[int, int], prior: Array | None
) -> Fragments:
    """All that may be seen, before the nearest is picked."""
    t = triangles(rule, clip, faces, size)
    values, area, inside, sure = _inside(t, size)
    which, row, column = np.nonzero(inside)
    part = stacked([e[which, row, column] for e in values], 1) / area[which][:, None]
    # Between those of the vertices, however thin the triangle.
    ends = t.depth[which]
    low, high = (ends.value - ends.error).min(1), (ends.value + ends.error).max(1)
    depth = _sum(part * ends)
    depth = _interval(np.fmax(depth.value - depth.error, low),
                      np.fmin(depth.value + depth.error, high))  # fmt: skip
    first, last, seen, surely = _steps(rule, depth, None if prior is None else prior[row, column])
    share = part * t.weight[which]
    total = _sum(share)
    # What may be at W = infinity (raster_exact.ENDLESS).
    near = np.abs(total.value) - total.error > 2.0**-31 * np.abs(share.value).sum(1)
    share = share / total[:, None]
    barycentric = _sum(share[:, :, None] * t.corner[which])
    surely = surely & near
    kept = np.nonzero(seen)[0]
    return Fragments(t.face[which][kept], row[kept], column[kept],
                     (sure[which, row, column] & surely)[kept], first[kept], last[kept],
                     depth[kept], barycentric[kept])  # fmt: skip


def _sum(terms: Bounded) -> Bounded:
    """Over axis 1."""
    return terms[:, 0] + terms[:, 1] + terms[:, 2]


def _interval(low: Array, high: Array) -> Bounded:
    middle = low / 2 + high / 2
    return Bounded(middle, np.maximum(high - middle, middle - low) + 4 * U * np.abs(middle))


def _steps(rule: str, depth: Bounded, prior: Array | None) -> tuple[Array, Array, Array, Array]:
    """Least and most step, whether it may be seen past the prior, and whether it surely is."""
    factor = Bounded(COMPAT_FACTOR if rule == "compat" else 0.5)
    steps = (depth * factor + Bounded(0.5)) * Bounded(SCALE[rule])
    first, last = (
        np.clip(np.nan_to_num(np.floor(steps.value + side * steps.error), nan=side * np.inf),
                -MOST_STEPS, MOST_STEPS).astype(np.int64)
        for side in (-1, 1)
    )  # fmt: skip
    if prior is None:
        sure = np.ones(len(first), bool)
        return first, last, sure, sure
    before = depth * Bounded(COMPAT_FACTOR) + Bounded(0.5)
    limit = Bounded(prior) * Bounded(COMPAT_FACTOR) + Bounded(0.5) + Bounded(NEAR_OFFSET)
    gap = before - limit
    none, all_of_it = np.isnan(prior) | (prior == -np.inf), prior == np.inf
    seen = none | (~all_of_it & ~(gap.value < -gap.error))
    return first, last, seen, none | (gap.value > gap.error)


def resolve(f: Fragments, size: tuple[int, int]) -> Reference:
    """The nearest of the fragments of each pixel, of equal steps the lower face."""
    place = f.row * size[1] + f.column
    pixels = size[0] * size[1]
    nothing = np.iinfo(np.int64).max
    best = np.full(pixels, nothing)
    latest = f.high * FACES + f.face
    np.minimum.at(best, place[f.sure], latest[f.sure])
    # Another face that may come before the best, or be the best where none is sure.
    rival = (f.low * FACES + f.face < best[place]) & (f.face != best[place] % FACES)
    rival |= best[place] == nothing
    unsure = np.zeros(pixels, bool)
    unsure[place[rival]] = True
    chosen = np.nonzero(f.sure & (latest == best[place]))[0]
    face_index = np.zeros(pixels, np.int32)
    face_index[place[chosen]] = f.face[chosen] + 1
    barycentric = Bounded(np.zeros((pixels, 3)), np.zeros((pixels, 3)))
    depth = Bounded(np.full(pixels, np.inf), np.zeros(pixels))
    for whole, parts in ((barycentric, f.barycentric), (depth, f.depth)):
        whole.value[place[chosen]], whole.error[place[chosen]] = parts[chosen].pair()
    return Reference(face_index.reshape(size), _shaped(barycentric, (*size, 3)),
                     _shaped(depth, size), unsure.reshape(size), f)  # fmt: skip


def _shaped(x: Bounded, shape: tuple[int, ...]) -> Bounded:
    return Bounded(x.value.reshape(shape), x.error.reshape(shape))


def reference(
    rule: str, clip: Array, faces: Array, size: tuple[int, int], prior: Array | None = None
) -> Reference:
    """The picture (height, width) of clip (V, 4) f32 and faces (F, 3); F below 2^20."""
    with np.errstate(all="ignore"):
        return resolve(fragments(rule, clip, faces, size, prior), size)
