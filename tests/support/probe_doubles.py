"""Cases for real children with a fake tier, and what /proc says about them afterwards."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hy3d_rocm.conv.probe.child import TIER_MODULE
from hy3d_rocm.conv.probe.parent import Case, Outcome, probe

TIER = Path(__file__).with_name("probe_tier.py")
_ids = itertools.count()


@dataclass(frozen=True)
class FakeSpec:
    """What a case says to tests/support/probe_tier.py; stands for a ConvSpec in the parent."""

    data: dict[str, Any]
    device: str = "cpu"

    def to_json(self) -> dict[str, Any]:
        return self.data


def case(do: str, **options: Any) -> Case:
    return Case("fake", FakeSpec({"do": do, "id": str(next(_ids)), **options}))


def cases(*names: str) -> list[Case]:
    return [case(name) for name in names]


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Variables of this process, so of the children it starts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def fake_probe(
    what: Sequence[Case], limit_s: float = 5.0, start: str = "", **options: Any
) -> list[Outcome]:
    options.setdefault("slow_s", 0.2)
    with environment(**{TIER_MODULE: str(TIER), "PROBE_START": start}):
        return probe(what, limit_s=limit_s, **options)


@dataclass(frozen=True)
class Process:
    """A line of /proc: state is "Z" for a zombie, "D" for one that can't be interrupted."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    started: int


def processes() -> list[Process]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="latin-1") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        numbers = [int(field) for field in fields[1:4]]
        found.append(Process(int(name), *numbers, fields[0], int(fields[19])))
    return found


def marked(value: str) -> list[Process]:
    """Processes whose environment names `value` (a child's inherit it), zombies of theirs aside."""
    needle = value.encode()
    found = []
    for process in processes():
        try:
            with open(f"/proc/{process.pid}/environ", "rb") as file:
                if needle in file.read() and process.pid != os.getpid():
                    found.append(process)
        except OSError:
            continue
    return found


def zombies() -> list[Process]:
    """Dead children of this process that it has not reaped."""
    return [p for p in processes() if p.parent == os.getpid() and p.state == "Z"]


@contextmanager
def bounded(limit_s: float) -> Iterator[None]:
    """The parent is back within limit + 1 s."""
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    assert took <= limit_s + 1.0, f"back after {took:.2f} s with a limit of {limit_s:.2f} s"
