"""Tuning's decisions and its course, with scripted measurements, probes and a clock of figures."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from router_world import ListedMemory, Row
from tier_calls import make_call

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.choice import Setting
from hy3d_rocm.conv.probe import Case, Outcome, Progress
from hy3d_rocm.tune import session as tuning
from hy3d_rocm.tune.measure import Measured
from hy3d_rocm.tune.session import (
    Session,
    Task,
    TuneReport,
    Wishes,
    gain_of,
    lines_of,
    tune_dict,
    tune_text,
)
from hy3d_rocm.tune.shapes import Shape

ROCM = Setting(on_gpu=True, is_rocm=True, current="native", vendor_on=False)
NVIDIA = Setting(on_gpu=True, current="vendor")
RISKY = frozenset({"vendor", "conv2d"})


def shapes(count: int) -> list[Shape]:
    weight = torch.zeros(4, 4, 3, 3, 3)
    specs = [make_call(torch.zeros(1, 4, 3, 4, 4 + i), weight).spec for i in range(count)]
    return [Shape(spec, 2) for spec in specs]


class World:
    """A lab, a probe, a knowledge and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.memory = ListedMemory()
        self.seconds: dict[str, float] = {}
        self.acts: dict[str, Callable[[], Measured]] = {}
        self.outcomes: dict[str, list[Any]] = {}
        self.probes: list[tuple[list[str], float, float]] = []
        self.asked: list[list[str]] = []
        self.costs_s = 1.0
        self.running = ""
        self.said: list[str] = []

    def measure(self, spec: ConvSpec, tiers: Sequence[str]) -> Mapping[str, Measured]:
        self.now += self.costs_s
        self.asked.append(list(tiers))
        found = {}
        for tier in tiers:
            self.running = tier
            act = self.acts.get(tier)
            found[tier] = act() if act else Measured("ok", self.seconds.get(tier, 1.0), 2.0, 9)
        self.running = ""
        return found

    def probe(
        self, cases: Sequence[Case], *, limit_s: float, case_limit_s: float,
        progress: Callable[[Progress], None],
    ) -> Sequence[Outcome]:  # fmt: skip
        self.probes.append(([c.tier for c in cases], limit_s, case_limit_s))
        for number, case in enumerate(cases):
            script = self.outcomes.get(case.tier)
            what = script.pop(0) if script else "ok"
            if isinstance(what, BaseException):
                raise what
            took = case_limit_s if what == "hang" else 0.5
            self.now += took
            seconds = 0.5 if what in ("ok", "slow-find") else None
            outcome = Outcome(case, what, 3.0, seconds, 7, f"{what} here", case_limit_s)
            progress(Progress(number, len(cases), case, took))
            progress(Progress(number + 1, len(cases), case, took, outcome))
        return []

    def run(self, count: int = 1, setting: Setting = ROCM, **options: Any) -> TuneReport:
        usual = {"tiers": ("vendor", "triton", "native"),
                 "risky": RISKY if setting.is_rocm else frozenset()}  # fmt: skip
        session = Session(
            shapes(count), Wishes(**{**usual, **options}), self.memory, setting, self.said.append,
            self, self.probe, lambda: self.now,
        )  # fmt: skip
        return session.run()


@pytest.mark.parametrize(
    ("tier", "record", "options", "task"),
    [
        ("triton", None, {}, Task.MEASURE),
        ("vendor", None, {}, Task.PROBE),
        ("conv2d", None, {}, Task.PROBE),
        ("vendor", None, {"risky": frozenset()}, Task.MEASURE),
        ("gemm", Row("ok", 1.0), {}, Task.KNOWN),
        ("gemm", Row("ok"), {}, Task.MEASURE),
        ("gemm", Row("ok", 1.0), {"again": True}, Task.MEASURE),
        ("gemm", Row("wrong"), {}, Task.LEAVE),
        ("gemm", Row("wrong"), {"again": True}, Task.MEASURE),
        ("gemm", Row("error"), {"retry_hung": True}, Task.LEAVE),
        ("vendor", Row("ok", 1.0), {}, Task.KNOWN),
        ("vendor", Row("ok"), {}, Task.PROBE),
        ("vendor", Row("slow-find", 1.0), {}, Task.KNOWN),
        ("vendor", Row("hang"), {}, Task.LEAVE),
        ("vendor", Row("hang"), {"retry_hung": True}, Task.RETRY),
        ("vendor", Row("hang"), {"again": True}, Task.RETRY),
        # A hang that a driver reset left behind is never tried in this process.
        ("native", Row("hang"), {"retry_hung": True}, Task.LEAVE),
        ("vendor", Row("hang"), {"retry_hung": True, "risky": frozenset()}, Task.LEAVE),
        ("triton", Row("ok", 1.0), {}, Task.MEASURE),  # in passing, with the guessed tile
        ("triton", Row("ok", 1.0, detail="tile 64x64x32w4s2g8"), {}, Task.KNOWN),
    ],
)
def test_what_is_done_follows_from_what_is_known(
    tier: str, record: Row | None, options: dict[str, Any], task: Task
) -> None:
    assert tuning.task(tier, record, Wishes((tier,), **{"risky": RISKY, **options})) is task


def test_only_amds_library_is_risky_unless_asked() -> None:
    tiers = ("vendor", "triton", "conv2d", "cpu")
    assert tuning.risky_tiers(tiers, is_rocm=True, asked=False) == RISKY
    assert tuning.risky_tiers(tiers, is_rocm=False, asked=False) == frozenset()
    assert tuning.risky_tiers(("vendor",), is_rocm=False, asked=True) == {"vendor"}


@pytest.mark.parametrize(
    ("architecture", "is_rocm", "keeps", "default"),
    [
        ("gfx1100", True, False, "native"),
        ("gfx1201", True, False, "native"),
        ("gfx942", True, False, "native"),
        ("gfx1030", True, False, "vendor"),
        ("gfx1100", True, True, "vendor"),
        ("sm_90", False, False, "vendor"),
    ],
)
def test_todays_default_is_what_comfyui_sets(
    architecture: str, is_rocm: bool, keeps: bool, default: str
) -> None:
    found = tuning.comfyui_default(architecture, is_rocm=is_rocm, keeps_miopen=keeps)
    assert found == default


def test_on_rocm_the_library_is_only_tried_in_a_child() -> None:
    world = World()
    report = world.run(2, tiers=("vendor", "triton", "conv2d", "native"))
    assert world.probes == [(["vendor", "conv2d"] * 2, 300.0, 15.0)]
    assert world.asked == [["triton", "native"]] * 2
    assert {row.measured_by for (_, t), row in world.memory.rows.items() if t in RISKY} == {"probe"}
    assert report.measured == 8
    assert [set(r) for r in report.records] == [{"vendor", "triton", "conv2d", "native"}] * 2
    assert any("[2/2]" in line and "to go" in line for line in world.said)


def test_on_nvidia_nothing_is_probed_unless_asked() -> None:
    world = World()
    world.run(1, NVIDIA)
    assert world.probes == []
    assert world.asked == [["vendor", "triton", "native"]]
    world = World()
    world.run(1, NVIDIA, risky=frozenset({"vendor"}))
    assert [tiers for tiers, _, _ in world.probes] == [["vendor"]]


def test_what_hangs_gets_more_patience_until_the_time_is_up() -> None:
    world = World()
    world.outcomes["vendor"] = ["hang"] * 9
    report = world.run(1, limit_s=800.0)
    assert [case_limit for _, _, case_limit in world.probes] == [15.0, 60.0, 240.0]
    assert world.memory.verdicts()["vendor"] == "hang"
    assert world.asked == [["triton", "native"]]
    assert "another 600 s were not left" in report.left_out[0]
    assert world.now <= 800.0


def test_patience_pays_and_the_verdict_is_replaced() -> None:
    world = World()
    world.outcomes["vendor"] = ["hang", "ok", "slow-find"]
    world.run(2, limit_s=800.0, tiers=("vendor",))
    assert [(len(t), case) for t, _, case in world.probes] == [(2, 15.0), (1, 60.0)]
    assert sorted(r.verdict for r in world.memory.rows.values()) == ["ok", "slow-find"]


def test_an_old_hang_is_retried_only_on_request_and_with_more_patience() -> None:
    world = World()
    spec = shapes(1)[0].spec
    world.memory.put(spec, "vendor", "hang", detail="nothing came back in 60.0 s")
    world.run(1, limit_s=800.0)
    assert world.probes == []
    world.run(1, limit_s=800.0, retry_hung=True)
    assert [case_limit for _, _, case_limit in world.probes] == [240.0]
    assert world.memory.rows[spec, "vendor"].verdict == "ok"


@pytest.mark.parametrize("verdict", ["oom", "not-run"])
def test_what_is_no_verdict_is_not_recorded(verdict: str) -> None:
    world = World()
    world.outcomes["vendor"] = [verdict]
    report = world.run(1)
    assert "vendor" not in world.memory.verdicts()
    assert f"{verdict} here" in tune_text(report, "native")


def test_nothing_is_begun_after_the_limit_and_the_rest_is_listed() -> None:
    world = World()
    report = world.run(5, limit_s=2.5, tiers=("triton", "native"))
    assert len(world.asked) == 3
    assert len(report.left_out) == 2
    text = tune_text(report, "native")
    assert "Not tried:" in text
    assert text.count("triton, native: the time was up before") == 2


@pytest.mark.parametrize("calls_before", range(4))
def test_ctrl_c_keeps_what_was_measured(calls_before: int) -> None:
    world = World()
    calls = itertools.count()

    def act() -> Measured:
        if next(calls) == calls_before:
            raise KeyboardInterrupt
        return Measured("ok", 1.0)

    world.acts["native"] = act
    report = world.run(4, tiers=("native",))
    assert report.interrupted
    assert len(world.memory.rows) == calls_before
    assert "Interrupted" in tune_text(report, "native")


def test_ctrl_c_during_a_probe_keeps_what_the_children_said() -> None:
    world = World()
    world.outcomes["vendor"] = ["ok", KeyboardInterrupt()]
    report = world.run(3)
    assert report.interrupted
    assert [row.verdict for row in world.memory.rows.values()] == ["ok"]


def test_a_lost_device_is_blamed_on_its_tier_and_ends_the_run() -> None:
    def act() -> Measured:
        raise RuntimeError("HIP error: an illegal memory access was encountered\nmore")

    world = World()
    world.acts["triton"] = act
    report = world.run(2, tiers=("triton", "native"))
    assert world.memory.verdicts() == {"triton": "error"}
    assert "start this command again" in tune_text(report, "native")


def test_a_second_run_measures_nothing_twice() -> None:
    world = World()
    world.acts["triton"] = lambda: Measured("ok", 1.0, detail="tile 64x64x32w4s2g8")
    world.acts["gemm"] = lambda: Measured("refused", detail="too large")
    tiers = ("vendor", "triton", "native", "gemm")
    world.run(2, tiers=tiers)
    world.probes.clear()
    world.asked.clear()
    report = world.run(2, tiers=tiers)
    assert world.probes == []
    assert world.asked == [["gemm"]] * 2  # a refusal is cheap, and none of the knowledge's
    assert report.measured == 0
    assert "gemm: too large" in tune_text(report, "native")


def test_the_table_marks_what_protect_chooses_and_the_gain_counts_every_run() -> None:
    world = World()
    world.seconds = {"triton": 0.2, "native": 1.0, "gemm": 0.4}
    world.outcomes["vendor"] = ["slow-find", "ok"]
    report = world.run(2, tiers=("vendor", "triton", "native", "gemm"))
    lines = lines_of(report)
    assert [(line.chosen, line.fastest) for line in lines] == [("triton", "triton")] * 2
    gain = gain_of(lines, "native")
    assert (gain.default, gain.chosen, gain.shapes_not_counted) == (4.0, 0.8, 0)
    text = tune_text(report, "native")
    assert "4.00 s by today's default (PyTorch native), 0.80 s as protect() chooses (5.00x)" in text
    assert text.count("<- *") == 2
    data = json.loads(json.dumps(tune_dict(report, "native")))
    assert data["shapes"][0]["tiers"]["vendor"]["verdict"] == "slow-find"


def test_a_slow_find_may_be_fastest_but_is_not_chosen() -> None:
    world = World()
    world.seconds = {"native": 1.0}
    world.outcomes["vendor"] = ["slow-find"]
    [line] = lines_of(world.run(1, tiers=("vendor", "native")))
    assert (line.chosen, line.fastest) == ("native", "vendor")


def test_a_wrong_tier_is_never_chosen() -> None:
    world = World()
    world.acts["triton"] = lambda: Measured("wrong", detail="64 of 64 outputs are wrong")
    report = world.run(1, tiers=("triton", "native"))
    [line] = lines_of(report)
    assert (line.chosen, line.fastest) == ("native", "native")
    assert "64 of 64 outputs are wrong" in tune_text(report, "native")


def test_on_nvidia_protect_keeps_the_library_and_the_text_says_so() -> None:
    world = World()
    world.seconds = {"vendor": 1.0, "triton": 0.5, "native": 2.0}
    report = world.run(1, NVIDIA)
    [line] = lines_of(report)
    assert (line.chosen, line.fastest) == ("vendor", "triton")
    text = tune_text(report, "vendor")
    assert "(1.00x)" in text
    assert "(2.00x)" in text
    assert "pin:triton" in text


def test_shapes_without_a_time_of_the_default_are_not_counted() -> None:
    world = World()
    world.acts["native"] = lambda: Measured("oom", detail="99.5 GB")
    report = world.run(1, tiers=("triton", "native"))
    assert gain_of(lines_of(report), "native").shapes_not_counted == 1
    text = tune_text(report, "native")
    assert "No gain can be told" in text
    assert "native: 99.5 GB" in text
