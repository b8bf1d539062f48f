"""`bench raster`: this package's rasteriser beside what else draws on a CPU, in turns."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hy3d_rocm._native import Hy3dError
from hy3d_rocm.bench.timing import BenchError
from tools.dev.bench.cpu_timing import median_ratio
from tools.dev.bench.raster_children import Child, ChildError, own_python
from tools.dev.bench.raster_jobs import BOTH, INDEX, OURS, PEERS, VALUES, Given, MissingError, Peer
from tools.dev.bench.raster_ours import draw
from tools.dev.bench.raster_scene import Scene, make_scene, save_scene

WARM_UP = 2
_PAUSE_S = 0.01  # a child's idle threads spin for a while after a call


@dataclass(frozen=True)
class Contender:
    """A peer and the Pythons to look for it in, the first that has it. label: put before its rows'
    names."""

    peer: Peer
    pythons: Sequence[Sequence[str]]
    label: str = ""


@dataclass(frozen=True)
class RasterSettings:
    """pictures: (faces, pixels a side) of each; values_at: the picture that is interpolated, by its
    place, or None."""

    contenders: Sequence[Contender]
    pictures: Sequence[tuple[int, int]] = ((100_000, 1024), (1_000_000, 2048))
    values_at: int | None = 0
    threads: int = 2
    repeats: int = 15
    say: Callable[[str], None] = lambda _: None


@dataclass
class RasterRow:
    """seconds: of each stage in each turn. agreement: share of pixels with our face index.
    difference: to our barycentrics (median over pixels of one face) or values (largest)."""

    name: str
    kind: str
    is_ours: bool
    prepared: dict[str, float] = field(default_factory=dict)
    seconds: list[dict[str, float]] = field(default_factory=list)
    agreement: float | None = None
    difference: float | None = None
    reason: str | None = None

    def totals(self) -> list[float]:
        """Of each turn, everything."""
        return [sum(turn.values()) for turn in self.seconds]

    def works(self) -> list[float]:
        """Of each turn, the first stage: without read-back."""
        return [next(iter(turn.values())) for turn in self.seconds]


@dataclass
class RasterPart:
    """One picture, drawn or interpolated, by everyone. missing: peers that are not there."""

    scene: str
    size: int
    faces: int
    is_given: bool
    rows: list[RasterRow] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def ours(self, kind: str) -> RasterRow | None:
        """Ours that the others are held against: the first of its kind."""
        found = (row for row in self.rows if row.is_ours and row.kind == kind and row.seconds)
        return next(found, None)

    def ratio(self, row: RasterRow, *, work_alone: bool = True) -> float | None:
        """The row's time over ours of the same kind, median over turns; above 1 ours is faster.
        work_alone: the peer's first stage against all of ours."""
        ours = self.ours(row.kind)
        if ours is None:
            return None
        return median_ratio(row.works() if work_alone else row.totals(), ours.totals())


@dataclass
class RasterReport:
    settings: RasterSettings
    parts: list[RasterPart] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def measured(self) -> bool:
        return any(row.seconds for part in self.parts for row in part.rows)


def contenders_of(
    pythons: Sequence[Sequence[str]] = (),
    peers: Sequence[Peer] = PEERS,
    also: Sequence[tuple[str, Sequence[str]]] = (),
) -> list[Contender]:
    """Ours with this Python; each peer with the first that has it, of this and `pythons`; and once
    more, under its label, with each of `also` (other versions of the same)."""
    own = own_python()
    found = [Contender(OURS, [own]), *(Contender(peer, [own, *pythons]) for peer in peers)]
    found += [Contender(peer, [python], f"{label}: ") for label, python in also for peer in peers]
    return found


def run_raster(settings: RasterSettings) -> RasterReport:
    """All pictures; Ctrl-C ends it with what there is. BenchError without the C core, or where a
    picture can't be made at all."""
    report = RasterReport(settings)
    started = time.perf_counter()
    try:
        for number, (faces, size) in enumerate(settings.pictures):
            with tempfile.TemporaryDirectory(prefix="hy3d-raster-") as name:
                folder = Path(name)
                scene, given = _prepare(faces, size, folder, settings.threads)
                for is_given in (False, True) if number == settings.values_at else (False,):
                    part = RasterPart(scene.text, size, len(scene.faces), is_given)
                    report.parts.append(part)
                    _Turns(part, settings, folder, given, scene).run()
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds = time.perf_counter() - started
    return report


def _prepare(faces: int, size: int, folder: Path, threads: int) -> tuple[Scene, Given]:
    """The scene and its picture, both in `folder`, too."""
    what = f"{size}x{size} pixels of {faces:,} faces"
    try:
        scene = make_scene(faces, size)
        save_scene(scene, folder)
        given = draw(scene, threads)
        np.save(folder / "face_index.npy", given.face_index)
        np.save(folder / "barycentric.npy", given.barycentric)
    except MissingError as error:
        raise BenchError(str(error)) from error
    except MemoryError as error:
        raise BenchError(
            f"{what} do not fit in memory: give a smaller --size or --faces ({error})"
        ) from error
    except OSError as error:
        raise BenchError(
            f"{what} could not be written to {folder.parent}: {error.strerror or error}; "
            "give a smaller --size or --faces, or another folder in TMPDIR"
        ) from error
    except (ValueError, Hy3dError) as error:
        raise BenchError(f"{what} could not be drawn: {error}") from error
    return scene, given


class _Turns:
    """One part: children are started, warmed, measured in turns and compared."""

    def __init__(self, part: RasterPart, settings: RasterSettings, folder: Path, given: Given,
                 scene: Scene) -> None:  # fmt: skip
        self._part, self._settings, self._folder = part, settings, folder
        self._given, self._scene = given, scene
        self._runs: list[tuple[Child, int, RasterRow]] = []

    def run(self) -> None:
        with ExitStack() as stack:
            for contender in self._settings.contenders:
                self._start(contender, stack)
            for turn in range(WARM_UP + self._settings.repeats):
                for child, job, row in self._live():
                    time.sleep(_PAUSE_S)
                    self._turn(child, job, row, keep=turn >= WARM_UP)
                if turn == WARM_UP - 1:
                    for child, job, row in self._live():
                        self._compare(child, job, row)
        for _, _, row in self._runs:
            self._settings.say(f"{self._part.scene}: {row.name}: {_progress(row)}")

    def _live(self) -> Iterator[tuple[Child, int, RasterRow]]:
        return (run for run in self._runs if run[2].reason is None)

    def _start(self, contender: Contender, stack: ExitStack) -> None:
        reasons = []
        for python in contender.pythons:
            child = None
            try:
                child = Child(contender.peer, python, self._settings.threads)
                jobs = child.make(self._folder, self._part.is_given)
            except (MissingError, ChildError) as error:
                reasons.append(str(error))
                if child is not None:
                    child.close()
                continue
            stack.callback(child.close)
            for number, job in enumerate(jobs):
                row = RasterRow(contender.label + job["name"], job["kind"],
                                contender.peer is OURS, job["prepared"])  # fmt: skip
                self._part.rows.append(row)
                self._runs.append((child, number, row))
            return
        name = contender.label + contender.peer.name
        self._part.missing[name] = f"{'; '.join(reasons)} ({contender.peer.install})"
        self._settings.say(f"{name} is not there: {self._part.missing[name]}")

    def _turn(self, child: Child, job: int, row: RasterRow, keep: bool) -> None:
        try:
            child.run(job)  # what the others left in the caches is no part of the work
            seconds = child.run(job)
        except ChildError as error:
            row.reason = str(error)
            return
        if keep:
            row.seconds.append(seconds)

    def _compare(self, child: Child, job: int, row: RasterRow) -> None:
        try:
            child.run(job)  # jobs of one child may share arrays
            self._hold(row, child.result(job, self._folder))
        except ChildError as error:
            row.reason = str(error)
        except MemoryError as error:
            row.reason = f"no memory to compare its picture: {error}"

    def _hold(self, row: RasterRow, found: list[Any]) -> None:
        """Against ours."""
        if row.kind == VALUES:
            row.difference = _values_difference(found[0], self._scene, self._given)
            return
        same = found[0] == self._given.face_index
        row.agreement = float(same.mean())
        if row.kind == BOTH:
            inside = same & (self._given.face_index > 0)
            gaps = np.abs(found[1] - self._given.barycentric)[inside]
            row.difference = float(np.median(gaps)) if gaps.size else 0.0


def _values_difference(found: Any, scene: Scene, given: Given) -> float:
    """Largest, to float64's."""
    corners = scene.attributes[scene.faces[given.face_index.reshape(-1) - 1]].astype(np.float64)
    right = np.einsum("pk,pkc->pc", given.barycentric.reshape(-1, 3).astype(np.float64), corners)
    return float(np.abs(found.reshape(right.shape) - right).max())


def _progress(row: RasterRow) -> str:
    if row.reason is not None or not row.seconds:
        return row.reason or "not timed"
    kind = {BOTH: "face index and barycentrics", INDEX: "face index", VALUES: "values"}[row.kind]
    return f"{1e3 * statistics.median(row.totals()):.1f} ms, {kind}"
