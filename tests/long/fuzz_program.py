"""Calls that work, for what schedules a decode: as fuzz_calls.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hy3d_rocm import _core

NONE, ONES, AROUND = (0, 0, 0), (1, 1, 1), (0, 1, 1)
INPUT = (0, -1, -1, 0, 4, *(NONE,) * 7, *(0,) * 12, (0, 0), (0, 0))
CONV = (
    1, 0, -1, 0, 8, (3, 3, 3), ONES, ONES, ONES, (2, 1, 1), AROUND, ONES, 1, *(0,) * 11,
    (0, 0), (0, 0),
)  # fmt: skip
NORMED = (1, 1, 1, 2, *CONV[4:])
OUTPUT = (6, 2, -1, 0, 8, *(NONE,) * 7, *(0,) * 12, (0, 0), (0, 0))
NODES = (INPUT, CONV, NORMED, OUTPUT)
MACHINE = ((4000, 2000), (1, 0, 0), 1e12, 1e11, 1e-5, 1.0)
REASONS = ("out of memory", "no kernel", "not finite", "refused", "cancelled")


def workspace(step: Any, source: Any, on_host: bool) -> tuple[int, int, int, int]:
    return 100, 10, 5, 7


NATIVE, OTHER = (1, (1, 1), 0, 0, 0, 7, 0), (0, (0, 0), 0, 0, 0, 0, 0)


def place(*layers: Any) -> tuple[Any, ...]:
    return 0, 2, 8, 1000, 1 << 20, layers


def inside(*call: Any) -> tuple[int, int, int, int]:
    return 100, 1, 5, 7


def good_places(rng: random.Random) -> Any:
    """None, the device's, or the host's beside it; now and then with a layer that is none."""
    layers: list[Any] = [OTHER, rng.choice([NATIVE, OTHER]), rng.choice([NATIVE, OTHER]), OTHER]
    if rng.random() < 0.1:
        layers[rng.randrange(4)] = rng.choice([None, (), NATIVE[1:], (0, (0, 0, 0), 0, 0, 0, 0, 0)])
    return (place(*layers),) * rng.randrange(3)


def good_ranks(rng: random.Random) -> dict[str, Any]:
    """One device, or one of several; now and then with weights that are none."""
    if rng.random() < 0.5:
        return {}
    ranks = rng.randrange(2, 5)
    weights = [rng.randrange(1, 5) for _ in range(ranks)]
    if rng.random() < 0.1:
        weights[rng.randrange(ranks)] = rng.choice([0, 1 << 31, (1 << 31) - 1, 1.5, None])
    more: dict[str, Any] = {"weights": tuple(weights)} if rng.random() < 0.5 else {}
    if rng.random() < 0.3:
        more["device_budgets"] = tuple(rng.choice([0, 1, 20000]) for _ in range(ranks))
    return {"rank": rng.randrange(ranks), "ranks": ranks, "link_bytes_per_second": 1e9} | more


def good_request(rng: random.Random) -> dict[str, Any]:
    return {
        "workspace": workspace, "size": (rng.randrange(1, 6), 6, 7), "element_bytes": 4,
        "strategies": rng.choice([2, 6]), "copy_bytes_per_second": 1e10, "device": MACHINE,
        "host": MACHINE, "device_budget": rng.choice([0, 1, 20000]), "may_spill": 1,
        "halos": rng.choice([(), ((4, 2, 4),)]), "is_host": rng.choice([0, 1]),
        "most_shape_bytes": rng.choice([0, 7]), "inside": inside,
        "places": good_places(random.Random(rng.random())),
        **good_ranks(random.Random(rng.random())),
        "unit": rng.choice([(0, 0, 0), (1, 1, 1), (2, 1, 3)]),
        "busy_positions": rng.choice([0, 1, 1 << 40]),
    }  # fmt: skip


def good_schedule(rng: random.Random) -> Any:
    fits = {
        "device_budget": 0,
        "places": (place(OTHER, NATIVE, rng.choice([NATIVE, OTHER]), OTHER),),
    }
    request = good_request(rng) | fits
    for key in ("weights", "device_budgets"):
        request.pop(key, None)
    return _core.compile_schedule(NODES, **request)


def good_nodes(rng: random.Random) -> list[Any]:
    """A list of nodes, one of them with another field now and then."""
    nodes = [list(node) for node in NODES]
    if rng.random() < 0.3:
        node = rng.choice(nodes)
        node[rng.randrange(len(node))] = rng.choice([-1, 0, 7, ONES, NONE, 1.5, None])
    return [tuple(node) for node in nodes]


def member(name: str, *more: Callable[[random.Random], Any]) -> Any:
    """A method or attribute of a program, or of a schedule: the object comes first."""

    def make(rng: random.Random) -> list[Any]:
        schedule = good_schedule(rng)
        owner = schedule if name == "Schedule" else schedule.program
        return [owner, *(one(rng) for one in more)]

    return make


#: By name, makers of positional arguments
PROGRAM_CALLS: dict[str, Any] = {
    "graph_sizes": lambda rng: [good_nodes(rng), (rng.randrange(1, 6), 6, 7)],
    "Schedule": lambda _rng: [],
    **{f"Schedule.{n}": member("Schedule") for n in ("candidates", "smallest_budget", "program")},
    "Program": lambda _rng: [],
    **{
        f"Program.{n}": member("Program")
        for n in (
            "candidate",
            "cut",
            "prefix_bytes",
            "copies_bytes",
            "shares",
            "input_rows",
            "weights",
            "tiles",
            "sections",
            "prepared",
        )
    },
    "Program.steps": member("Program", lambda rng: rng.randrange(2)),
    "Program.step": member("Program", *(lambda rng: rng.randrange(2),) * 2),
    "Program.kept": member("Program", lambda rng: rng.randrange(2)),
    "Program.slices": member("Program", lambda rng: rng.randrange(2)),
    "Program.prepared": member("Program"),
    "Program.start": member("Program", lambda rng: rng.randrange(-1, 9)),
    "Program.fallback": member(
        "Program", lambda rng: rng.randrange(20), lambda rng: rng.choice(REASONS)
    ),
}


def compile_call(rng: random.Random) -> tuple[list[Any], dict[str, Any]]:
    """Of compile_schedule, whose request is in keywords."""
    return [good_nodes(rng)], good_request(rng)
