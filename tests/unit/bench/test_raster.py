"""`python -m tools.dev.bench raster`: its scene, its children, its figures, its words."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raster_peers import OTHERS, judged, labelled
from raster_peers_embree import _chunks, _packet_order, _picture_order
from raster_peers_vulkan import jobs as vulkan_jobs

from hy3d_rocm import _native
from tools.dev.bench import raster_children, raster_turns
from tools.dev.bench.__main__ import main
from tools.dev.bench.raster_children import Child, ChildError, own_python
from tools.dev.bench.raster_gl import jobs as gl_jobs
from tools.dev.bench.raster_jobs import BOTH, INDEX, VALUES, Given, MissingError, Peer
from tools.dev.bench.raster_numpy import jobs as numpy_jobs
from tools.dev.bench.raster_open3d import jobs as open3d_jobs
from tools.dev.bench.raster_open3d import rays_of
from tools.dev.bench.raster_ours import draw
from tools.dev.bench.raster_scene import Scene, _clip, load_scene, make_scene, save_scene
from tools.dev.bench.raster_text import raster_dict, raster_text, target_ms
from tools.dev.bench.raster_torch import jobs as torch_jobs
from tools.dev.bench.raster_turns import (
    RasterPart,
    RasterReport,
    RasterRow,
    RasterSettings,
    run_raster,
)

needs_core = pytest.mark.skipif(not _native.available, reason="the C core is not built")
DOUBLE = Peer("double", "raster_bench_doubles", "write one")
# |f32 - exact| of three products and their sum, weights and attributes in [0, 1]: each rounding is
# at most 2^-24 of a sum that stays below 1 + 2^-20, and there are fewer than 8.
ROUNDED = 2.0**-21


@pytest.fixture
def small() -> Scene:
    return make_scene(2000, 64)


@pytest.fixture
def given(small: Scene) -> Given:
    if not _native.available:
        pytest.skip("the C core is not built")
    return draw(small, 1)


@pytest.mark.parametrize(("faces", "most"), [(1, 56), (2000, 2300), (100_000, 100_500)])
def test_the_scene_has_as_many_faces_as_asked_and_is_closed(faces: int, most: int) -> None:
    scene = make_scene(faces, 64)
    assert faces <= len(scene.faces) <= most
    corners = scene.faces
    edges = np.concatenate([corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [2, 0]]])
    assert set(np.unique(np.sort(edges, axis=1), axis=0, return_counts=True)[1]) == {2}
    assert np.array_equal(np.unique(corners), np.arange(len(scene.positions)))


def test_the_scene_is_the_same_each_time_and_after_a_file(small: Scene, tmp_path: Path) -> None:
    save_scene(small, tmp_path)
    for other in (make_scene(2000, 64), load_scene(tmp_path)):
        for name in ("positions", "clip", "faces", "attributes"):
            assert np.array_equal(getattr(small, name), getattr(other, name))
            assert getattr(small, name).dtype == getattr(other, name).dtype
        assert (small.size, small.eye, small.slope) == (other.size, other.eye, other.slope)


def test_nothing_of_the_scene_is_clipped_and_it_fills_the_picture(
    small: Scene, given: Given
) -> None:
    depth, w = small.clip[:, 2], small.clip[:, 3]
    assert (w > 0).all()
    assert (np.abs(depth) < w).all()
    assert 0.8 < (given.face_index > 0).mean() < 1


def test_rays_go_through_pixel_centres(small: Scene) -> None:
    rays = rays_of(small).astype(np.float64)
    points = (rays[..., :3] + 2 * rays[..., 3:]).reshape(-1, 3)
    x, y, _, w = _clip(points, small.slope).astype(np.float64).reshape(64, 64, 4).transpose(2, 0, 1)
    centres = (2 * np.arange(64) + 1) / 64 - 1
    # Directions and clip coordinates are rounded to f32 once each, all below 2; w is 2.
    assert np.abs(x / w - centres[None, :]).max() < ROUNDED
    assert np.abs(y / w - centres[:, None]).max() < ROUNDED


@pytest.mark.parametrize("make", [torch_jobs, numpy_jobs])
def test_every_way_to_interpolate_gives_the_same_values(
    make: Callable[..., Any], small: Scene, given: Given
) -> None:
    jobs = make(small, given, 1)
    assert jobs
    for job in jobs:
        assert job.kind == VALUES
        job.run()
        found = job.result()[0]
        assert raster_turns._values_difference(found, small, given) <= ROUNDED, job.name
    assert make(small, None, 1) == []


@pytest.mark.parametrize(
    ("make", "library"), [(gl_jobs, "moderngl"), (open3d_jobs, "open3d"), (vulkan_jobs, "wgpu")]
)
def test_a_library_that_is_not_there_is_missing_not_a_crash(
    make: Callable[..., Any], library: str, small: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingError, match=library):
        make(small, None, 1)


def settings(**changed: Any) -> RasterSettings:
    contenders = raster_turns.contenders_of(peers=[DOUBLE])
    return RasterSettings(contenders, ((2000, 64),), None, 1, 2, **changed)


@needs_core
def test_a_peer_is_measured_in_turns_and_compared() -> None:
    report = run_raster(settings())
    (part,) = report.parts
    double = next(row for row in part.rows if not row.is_ours)
    assert {len(row.seconds) for row in part.rows} == {2}
    assert double.agreement is not None
    assert 0 < double.agreement < 0.2  # it draws nothing: the picture's empty pixels agree
    assert min(double.totals()) >= 0.002 > min(double.works())
    ours = part.ours(BOTH)
    assert ours is not None
    assert (ours.name, ours.agreement, ours.difference) == ("ours, topleft", 1.0, 0.0)
    text = raster_text(report)
    assert "tree 5" in text
    assert "fastest other, double" in text
    json.dumps(raster_dict(report), allow_nan=False)


@needs_core
@pytest.mark.parametrize(
    ("how", "words"),
    [("fails", "no picture today"), ("ends", "ended"), ("missing", "no such library (write one)")],
)
def test_a_peer_that_fails_is_a_sentence_and_the_others_go_on(
    how: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOUBLE", how)
    report = run_raster(settings())
    (part,) = report.parts
    assert all(len(row.seconds) == 2 for row in part.rows if row.is_ours)
    assert words in raster_text(report)
    reasons = [row.reason for row in part.rows if row.reason]
    assert (part.missing == {}) == (how != "missing")
    assert len(reasons) == (how != "missing")


def test_a_peer_that_hangs_is_stopped(
    small: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOUBLE", "hangs")
    save_scene(small, tmp_path)
    with Child(DOUBLE, own_python(), 1) as child:
        assert [job["name"] for job in child.make(tmp_path, False)] == ["double"]
        monkeypatch.setattr(raster_children, "PATIENCE_S", 0.2)
        with pytest.raises(ChildError, match="no answer"):
            child.run(0)
    assert child._process.poll() is not None


def test_a_python_that_is_not_there_is_said() -> None:
    with pytest.raises(ChildError, match="No such file"):
        Child(DOUBLE, ["no-such-python"], 1)


def test_the_ratio_is_of_work_alone_against_all_of_ours() -> None:
    ours = RasterRow("ours", BOTH, True, seconds=[{"rasterize": s} for s in (1.0, 2.0, 4.0)])
    other = RasterRow("x", BOTH, False, seconds=[{"draw": 3.0, "read-back": 1.0}] * 3)
    part = RasterPart("s", 64, 1, False, [ours, other])
    assert part.ratio(other) == 1.5
    assert part.ratio(other, work_alone=False) == 2.0
    assert part.ratio(RasterRow("y", INDEX, False, seconds=other.seconds)) is None


@pytest.mark.parametrize(
    ("size", "faces", "kind", "limit"),
    [
        (1024, 100_224, BOTH, 25.0),
        (2048, 1_001_716, BOTH, 200.0),
        (1024, 100_224, VALUES, 5.0),
        (1024, 50_000, BOTH, None),
        (1024, 100_224, INDEX, None),
        (512, 100_224, BOTH, None),
    ],
)
def test_limits_are_held_against_the_pictures_they_were_set_for(
    size: int, faces: int, kind: str, limit: float | None
) -> None:
    assert target_ms(RasterPart("s", size, faces, kind == VALUES), kind) == limit
    assert target_ms(RasterPart("s", size, faces, kind != VALUES), kind) is None


def test_being_behind_or_slow_is_a_fault() -> None:
    row = {"is_ours": True, "kind": BOTH, "median_ms": 24.0, "name": "ours"}
    part = {
        "scene": "s",
        "rows": [row],
        "fastest_others": [{"kind": BOTH, "ratio": 1.1, "name": "x"}],
        "targets_ms": {BOTH: 25.0},
    }
    assert judged({"parts": [part]}) == 0
    assert judged({"parts": [{**part, "rows": [{**row, "median_ms": 26.0}]}]}) == 2
    behind = [{"kind": BOTH, "ratio": 0.9, "name": "x"}]
    assert judged({"parts": [{**part, "fastest_others": behind}]}) == 2


def test_embrees_order_of_rays_is_undone() -> None:
    picture = np.arange(64 * 64).reshape(64, 64)
    flat = _packet_order(picture)
    assert set(flat[:16]) == {64 * y + x for y in range(4) for x in range(4)}
    assert np.array_equal(_picture_order(flat, 64), picture)
    for units in (1, 7, 32, 100):
        covered = [at for first, end in _chunks(units, 4) for at in range(first, end)]
        assert covered == list(range(4 * units))


def test_a_label_without_a_command_is_refused() -> None:
    assert labelled("new=python -E") == ("new", ["python", "-E"])
    for text in ("new", "=python", "new="):
        with pytest.raises(Exception, match="LABEL=COMMAND"):
            labelled(text)


@needs_core
def test_the_command_measures_and_writes_both_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    code = main(["raster", "--faces", "2000", "--size", "64", "--repeats", "1",
                 "--threads", "1", "--peers", "NumPy", "torch", "--json", str(file)])  # fmt: skip
    assert code == 0
    figures = json.loads(file.read_text())
    drawn, interpolated = figures["parts"]
    assert [row["kind"] for row in drawn["rows"]] == [BOTH, INDEX] * 2
    assert {row["name"].split()[0] for row in interpolated["rows"]} == {"ours", "NumPy", "torch"}
    assert all(row["difference"] <= ROUNDED for row in interpolated["rows"])
    assert "ratio" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["--threads", "0"], ["--threads", "1025"], ["--size", "0"], ["--size", "32769"],
     ["--faces", "3000000000"], ["--faces", "0"], ["--repeats", "0"], ["--repeats", "10001"],
     ["--size", "x"], ["--peers", "nobody"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_arguments_end_with_code_2(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raster_turns, "run_raster", never)
    with pytest.raises(SystemExit) as caught:
        main(["raster", *arguments])
    assert caught.value.code == 2


def never(*_: object) -> Any:
    raise AssertionError("this is not to be measured")


@needs_core
@pytest.mark.parametrize(
    ("where", "error", "words"),
    [("make_scene", ValueError("axes"), "could not be drawn: axes"),
     ("make_scene", MemoryError("no 3 GiB"), "give a smaller --size or --faces (no 3 GiB)"),
     ("save_scene", OSError(28, "No space left on device"), "No space left on device; give"),
     ("draw", ValueError("threads is 9"), "could not be drawn: threads is 9"),
     ("draw", MemoryError(), "do not fit in memory"),
     ("draw", _native.Hy3dError("no threads"), "could not be drawn: no threads"),
     ("draw", MissingError("no core"), "no core")],
)  # fmt: skip
def test_a_picture_that_cannot_be_made_is_a_sentence(
    where: str, error: Exception, words: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fails(*_: object) -> Any:
        raise error

    monkeypatch.setattr(raster_turns, where, fails)
    assert main(["raster", "--faces", "200", "--size", "16"]) == 1
    told = capsys.readouterr()
    assert words in told.err
    assert told.out == ""


def test_no_memory_to_compare_is_the_rows_reason_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not _native.available:
        pytest.skip("the C core is not built")
    whole = Child.result

    def result(child: Child, job: int, folder: Path) -> list[Any]:
        if child.peer is DOUBLE:
            raise MemoryError("no 12 GiB")
        return whole(child, job, folder)

    monkeypatch.setattr(Child, "result", result)
    (part,) = run_raster(settings()).parts
    reasons = {row.reason for row in part.rows if not row.is_ours}
    assert reasons == {"no memory to compare its picture: no 12 GiB"}
    assert all(len(row.seconds) == 2 for row in part.rows if row.is_ours)


def test_without_torch_a_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "tools.dev.bench.raster_text")
    monkeypatch.delitem(sys.modules, "tools.dev.bench.decode_cpu")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["raster", "--faces", "200", "--size", "16"]) == 1
    assert "needs torch: pip install torch" in capsys.readouterr().err


@pytest.mark.parametrize(("threads", "is_held"), [(2, True), (1, False), (8, False)])
def test_limits_are_of_two_threads(threads: int, is_held: bool) -> None:
    row = RasterRow("ours", BOTH, True, seconds=[{"rasterize": 0.02}])
    part = RasterPart("s", 1024, 100_224, False, [row])
    report = RasterReport(RasterSettings([], threads=threads), [part])
    assert ("at most 25 wanted: met" in raster_text(report)) == is_held
    assert (raster_dict(report)["parts"][0]["targets_ms"] == {BOTH: 25.0}) == is_held


def test_every_peer_says_how_to_get_it() -> None:
    assert all("pip install" in peer.install for peer in OTHERS)
