"""The router with the real verdict store and probe, on a GPU of which only the name is."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import verdict_store_doubles
import warm_start
from places import ROOT, SUPPORT
from router_doubles import raising
from stored_world import CPU, W, X, world_with

from hy3d_rocm.conv import faults, forget, policy, probe
from hy3d_rocm.conv.call import make_spec
from hy3d_rocm.conv.verdict_store import database as markers
from hy3d_rocm.conv.verdict_store.records import make_key, this_machine
from hy3d_rocm.conv.verdict_store.store import Store


@pytest.fixture(autouse=True)
def patient(nothing_remembered: None) -> None:
    verdict_store_doubles.be_patient()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "knowledge.db"


def spec_of_call() -> Any:
    spec = make_spec((X, W, None, 1, 0, 1, 1), 3)
    assert spec is not None
    return spec


def test_what_failed_is_known_to_the_next_process(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    first = Store.open(path)
    world = world_with(monkeypatch, first)
    world.tiers["triton"].act = raising(lambda: RuntimeError(faults.NO_ENGINE))
    with world.protect():
        F.conv3d(X, W)
    first.close(60)
    forget()
    second = Store.open(path)
    world = world_with(monkeypatch, second)
    with world.protect():
        F.conv3d(X, W)
    assert "triton" not in world.calls()
    rows = [row for row in second.rows() if row.record.tier == "triton"]
    assert [(row.record.verdict, row.record.measured_by) for row in rows] == [("error", "decode")]
    second.forget(rows)
    with world.protect():
        F.conv3d(X, W)
    assert world.calls()["triton"] == 1
    second.close(60)


def test_a_process_that_dies_in_its_first_vendor_call_leaves_a_hang_behind(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    program = """
import os, sys
import pytest, torch
import stored_world as here
from hy3d_rocm.conv.verdict_store.store import Store
patch, store = pytest.MonkeyPatch(), Store.open(sys.argv[1])
world = here.world_with(patch, store)
world.tiers["vendor"].act = lambda call: os._exit(0)  # the driver's reset
with torch.inference_mode(), world.protect("pin:vendor"):
    torch.nn.functional.conv3d(here.X, here.W)
"""
    places = os.pathsep.join(map(str, (ROOT, SUPPORT)))
    done = warm_start.run("-c", program, str(path), env={**os.environ, "PYTHONPATH": places})
    assert done.returncode == 0, done.stderr
    store = Store.open(path)
    world = world_with(monkeypatch, store)
    assert [(r.tier, r.verdict) for _, r in store.rows()] == [("vendor", "hang")]
    for name in ("auto", "vendor-first", "pin:vendor"):
        with world.protect(name):
            F.conv3d(X, W)
    assert "vendor" not in world.calls()
    store.close(60)


def test_a_first_vendor_call_stands_in_the_file_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    store = Store.open(path)
    world = world_with(monkeypatch, store)
    result = F.conv3d(X, W)
    seen = []

    def act(call: Any) -> torch.Tensor:
        seen.append(trying())
        return result.clone()

    def trying() -> list[Any]:
        with closing(sqlite3.connect(path)) as file:
            return markers.read_markers(file)

    world.tiers["vendor"].act = act
    with world.protect("pin:vendor"):
        F.conv3d(X, W)
        assert store.flush(60)  # the end of a first call is written beside
        F.conv3d(X, W)
    first, second = seen
    assert second == [], "only a first call is risky"
    (row,) = first
    assert (row.key, row.tier) == (make_key(spec_of_call(), this_machine(CPU)), "vendor")
    store.close(60)
    assert trying() == []


def test_a_probes_outcome_becomes_a_record(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    spec = spec_of_call()
    said: list[Any] = []

    def fake(cases: list[probe.Case], **options: Any) -> list[probe.Outcome]:
        said.append((cases, options))
        return [probe.Outcome(cases[0], verdict, 2.0, 0.5, 7, "text")]

    monkeypatch.setattr(probe, "probe", fake, raising=False)
    store = Store.open(path)
    world_with(monkeypatch, store)
    memory = policy.memory_for(CPU)
    for verdict in ("ok", "slow-find", "hang", "error"):
        assert policy.prove(spec, "vendor") == verdict
        record: Any = memory.records(spec)["vendor"]
        assert (record.verdict, record.seconds, record.peak_bytes) == (verdict, 0.5, 7)
        assert (record.first_seconds, record.measured_by) == (2.0, "probe")
    for verdict in ("oom", "not-run"):
        store.forget()
        assert policy.prove(spec, "vendor") == verdict
        assert memory.records(spec) == {}, "the child's own trouble is no verdict"
    assert said[0][1]["limit_s"] == policy.PROBE_SECONDS
    store.close(60)


def test_importing_the_router_opens_no_store() -> None:
    program = (
        "import sys; import hy3d_rocm.conv.router;"
        "sys.exit(any('verdict_store' in m or 'conv.probe' in m for m in sys.modules))"
    )
    assert warm_start.run("-c", program).returncode == 0
