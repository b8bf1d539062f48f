"""What a picture must be, in whole numbers: judges the pixels where raster_oracle.py finds a tie.

A finite float32 is a fraction, and so is all that the contract computes from it. compat is taken
from the screen-space text (vertices projected, edge functions by differences). topleft cannot be:
a vertex with W = 0 has no place on the screen, and clipping may leave a polygon without area whose
edge still owns pixels. It takes the contract's other form: a pixel's ray meets the face's plane in
sum_k (E_k / det) v_k, E_k the determinants of the ray with two vertices;
tests/unit/raster/test_oracle.py holds this form against clipping in fractions.

Along a picture every such number is linear: (a P + b Q + c) / d at column (P - 1) / 2 and row
(Q - 1) / 2, so that a face costs fractions once and a pixel only products of whole numbers.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any, NamedTuple

Array = Any
# The constants of the contract are doubles.
COMPAT_FACTOR, NEAR_OFFSET = Fraction(0.49999), Fraction(1e-6)
HALF = Fraction(1, 2)
SCALE = {"compat": 2**18, "topleft": 2**30}
MOST_STEPS = 2**30
ENDLESS = Fraction(1, 2**32)


class Linear(NamedTuple):
    """a P + b Q + c."""

    a: Any
    b: Any
    c: Any

    def at(self, p: int, q: int) -> Any:
        return self.a * p + self.b * q + self.c

    def times(self, factor: Any) -> Linear:
        return Linear(self.a * factor, self.b * factor, self.c * factor)


def _total(items: list[Linear]) -> Linear:
    return Linear(*(sum(parts) for parts in zip(*items, strict=True)))


def _whole(items: list[Linear]) -> tuple[list[Linear], int]:
    """The same in whole numbers over a common positive denominator."""
    parts = [Fraction(part) for item in items for part in item]
    common = math.lcm(*(part.denominator for part in parts))
    scaled = [part.numerator * (common // part.denominator) for part in parts]
    return [Linear(*scaled[k : k + 3]) for k in range(0, len(scaled), 3)], common


@dataclasses.dataclass(frozen=True)
class Face:
    """One that has an area on the screen."""

    edges: list[Linear]  # 3, whole, positive inside
    owned: list[bool]  # whether a pixel on that edge is covered
    slabs: list[Linear]  # whole, not negative between the near and the far plane
    shares: list[Linear]  # 3, whole: barycentrics but for their sum
    depth: Linear  # whole
    depth_divisor: int  # positive; Z/W = depth / depth_divisor

    def covers(self, p: int, q: int, slabs: bool = True) -> bool:
        for edge, owned in zip(self.edges, self.owned, strict=True):
            value = edge.at(p, q)
            if value < 0 or (value == 0 and not owned):
                return False
        return not slabs or all(slab.at(p, q) >= 0 for slab in self.slabs)

    def depth_at(self, p: int, q: int) -> Fraction:
        return Fraction(self.depth.at(p, q), self.depth_divisor)

    def is_endless_at(self, p: int, q: int) -> bool:
        """Whether it is seen there at W = infinity or nearly so, and has no barycentrics to speak
        of: corners on both sides of the eye under compat. No such pixel is drawn."""
        return self.nearness_at(p, q) <= ENDLESS

    def nearness_at(self, p: int, q: int) -> Fraction:
        """1 over the largest barycentrics, about."""
        shares = [share.at(p, q) for share in self.shares]
        return Fraction(abs(sum(shares)), sum(map(abs, shares)) or 1)

    def barycentric_at(self, p: int, q: int) -> list[Fraction]:
        shares = [share.at(p, q) for share in self.shares]
        return [Fraction(share, sum(shares)) for share in shares]


def compat_face(vertices: list[list[Fraction]], size: tuple[int, int]) -> Face | None:
    """As the contract has it on the screen; None where nothing is drawn."""
    if any(v[3] == 0 for v in vertices):
        return None
    xs = [(v[0] / v[3] * HALF + HALF) * (size[1] - 1) + HALF for v in vertices]
    ys = [(v[1] / v[3] * HALF + HALF) * (size[0] - 1) + HALF for v in vertices]
    area = (xs[1] - xs[0]) * (ys[2] - ys[0]) - (ys[1] - ys[0]) * (xs[2] - xs[0])
    if area == 0:
        return None
    edges = []
    for k in range(3):
        a, b = (k + 1) % 3, (k + 2) % 3
        dx, dy = (xs[b] - xs[a]) / area, (ys[b] - ys[a]) / area
        # The centre of column i is i + 1/2 = P / 2.
        edges.append(Linear(-dy * HALF, dx * HALF, dy * xs[a] - dx * ys[a]))
    whole, _ = _whole(edges)
    shares, _ = _whole([e.times(1 / v[3]) for e, v in zip(edges, vertices, strict=True)])
    depth, divisor = _whole([_total([e.times(v[2] / v[3]) for e, v in
                                     zip(edges, vertices, strict=True)])])  # fmt: skip
    return Face(whole, [True] * 3, [], shares, depth[0], divisor)


def _cross(a: list[Fraction], b: list[Fraction]) -> tuple[Fraction, Fraction, Fraction]:
    """Of (X, Y, W)."""
    return (a[1] * b[3] - a[3] * b[1], a[3] * b[0] - a[0] * b[3], a[0] * b[1] - a[1] * b[0])


def topleft_face(vertices: list[list[Fraction]], size: tuple[int, int]) -> Face | None:
    """The rays of pixels: (P - width) height, (Q - height) width, width height."""
    height, width = size
    lines = [_cross(vertices[(k + 1) % 3], vertices[(k + 2) % 3]) for k in range(3)]
    det = sum(line * v for line, v in zip(lines[0], (vertices[0][i] for i in (0, 1, 3)),
                                          strict=True))  # fmt: skip
    if det == 0:
        return None
    edges = []
    for x, y, w in lines:
        x, y, w = x * height / det, y * width / det, w * width * height / det
        edges.append(Linear(x, y, w - x * width - y * height))
    z = _total([e.times(v[2]) for e, v in zip(edges, vertices, strict=True)])
    ray = Linear(Fraction(0), Fraction(0), Fraction(width * height))
    whole, _ = _whole(edges)
    slabs, _ = _whole([_total([ray, z]), _total([ray, z.times(-1)])])
    depth, divisor = _whole([z.times(Fraction(1, width * height))])
    owned = [e.a > 0 or (e.a == 0 and e.b > 0) for e in edges]
    return Face(whole, owned, slabs, whole, depth[0], divisor)


def step_of(rule: str, depth: Fraction) -> int:
    factor = COMPAT_FACTOR if rule == "compat" else HALF
    step = math.floor((depth * factor + HALF) * SCALE[rule])
    return max(-MOST_STEPS, min(MOST_STEPS, step))


def is_behind(depth: Fraction, prior: float) -> bool:
    """Whether a fragment is kept in spite of what was drawn before."""
    if math.isnan(prior) or prior == -math.inf:
        return True
    if prior == math.inf:
        return False
    return depth * COMPAT_FACTOR >= Fraction(prior) * COMPAT_FACTOR + NEAR_OFFSET


class Seen(NamedTuple):
    """One fragment that covers the pixel."""

    step: int
    face: int
    depth: Fraction
    kept: bool  # past the prior


class Scene:
    """Faces in whole numbers, made when they are asked for."""

    def __init__(self, rule: str, clip: Array, faces: Array, size: tuple[int, int],
                 prior: Array | None = None) -> None:  # fmt: skip
        self.rule, self.size, self._clip, self._faces = rule, size, clip, faces
        self._prior = prior
        self._known: dict[int, Face | None] = {}

    def face(self, number: int) -> Face | None:
        if number not in self._known:
            vertices = [[Fraction(float(x)) for x in self._clip[v]] for v in self._faces[number]]
            make = compat_face if self.rule == "compat" else topleft_face
            self._known[number] = make(vertices, self.size)
        return self._known[number]

    def seen(self, row: int, column: int, candidates: Any = None) -> list[Seen]:
        """Those of the candidates (all faces) that cover a pixel, the visible one first."""
        p, q = 2 * int(column) + 1, 2 * int(row) + 1  # NumPy's would overflow
        found = []
        for number in range(len(self._faces)) if candidates is None else candidates:
            face = self.face(int(number))
            if face is None or not face.covers(p, q) or face.is_endless_at(p, q):
                continue
            depth = face.depth_at(p, q)
            kept = self._prior is None or is_behind(depth, float(self._prior[row, column]))
            found.append(Seen(step_of(self.rule, depth), int(number), depth, kept))
        return sorted(found, key=lambda f: (not f.kept, f.step, f.face))

    def winner(self, row: int, column: int, candidates: Any = None) -> int:
        """face + 1, or 0."""
        seen = self.seen(row, column, candidates)
        return seen[0].face + 1 if seen and seen[0].kept else 0

    def barycentric(self, number: int, row: int, column: int) -> list[Fraction]:
        face = self.face(number)
        assert face is not None
        return face.barycentric_at(2 * int(column) + 1, 2 * int(row) + 1)
