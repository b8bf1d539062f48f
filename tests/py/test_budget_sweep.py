"""What a budget buys: a little less of it never costs several times the work."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import tiny_vae  # noqa: E402

from hy3d_rocm.decode.families import family_for  # noqa: E402
from hy3d_rocm.decode.memory.budget import Budget  # noqa: E402
from hy3d_rocm.decode.planning import ways  # noqa: E402
from hy3d_rocm.decode.planning.planner import Need, Plan, Way, choose  # noqa: E402
from hy3d_rocm.decode.memory.black_box import Prices  # noqa: E402

CPU = torch.device("cpu")
MB = 2**20
# On the CPU a plan holds 32 MB for what is not predicted, which in a tiny VAE would be all of it.
ALLOWANCE = 32 * MB
BUDGETS = 400
# At most so many times the work for the next budget below, where nothing lies between.
STEP = 2.0
# Each tile is at least so much of the one before, by area; what a way takes does not fall faster.
FILLED = 0.6


def tiles(kind: str, size: tuple[int, int, int]) -> list[tuple[Way, Need]]:
    """All ways in tiles, by their prices."""
    family = family_for(tiny_vae(kind))
    shape = (1, family.latent_channels, *size)
    # As on a CPU with the C core: torch's operators take im2col for some shapes, smaller ones too.
    job = ways.Job(family, shape, CPU, torch.float32, torch.float32, ways.native_backend)
    price = Prices(job)
    return [(way, price(way)) for way in ways.list_ways(job) if way.strategy == "tiled"]


def sweep(found: list[tuple[Way, Need]]) -> list[Plan]:
    """The plans of budgets from the largest to the least that do: evenly, and where each way just
    fits and just does not."""
    needs = {way.name: need for way, need in found}
    sizes = sorted(need.device_bytes for need in needs.values())
    room = range(sizes[0], sizes[-1] + 1, (sizes[-1] - sizes[0]) // BUDGETS + 1)
    rooms = {*room, *sizes, *(size - 1 for size in sizes[1:] if size > sizes[0])}
    offered = [way for way, _ in found]
    return [
        choose(offered, Budget(n, n, True, "swept"), "auto", lambda way: needs[way.name])
        for n in sorted(rooms, reverse=True)
    ]


def halo(way: Way) -> Any:
    return way.parameters["halo_pixels"]


@pytest.mark.parametrize(
    ("kind", "size"),
    [("wan", (2, 16, 16)), ("wan", (1, 30, 24)), ("hunyuan", (1, 16, 20)), ("ltx", (2, 14, 10)),
     ("image", (1, 40, 40))],
)  # fmt: skip
def test_less_budget_costs_more_work_by_small_steps_or_less_halo(
    kind: str, size: tuple[int, int, int]
) -> None:
    found = tiles(kind, size)
    plans = sweep(found)
    assert len({plan.way.name for plan in plans}) >= 4, "there is something to choose from"
    for larger, smaller in itertools.pairwise(plans):
        assert smaller.need.device_bytes <= smaller.budget.device_bytes
        assert halo(smaller.way) <= halo(larger.way), "the halo is never wider with less"
        if halo(smaller.way) == halo(larger.way):
            assert smaller.need.macs >= larger.need.macs, "less memory, less work, same halo"
        between = [
            need for way, need in found
            if larger.need.device_bytes > need.device_bytes > smaller.need.device_bytes
        ]  # fmt: skip
        few = smaller.need.macs <= STEP * larger.need.macs
        assert few or not between, (larger.way.name, smaller.way.name)
    for plan in plans:
        same = [need for way, need in found if halo(way) == halo(plan.way)]
        better = [n for n in same if n.macs < plan.need.macs]
        assert all(n.device_bytes > plan.budget.device_bytes for n in better), "a cheaper one fits"
        taken, given = (n - ALLOWANCE for n in (plan.need.device_bytes, plan.budget.device_bytes))
        assert taken >= FILLED * given, (plan.way.name, taken / given)


def test_the_work_of_tiles_counts_all_of_them_in_every_pass() -> None:
    """One tile is the whole picture: its work is that of the decode in chunks."""
    family = family_for(tiny_vae("wan"))
    job = ways.Job(
        family, (1, family.latent_channels, 2, 12, 12), CPU, torch.float32, torch.float32,
        ways.torch_backend,
    )  # fmt: skip
    price = Prices(job)
    streamed = next(way for way in ways.list_ways(job) if way.strategy == "streamed")
    tiled = [way for way in ways.list_ways(job) if way.strategy == "tiled"]
    whole = price(streamed).macs
    assert price(tiled[0]).macs == whole
    for way in tiled[1:3]:
        plan = ways.tile_plan(job, way.parameters)
        more = plan.spatial.decoded_voxels / (12 * 12 * 64)
        assert whole < price(way).macs <= more * whole, way.name
