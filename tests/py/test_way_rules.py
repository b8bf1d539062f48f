"""Which ways a decode has, in which order, and in what chunks and slices."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace as Thing
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from planning_jobs import CARD, CPU, MB, family, job  # noqa: E402

from hy3d_rocm.decode.planning import ways  # noqa: E402
from hy3d_rocm.decode.planning.jobs import WayOptions  # noqa: E402
from hy3d_rocm.decode.planning.planner import Way  # noqa: E402


def chunks(**changes: Any) -> list[int]:
    options = {"on_cpu": False, "native": False}
    options |= {name: changes.pop(name) for name in list(changes) if name in options}
    return ways._chunks(job(**changes), **options)


def test_chunks_keep_a_gpu_busy_and_end_with_one_latent() -> None:
    def shaped(frames: int, height: int, width: int) -> dict[str, Any]:
        return {"shape": (1, 16, frames, height, width)}

    assert chunks(**shaped(200, 16, 16)) == [64, 1]
    assert chunks(**shaped(9, 16, 16)) == [9, 1]
    assert chunks(**shaped(9, 128, 128)) == [1]
    assert chunks(**shaped(9, 64, 128)) == [2, 1]
    assert chunks(**shaped(9, 300, 300)) == [1]
    assert chunks(**shaped(9, 16, 16), on_cpu=True) == [1]
    assert chunks(**shaped(9, 16, 16), on_cpu=True, native=True) == [4, 2, 1]
    assert chunks(**shaped(3, 16, 16), on_cpu=True, native=True) == [3, 2, 1]
    assert chunks(**shaped(1, 16, 16), on_cpu=True, native=True) == [1]
    pixels = shaped(33, 512, 1024)
    assert chunks(**pixels, encode=True) == [8, 4]
    assert chunks(**shaped(3, 512, 1024), encode=True) == [4]
    assert chunks(**shaped(5, 4, 4), encode=True) == [8, 4]


def streamed(device: Any, options: WayOptions | None = None, **changes: Any) -> list[Way]:
    return list(ways._streamed("streamed", job(device, **changes), device, options or WayOptions()))


def test_without_global_norms_time_is_cut_into_chunks() -> None:
    assert streamed(CPU) == [
        Way("streamed", "in chunks of 1 latent frame", {"engine": "chunks", "chunk": 1})
    ]
    assert streamed(CARD, shape=(1, 16, 9, 64, 128)) == [
        Way("streamed", "in chunks of 2 latent frames", {"engine": "chunks", "chunk": 2}),
        Way("streamed", "in chunks of 1 latent frame", {"engine": "chunks", "chunk": 1}),
    ]
    assert [w.what for w in streamed(CPU, WayOptions(chunk_size=5))] == [
        "in chunks of 5 latent frames"
    ]
    assert [w.what for w in streamed(CPU, encode=True)] == ["in chunks of 4 pixel frames"]


def test_with_global_norms_layers_are_sliced_and_spilled_where_there_is_a_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ways, "_slice_bytes", lambda device: 32 * MB if device == CPU else 64 * MB)
    layers = family(has_global_norms=True)

    def sliced(size: int, **more: Any) -> Way:
        what = more.pop("what", "layer by layer")
        return Way("streamed", what, {"engine": "layers", "slice_bytes": size}, **more)

    assert streamed(CARD, family=layers) == [sliced(64 * MB, spills=True)]
    assert streamed(CARD, WayOptions(cpu_offload=False), family=layers) == [sliced(64 * MB)]
    assert streamed(CPU, family=layers) == [sliced(32 * MB)]
    made = {"family": layers, "make_backend": ways.native_backend}
    assert streamed(CPU, **made) == [
        sliced(512 * MB),
        sliced(32 * MB, what="layer by layer, 32.0 MB at a time"),
    ]
    assert streamed(CARD, **made) == [sliced(64 * MB, spills=True)]
    assert streamed(CPU, WayOptions(slice_bytes=7), **made) == [sliced(7)]


@pytest.mark.parametrize(
    ("way", "opaque", "own", "is_native"),
    [(Way("whole"), False, True, False), (Way("streamed"), False, False, True),
     (Way("streamed"), True, True, False)],
)  # fmt: skip
def test_whose_code_runs(way: Way, opaque: bool, own: bool, is_native: bool) -> None:
    made = job(family=family(is_opaque=opaque), make_backend=ways.native_backend)
    assert ways.runs_own_code(made, way) is own
    assert ways.is_native(made, way) is is_native
    assert not ways.is_native(replace(made, make_backend=ways.torch_backend), way)
    on_card = replace(made, device=CARD)
    assert not ways.is_native(on_card, way)


def test_the_order_of_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ways, "_tiled", lambda strategy, job, options: iter([Way(strategy, f"tiles {options}")])
    )
    monkeypatch.setattr(
        ways, "_streamed",
        lambda strategy, job, device, options: iter([Way(strategy, f"{device} {options}")]),
    )  # fmt: skip
    options = WayOptions(chunk_size=3)
    plain = [
        Way("whole"), Way("streamed", f"cuda:0 {options}"), Way("tiled", f"tiles {options}"),
        Way("cpu", f"cpu {options}"), Way("cpu", f"tiles {options}"),
    ]  # fmt: skip
    assert list(ways.list_ways(job(CARD), options)) == plain
    first, second, *rest = plain
    assert list(ways.list_ways(job(CARD, is_fused=True), options)) == [second, first, *rest]
    assert list(ways.list_ways(job(CARD, encode=True), options)) == [first, second, plain[3]]
    assert list(ways.list_ways(job(CARD)))[1].what == f"cuda:0 {WayOptions()}"
    opaque = job(CARD, family=family(is_opaque=True))
    monkeypatch.setattr(ways, "own_ways", lambda job, options: iter([(job, options)]))
    assert list(ways.list_ways(opaque, options)) == [(opaque, options)]


def test_a_tool_is_on_the_host_where_it_computes_there() -> None:
    assert ways.Tools(Thing(), CPU).on_host
    assert not ways.Tools(Thing(), CARD).on_host


#: By halo: sides of the largest tile, number of tiles and positions that all decode, by level
TILES = {
    32: (((40, 60), 1, 2400), ((40, 59), 2, 2500), ((20, 60), 2, 2600), ((20, 30), 4, 3000)),
    24: (((40, 60), 1, 2400), ((19, 30), 4, 2900), ((10, 30), 8, 3600)),
    16: (((40, 60), 1, 2400), ((11, 30), 8, 3000), ((10, 20), 12, 4000), ((10, 19), 13, 4100)),
}


def planned(
    monkeypatch: pytest.MonkeyPatch, scale: int = 2, rows: Any = None
) -> list[dict[str, Any]]:
    """Plans of TILES in the place of tile_plan; what was asked of it."""
    asked: list[dict[str, Any]] = []

    def plan(job: Any, parameters: Any) -> Any:
        asked.append(dict(parameters))
        levels = (rows or TILES)[parameters["halo_pixels"]]
        sides, count, work = levels[parameters["level"]]
        spatial = Thing(
            levels=len(levels), grains=[None] * count, decoded_size=lambda axis: sides[axis - 1],
            decoded_voxels=float(work),
        )  # fmt: skip
        return Thing(spatial=spatial, cut=Thing(scale=scale))

    monkeypatch.setattr(ways, "tile_plan", plan)
    return asked


def levels_of(found: list[Way]) -> list[tuple[int, int]]:
    return [(way.parameters["halo_pixels"], way.parameters["level"]) for way in found]


def test_tiles_come_large_first_and_then_those_of_less_halo_that_are_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned(monkeypatch)
    made = job(CARD, family=family(has_global_norms=True))
    pixels = made.family.factor[1] // 2
    options = WayOptions(chunk_size=5, statistic_passes=3)
    found = list(ways._tiled("tiled", made, options))
    # (40, 59) is hardly smaller than (40, 60), (11, 30) hardly than (19, 30) is not.
    assert levels_of(found) == [(32, 0), (32, 2), (32, 3), (24, 1), (24, 2), (16, 2), (16, 3)]
    texts = [way.what for way in found]
    assert texts[0] == f"in 1 tile of up to {60 * pixels} x {40 * pixels} pixels"
    assert texts[1] == f"in 2 tiles of up to {60 * pixels} x {20 * pixels} pixels"
    assert texts[3] == f"in 4 tiles of up to {30 * pixels} x {19 * pixels} pixels with a halo of 24"
    assert [way.again for way in found] == [False] * 3 + [True] * 4
    assert [way.row for way in found] == ["tiles 32"] * 3 + ["tiles 24"] * 2 + ["tiles 16"] * 2
    assert {way.strategy for way in found} == {"tiled"}
    usual = {"engine": "tiles", "chunk": 5, "slice_bytes": options.slice_bytes, "halo_pixels": 32,
             "overlap_pixels": options.overlap_pixels, "min_tile_pixels": options.min_tile_pixels,
             "passes": 3, "level": 0}  # fmt: skip
    assert found[0].parameters == usual
    assert found[-1].parameters == usual | {
        "chunk": 1, "halo_pixels": 16, "overlap_pixels": 8, "min_tile_pixels": 16, "level": 3
    }  # fmt: skip
    plain = list(ways._tiled("cpu", job(CARD), WayOptions(statistic_passes=3)))
    assert plain[0].parameters["passes"] == 0, "nothing is normalised over the whole video"
    assert plain[0].parameters["chunk"] == 1
    assert plain[-1].strategy == "cpu"


def test_a_wide_halo_is_given_up_where_it_makes_more_than_twice_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wasteful = {**TILES, 32: (*TILES[32][:3], ((20, 30), 9, 5801), ((10, 30), 30, 9999))}
    planned(monkeypatch, rows=wasteful)
    found = levels_of(list(ways._tiled("tiled", job(CARD), WayOptions())))
    assert found[:4] == [(32, 0), (32, 2), (24, 1), (24, 2)], "5801 are more than twice 2900"
    wasteful[32] = (*TILES[32][:3], ((20, 30), 9, 5800))
    assert levels_of(list(ways._tiled("tiled", job(CARD), WayOptions())))[2] == (32, 3)


def test_less_halo_than_was_asked_for_is_never_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = planned(monkeypatch, rows=dict.fromkeys((20, 16), TILES[16]))
    given = WayOptions(halo_pixels=20, overlap_pixels=4, min_tile_pixels=18)
    found = list(ways._tiled("tiled", job(CARD), given))
    sizes = {tuple(p[f"{n}_pixels"] for n in ("halo", "overlap", "min_tile")) for p in asked}
    assert sizes == {(20, 4, 18), (16, 4, 16)}
    assert all(way.parameters["halo_pixels"] == 20 for way in found), "no smaller tile is there"
