"""A picture of the rasteriser held against raster_oracle.py and, where that is unsure, against
raster_exact.py.

What may differ from exact numbers, and why:

- coverage: nothing.
- which face is visible: only where a step of depth, the near or the far plane, or the prior is
  `epsilon` of Z/W. csrc/raster takes Z/W as a sum of three corners' weights times Z. Its kernels
  know a weight to 2^-32 / max|W| (else the face is drawn with exact weights, good to 2^-48 of
  themselves), so that Z/W is known to 3 * 2^-32 max|Z| / max|W|, or to 2^-46 max|Z/W|.
- a pixel is not drawn where corners on both sides of the eye cancel to 2^-32
  (raster_exact.ENDLESS): that share is known to 2^-16 of itself.
- barycentrics: by 1e-5 of the largest of them (which is 1 but where corners lie on both sides of
  the eye under compat).
- depth: by `epsilon` and the rounding to f32.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import raster_exact
import raster_oracle
from raster_scenes import Scene

Array = Any
BARYCENTRIC = 1e-5
# Float64 judges barycentrics and depth where its own error is below this, exact numbers elsewhere.
WELL_KNOWN = 1e-9
ROOM = Fraction(1, 2**16)


class Picture(NamedTuple):
    face_index: Array
    barycentric: Array
    depth: Array


def draw(rule: str, scene: Scene, threads: int = 1) -> Picture:
    """With rubbish in the pictures before."""
    from hy3d_rocm import _core

    out = Picture(np.full(scene.size, -7, np.int32), np.full((*scene.size, 3), np.nan, np.float32),
                  np.full(scene.size, np.nan, np.float32))  # fmt: skip
    _core.rasterize(scene.clip, scene.faces, scene.prior, *out, rule, threads)
    return out


@dataclasses.dataclass
class Verdict:
    """Of many pictures."""

    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    worst_barycentric: float = 0.0
    worst_depth: float = 0.0  # of what is allowed
    wrong: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: Verdict) -> None:
        self.counts.update(other.counts)
        self.worst_barycentric = max(self.worst_barycentric, other.worst_barycentric)
        self.worst_depth = max(self.worst_depth, other.worst_depth)
        self.wrong += other.wrong


def epsilon(corners: Array) -> Fraction:
    """How well Z/W of a face is known, from its corners (3, 4)."""
    z, w = np.abs(corners[:, 2]), np.abs(corners[:, 3])
    far = max((Fraction(float(a)) / Fraction(float(b)) for a, b in zip(z, w, strict=True) if b),
              default=Fraction(0))  # fmt: skip
    most = Fraction(float(z.max())) / Fraction(float(w.max()))
    return most / 2**30 + (far + 1) / 2**46


class _Rival(NamedTuple):
    face: int
    first: int  # its step may be from here
    last: int
    sure: bool  # that it is between the planes and past the prior


class Judge:
    """One scene under one rule."""

    def __init__(self, rule: str, scene: Scene) -> None:
        self.rule, self.scene = rule, scene
        given = (rule, scene.clip, scene.faces, scene.size, scene.prior)
        self.reference = raster_oracle.reference(*given)
        self.exact = raster_exact.Scene(*given)
        f = self.reference.fragments
        place = f.row * scene.size[1] + f.column
        order = np.argsort(place, kind="stable")
        self._place, self._face = place[order], f.face[order]

    def candidates(self, row: int, column: int) -> set[int]:
        ends = np.searchsorted(self._place, row * self.scene.size[1] + column + np.arange(2))
        return {int(k) for k in self._face[ends[0] : ends[1]]}

    def _epsilon(self, face: int) -> Fraction:
        return epsilon(self.scene.clip[self.scene.faces[face]])

    def _rivals(self, row: int, column: int) -> list[_Rival]:
        """Faces whose edges hold the pixel, and what depth they may have."""
        found = []
        prior = None if self.scene.prior is None else float(self.scene.prior[row, column])
        for number in self.candidates(row, column):
            face = self.exact.face(number)
            p, q = 2 * int(column) + 1, 2 * int(row) + 1
            if face is None or not face.covers(p, q, slabs=False):
                continue
            far = face.nearness_at(p, q) / raster_exact.ENDLESS - 1  # known to 2^-50 / ENDLESS
            if far < -ROOM:
                continue
            at, room = face.depth_at(p, q), self._epsilon(number)
            ends = (at - room, at + room)
            inside = [self.rule == "compat" or -1 <= z <= 1 for z in (*ends, at)]
            kept = [prior is None or raster_exact.is_behind(z, prior) for z in ends]
            near = self.rule == "compat" or (ends[1] >= -1 and ends[0] <= 1)
            if near and any(kept):
                steps = [raster_exact.step_of(self.rule, z) for z in ends]
                found.append(_Rival(number, *steps, far > ROOM and all(inside)
                                    and all(kept)))  # fmt: skip
        return found

    def is_allowed(self, row: int, column: int, got: int) -> bool:
        """Whether depths within their epsilons could make `got` (face + 1) visible."""
        rivals = self._rivals(row, column)
        mine = [(r.first, r.face) for r in rivals if r.face == got - 1]
        if got and not mine:
            return False
        return not any(r.sure and (not got or (r.last, r.face) < mine[0]) for r in rivals)

    def verdict(self, picture: Picture) -> Verdict:
        out = Verdict()
        reference = self.reference
        differs = picture.face_index != reference.face_index
        out.counts.update(pictures=1, pixels=differs.size, unsure=int(reference.unsure.sum()),
                          covered=int((picture.face_index != 0).sum()))  # fmt: skip
        for row, column in zip(*np.nonzero(differs | reference.unsure), strict=True):
            got = int(picture.face_index[row, column])
            wanted = self.exact.winner(row, column, self.candidates(row, column))
            if got == wanted:
                out.counts["exact"] += 1
            elif self.is_allowed(row, column, got):
                out.counts["within epsilon"] += 1
            else:
                out.counts["wrong"] += 1
                out.wrong.append(f"{self.scene.kind} {self.rule} row {row}, column {column}: "
                                 f"face index {got}, wanted {wanted}")  # fmt: skip
        self._judge_values(picture, out)
        return out

    def _judge_values(self, picture: Picture, out: Verdict) -> None:
        covered = picture.face_index != 0
        known = covered & ~self.reference.unsure & (
            picture.face_index == self.reference.face_index)  # fmt: skip
        shares, depth = self.reference.barycentric, self.reference.depth
        with np.errstate(all="ignore"):
            scale = np.maximum(1, np.abs(shares.value).max(-1))
            known &= (shares.error.max(-1) < WELL_KNOWN * scale) & (
                depth.error < WELL_KNOWN * np.abs(depth.value)) & (
                np.abs(depth.value) < np.finfo(np.float32).max)  # fmt: skip
            error = np.abs(picture.barycentric - shares.value).max(-1) / scale + WELL_KNOWN
        if known.any():
            self._note(out, "barycentrics", float(error[known].max()) / BARYCENTRIC)
            out.worst_barycentric = max(out.worst_barycentric, float(error[known].max()))
            faces = np.unique(picture.face_index[known] - 1)
            room = np.zeros(len(self.scene.faces))
            room[faces] = [float(self._epsilon(int(k))) for k in faces]
            allowed = room[picture.face_index[known] - 1] + (
                np.abs(depth.value[known]) * (2.0**-24 + WELL_KNOWN) + 2.0**-150)  # fmt: skip
            gap = np.abs(picture.depth[known] - depth.value[known]) / allowed
            out.worst_depth = max(out.worst_depth, float(gap.max()))
            self._note(out, "depth", float(gap.max()))
        for row, column in zip(*np.nonzero(covered & ~known), strict=True):
            self._judge_exactly(picture, int(row), int(column), out)
        empty = picture.barycentric[~covered].any() or (picture.depth[~covered] != np.inf).any()
        self._note(out, "empty pixels", 2.0 if empty else 0.0)

    def _judge_exactly(self, picture: Picture, row: int, column: int, out: Verdict) -> None:
        number = int(picture.face_index[row, column]) - 1
        face = self.exact.face(number)
        p, q = 2 * column + 1, 2 * row + 1
        if face is None or face.nearness_at(p, q) == 0:
            return  # told as wrong
        out.counts["values judged exactly"] += 1
        shares = face.barycentric_at(p, q)
        scale = max(1, *map(abs, shares))
        found = picture.barycentric[row, column]
        error = max(float(abs(Fraction(float(x)) - s) / scale) if np.isfinite(x) else np.inf
                    for x, s in zip(found, shares, strict=True))  # fmt: skip
        out.worst_barycentric = max(out.worst_barycentric, error)
        self._note(out, "barycentrics", error / BARYCENTRIC)
        depth, got = face.depth_at(p, q), float(picture.depth[row, column])
        if not np.isfinite(got):
            beyond = abs(depth) >= Fraction(float(np.finfo(np.float32).max))
            self._note(out, "depth", 0.0 if beyond and (got > 0) == (depth > 0) else np.inf)
            return
        allowed = self._epsilon(number) + abs(depth) / 2**24 + Fraction(1, 2**150)
        gap = float(abs(Fraction(got) - depth) / allowed)
        out.worst_depth = max(out.worst_depth, gap)
        self._note(out, "depth", gap)

    def _note(self, out: Verdict, what: str, share: float) -> None:
        """A value with that share of what is allowed."""
        if not share <= 1:
            out.counts["wrong"] += 1
            out.wrong.append(f"{self.scene.kind} {self.rule}: {what} off by {share:.3g} of what "
                             f"is allowed")  # fmt: skip
