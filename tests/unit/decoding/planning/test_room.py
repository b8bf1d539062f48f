"""Programs that find room on a GPU as PyTorch's allocator lays them out, by the C core; held
against a model of that allocator in Python (tests/bench/model_allocator.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from bench_planning import job_of  # noqa: E402
from model_allocator import MIB, Allocator, carried_out  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding.memory.budget import Budget  # noqa: E402
from hy3d_rocm.decoding.planning.compiled import Compiled  # noqa: E402
from hy3d_rocm.decoding.planning.jobs import MakeBackend  # noqa: E402

pytestmark = pytest.mark.skipif(not _native.available, reason="programs need the C core")
GB = 10**9
HOST = 1 << 40


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    sizes = {"hunyuan": (33, 608, 640), "wan21": (33, 480, 832)}
    made = {name: job_of(name, size, "gpu") for name, size in sizes.items()}
    return {name: replace(job, make_backend=MakeBackend("gfx1100")) for name, job in made.items()}


def compiled(job: Any, budget: float, room: float, strategy: str = "streamed") -> Any:
    given = Budget(int(budget * GB), HOST, False, "given", device_room=int(room * GB))
    return Compiled(job, given, strategy)


def finds_room(program: Any, room: float) -> bool:
    """By the model: beside what stays, and the margin, and in less, too."""
    left = int(room) - sum(program.kept(0)) - program.candidate["margin_bytes"]
    try:
        for less in (0, 5):
            carried_out(program, Allocator(left - left // 100 * less))
    except MemoryError:
        return False
    return True


@pytest.mark.parametrize(("name", "shares"), [("hunyuan", (1, 1.2, 1.4, 1.6)), ("wan21", (1, 1.3))])
def test_the_core_and_the_model_agree_on_who_finds_room(
    name: str, shares: tuple[float, ...], jobs: dict[str, Any]
) -> None:
    told, count = set(), 0
    for budget in (3.0, 4.0, 6.0, 9.0):
        for share in shares:
            for one in compiled(jobs[name], budget, budget * share).schedule.candidates:
                told.add(one["lacks_room"])
            program = compiled(jobs[name], budget, budget * share).program
            room = finds_room(program, budget * share * GB)
            assert bool(program.candidate["lacks_room"]) is not room, (budget, share)
            count += 1
    assert told == {0, 1}
    assert count == 4 * len(shares)


def test_what_finds_no_room_gives_way_to_what_does(jobs: dict[str, Any]) -> None:
    """33 frames take 7.7 GB, which fit 8.5 GB; in a room of 9.4 GB the allocator can not do it. So
    slices leave for the host: the same steps but for copies, so the same bits."""
    free = compiled(jobs["hunyuan"], 8.5, 0).program
    assert free.candidate["stored_bytes"] == 0
    assert not finds_room(free, 9.4 * GB)
    roomy = compiled(jobs["hunyuan"], 8.5, 16.0).program
    assert roomy.candidate["stored_bytes"] == 0
    found = compiled(jobs["hunyuan"], 8.5, 9.4)
    tight = found.program
    assert tight.candidate["stored_bytes"] > 0
    assert not tight.candidate["lacks_room"]
    assert finds_room(tight, 9.4 * GB)
    assert [c["lacks_room"] for c in found.schedule.candidates if not c["stored_bytes"]][:1] == [1]
    copies = {"store", "drop", "load"}
    from hy3d_rocm.decoding.run import OPS

    def steps(program: Any) -> list[Any]:
        return [s[:14] for s in program.steps(0) if OPS[s[0]] not in copies]

    assert steps(tight) == steps(free)


def test_where_nothing_finds_room_the_fastest_that_fits_is_taken(jobs: dict[str, Any]) -> None:
    free = compiled(jobs["hunyuan"], 8.5, 0).program
    none = compiled(jobs["hunyuan"], 8.5, 0.5).program
    assert none.candidate["lacks_room"]
    assert {**none.candidate, "lacks_room": 0} == free.candidate
    assert none.steps(0) == free.steps(0)


def test_several_ranks_plan_alike_whatever_room_each_has(jobs: dict[str, Any]) -> None:
    both = replace(jobs["hunyuan"], ranks=2)
    found = [compiled(both, 8.0, room).program.candidate for room in (0, 0.5)]
    assert found[0] == found[1]


def test_the_model_reuses_splits_and_joins_blocks_and_gives_idle_ones_back() -> None:
    made = Allocator(100 * MIB)
    made.allocate("a", 30 * MIB)
    made.allocate("b", 30 * MIB)
    made.free("a")
    made.allocate("c", 10 * MIB)  # of the first, which is split
    made.allocate("d", 20 * MIB)
    assert (made.held, made.used) == (60 * MIB, 60 * MIB)
    made.free("c")
    with pytest.raises(MemoryError):
        made.allocate("e", 50 * MIB)
    made.free("d")
    made.allocate("e", 30 * MIB)  # both parts are one again
    assert made.held == 60 * MIB
    made.free("e")
    made.free("b")
    made.allocate("f", 100 * MIB)
    assert (made.held, made.most_held) == (100 * MIB, 100 * MIB)


# Packed weights: HunyuanVideo's are 0.33 GB, Wan 2.1's 0.15


@pytest.mark.parametrize(
    ("name", "budget", "strategy", "repacks"),
    [
        ("wan21", 40.0, "tiled", 0), ("wan21", 1.1, "tiled", 1),  # tiles as large as they can be
        ("hunyuan", 8.5, "streamed", 0), ("hunyuan", 7.5, "streamed", 1),  # before slices leave
        ("hunyuan", 2.3, "streamed", 1),
    ],
)  # fmt: skip
def test_weights_are_packed_in_each_step_where_not_all_fits_with_them(
    name: str, budget: float, strategy: str, repacks: int, jobs: dict[str, Any]
) -> None:
    found = compiled(jobs[name], budget, 0, strategy)
    layers = found.workspace.request["places"][0][-1]
    packed, kept = sum(one for *_, one in layers), sum(found.program.kept(0))
    assert found.program.candidate["repacks"] == repacks
    if strategy == "streamed":  # else its sections keep their own
        assert (kept < packed) == bool(repacks)


def test_weights_that_are_little_of_the_budget_stay_packed() -> None:
    """A thirty-second: nothing is gained by packing them again; up to an eighth both are looked
    at."""
    long = job_of("hunyuan", (129, 720, 1280), "gpu")
    job = replace(long, make_backend=MakeBackend("gfx1100"))
    for budget, wanted in ((24.0, {0}), (4.0, {0, 1}), (2.0, {0, 1})):
        offered = compiled(job, budget, 0).schedule.candidates
        assert {c["repacks"] for c in offered} == wanted, budget
