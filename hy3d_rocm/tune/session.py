"""One run of tuning: what is known, what is to be done about each tier and shape, probes in child
processes, measurements here, records kept; and what it comes to: for each shape what protect() will
choose, and what a decode gains."""

from __future__ import annotations

import enum
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from hy3d_rocm import meter
from hy3d_rocm.conv import probe as probing
from hy3d_rocm.conv.choice import HEALTHY, TIERS, VENDOR_TIERS, Candidate, Policy, Setting, choose
from hy3d_rocm.conv.policy import Memory, keep
from hy3d_rocm.conv.verdict_store.records import Record, this_machine
from hy3d_rocm.conv.verdict_store.store import store
from hy3d_rocm.decoding.families import unproven_family
from hy3d_rocm.decoding.memory.budget import make_budget
from hy3d_rocm.decoding.planning.compiled import plan_job
from hy3d_rocm.decoding.planning.jobs import Job, best_backend
from hy3d_rocm.decoding.planning.planner import Plan
from hy3d_rocm.tune.measure import Lab, Measured
from hy3d_rocm.tune.shapes import Shape
from hy3d_rocm.units import aligned, size_text

# Probing may take this share of the time; measuring gets the rest, and what probing leaves.
PROBE_SHARE = 0.5
# The first patience with a shape of the vendor library; judge.next_limit() goes on from there.
FIRST_LIMIT_S = 15.0
DEFAULT_TIERS = ("vendor", "triton", "gemm", "conv2d", "native")
_HUNG_FOR = re.compile(r"in (\d+(?:\.\d+)?) s$")


class Task(enum.Enum):
    """What to do with a tier for a shape."""

    PROBE = "probe"  # in a child process: it may hang
    MEASURE = "measure"  # in this process
    RETRY = "retry"  # hung before: probe with more patience
    KNOWN = "known"  # measured before
    LEAVE = "leave"  # failed before


@dataclass(frozen=True)
class Wishes:
    """What the user asked for. tiers: names, in order. probe: cuDNN in a child process, too.
    limit_s: seconds in all; nothing is begun after that. risky: tiers that are only ever tried in a
    child process first (see risky_tiers)."""

    tiers: Sequence[str] = DEFAULT_TIERS
    again: bool = False
    retry_hung: bool = False
    probe: bool = False
    limit_s: float = 600.0
    risky: frozenset[str] = frozenset()


def risky_tiers(tiers: Sequence[str], *, is_rocm: bool, asked: bool) -> frozenset[str]:
    """Those that call MIOpen. cuDNN does not hang; with --probe it is tried like MIOpen."""
    return VENDOR_TIERS & set(tiers) if is_rocm or asked else frozenset()


def task(tier: str, record: Record | None, wishes: Wishes) -> Task:
    """What to do about one tier of one shape."""
    first = Task.PROBE if tier in wishes.risky else Task.MEASURE
    if record is None:
        return first
    if record.verdict == "hang":
        may = wishes.retry_hung or wishes.again
        return Task.RETRY if may and tier in wishes.risky else Task.LEAVE
    if wishes.again:
        return first
    if record.verdict in ("error", "wrong"):
        return Task.LEAVE
    if record.seconds is None:
        return first
    if tier == "triton" and not record.detail.startswith("tile "):
        return Task.MEASURE  # measured in passing, with the guessed tile
    return Task.KNOWN


def hung_for(detail: str) -> float:
    """Seconds that a hang was waited for, from the words of judge.late_verdict()."""
    found = _HUNG_FOR.search(detail)
    return float(found[1]) if found else FIRST_LIMIT_S


_WITH_MIOPEN = ("gfx1030", "gfx1031", "gfx1010", "gfx1011", "gfx1012", "gfx906", "gfx900", "gfx803")


def comfyui_default(architecture: str, *, is_rocm: bool, keeps_miopen: bool) -> str:
    """What computes a convolution in ComfyUI today: "vendor" or "native".

    It switches MIOpen off on everything newer than RDNA2 (comfy/model_management.py), unless
    COMFYUI_ENABLE_MIOPEN=1; elsewhere PyTorch's default stands.
    """
    if not is_rocm or keeps_miopen or architecture.startswith(_WITH_MIOPEN):
        return "vendor"
    return "native"


Probe = Callable[..., Sequence[probing.Outcome]]


@dataclass
class TuneReport:
    """records: what is known now, by shape. reasons: why a tier has no record, by (shape, tier).
    left_out: what there was no time for, as lines. fault: the sentence of what ended it early."""

    shapes: Sequence[Shape]
    setting: Setting
    records: list[Mapping[str, Record]] = field(default_factory=list)
    reasons: dict[tuple[Shape, str], str] = field(default_factory=dict)
    measured: int = 0
    left_out: list[str] = field(default_factory=list)
    interrupted: bool = False
    fault: str = ""
    seconds: float = 0.0


def tune_shapes(
    shapes: Sequence[Shape], device: Any, wishes: Wishes, say: Callable[[str], None], *,
    lab: Lab | None = None, probe: Probe = probing.probe, memory: Memory | None = None,
) -> tuple[TuneReport, str]:  # fmt: skip
    """The report, and the tier that computes these shapes today ("vendor" or "native").

    say: gets a line after each outcome; what it raises (a cancel) ends the tuning, and what was
    measured by then is kept. lab, probe, memory: others than the device's own.
    """
    is_rocm = torch.version.hip is not None
    default = comfyui_default(
        this_machine(device).architecture,
        is_rocm=is_rocm,
        keeps_miopen=os.environ.get("COMFYUI_ENABLE_MIOPEN") == "1",
    )
    setting = Setting(True, is_rocm, default, vendor_on=default == "vendor")
    risky = risky_tiers(wishes.tiers, is_rocm=is_rocm, asked=wishes.probe)
    known = Memory(device) if memory is None else memory
    session = Session(
        shapes, replace(wishes, risky=risky), known, setting, say, lab or Lab(), probe
    )
    try:
        return session.run(), default
    finally:
        if memory is None and not store().flush():
            say(f"{store().path}: {store().trouble or 'the disk is slow'}; not all of it is kept")


class Session:
    """One run. memory: the verdict store."""

    def __init__(
        self, shapes: Sequence[Shape], wishes: Wishes, memory: Memory, setting: Setting,
        say: Callable[[str], None], lab: Lab, probe: Probe,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.shapes, self.wishes, self.memory, self.say = shapes, wishes, memory, say
        self.lab, self.probe, self.clock = lab, probe, clock
        self.report, self.started = TuneReport(shapes, setting), clock()
        # Of every shape, and of every tier asked for, in order.
        known = (memory.records(shape.spec) for shape in shapes)
        self.todo = [{t: task(t, one.get(t), wishes) for t in wishes.tiers} for one in known]

    def run(self) -> TuneReport:
        """Probes, then measures, the shapes with the most work first; Ctrl-C and a lost device end
        it early. All that was learnt by then is recorded."""
        try:
            self.probe_all()
            self.measure_all()
        except KeyboardInterrupt:
            self.report.interrupted = True
        except RuntimeError as error:  # only a lost device gets here: see measure.attempt
            said = f"{error}".partition("\n")[0]
            self.report.fault = f"{said}; nothing works on the GPU now, so start this command again"
        self.report.records = [dict(self.memory.records(s.spec)) for s in self.shapes]
        self.report.seconds = self.clock() - self.started
        return self.report

    def left_s(self) -> float:
        return self.wishes.limit_s - (self.clock() - self.started)

    # In child processes.

    def probe_all(self) -> None:
        """Unproven shapes of the vendor library; what hangs again with more patience."""
        fresh, hung = self._cases(Task.PROBE), self._cases(Task.RETRY)
        until = self.left_s() * (1 - PROBE_SHARE)
        late: dict[float, list[tuple[Shape, str]]] = {}
        for shape, tier in hung:
            record = self.memory.records(shape.spec).get(tier)
            waited = hung_for(record.detail if record is not None else "")
            _postpone(late, shape, tier, waited)
        if fresh:
            self._probe(fresh, self.left_s() - until, FIRST_LIMIT_S, late)
        while late:
            limit, room = min(late), self.left_s() - until
            cases = late.pop(limit)
            fitting = max(1, int(room / limit)) if room > limit else 0
            for shape, tier in cases[fitting:]:
                self._leave(shape, [tier], f"it hung; another {limit:.0f} s were not left")
            if fitting:
                self._probe(cases[:fitting], room, limit, late)

    def _cases(self, wanted: Task) -> list[tuple[Shape, str]]:
        pairs = zip(self.shapes, self.todo, strict=True)
        return [(s, tier) for s, todo in pairs for tier, what in todo.items() if what is wanted]

    def _probe(
        self, cases: Sequence[tuple[Shape, str]], limit_s: float, case_limit_s: float,
        late: dict[float, list[tuple[Shape, str]]],
    ) -> None:  # fmt: skip
        """Records each outcome as it comes; those that hang are in `late`, by their next limit."""
        if limit_s <= 0:
            for shape, tier in cases:
                self._leave(shape, [tier], "no time was left for a child process")
            return
        done = iter(cases)

        def heard(progress: probing.Progress) -> None:
            outcome = progress.outcome
            if outcome is None:
                return
            shape, tier = next(done)
            self._keep(shape, tier, outcome)
            if outcome.verdict == "hang":
                _postpone(late, shape, tier, outcome.limit_s or FIRST_LIMIT_S)
            took = "" if outcome.seconds is None else f" {outcome.seconds * 1e3:.3g} ms"
            first = outcome.first_seconds
            took += "" if first is None else f" (first call {first:.2g} s)"
            why = f": {outcome.detail}" if outcome.detail else ""
            self.say(
                f"[{progress.done}/{progress.total}, in a child process] {shape.line()}:"
                f" {outcome.case.tier} {outcome.verdict}{took}{why}"
            )

        asked = [probing.Case(tier, shape.spec) for shape, tier in cases]
        self.probe(asked, limit_s=limit_s, case_limit_s=case_limit_s, progress=heard)

    def _keep(self, shape: Shape, tier: str, outcome: probing.Outcome) -> None:
        if not outcome.is_verdict:
            if outcome.verdict == "oom":
                self.report.reasons[shape, tier] = f"out of memory: {outcome.detail}"
            else:
                self._leave(shape, [tier], outcome.detail)
            return
        self.report.measured += 1
        keep(self.memory, shape.spec, outcome)

    def _leave(self, shape: Shape, tiers: Sequence[str], why: str) -> None:
        self.report.reasons.update({(shape, tier): why for tier in tiers})
        self.report.left_out.append(f"{shape.line()}, {', '.join(tiers)}: {why}")

    # In this process.

    def measure_all(self) -> None:
        """The tiers that can't hang, shape by shape."""
        total = sum(Task.MEASURE in todo.values() for todo in self.todo)
        done, begun = 0, self.clock()
        for shape, todo in zip(self.shapes, self.todo, strict=True):
            wanted = [tier for tier, what in todo.items() if what is Task.MEASURE]
            if not wanted:
                continue
            if self.left_s() <= 0:
                self._leave(shape, wanted, "the time was up before")
                continue
            found = self._measure(shape, wanted)
            for tier, one in found.items():
                self._book(shape, tier, one)
            done += 1
            parts = [
                f"{tier} {one.verdict if one.seconds is None else f'{one.seconds * 1e3:.3g} ms'}"
                for tier, one in found.items()
            ]
            spent = self.clock() - begun
            left = min(spent / done * (total - done), max(0.0, self.left_s()))
            self.say(
                f"[{done}/{total}] {shape.line()}: {', '.join(parts)}"
                f" ({spent:.0f} s so far, about {left:.0f} s to go)"
            )

    def _measure(self, shape: Shape, wanted: Sequence[str]) -> Mapping[str, Measured]:
        try:
            return self.lab.measure(shape.spec, wanted)
        except RuntimeError as error:
            if self.lab.running:
                text = f"the GPU was lost: {error}".partition("\n")[0]
                self._book(shape, self.lab.running, Measured("error", detail=text))
            raise

    def _book(self, shape: Shape, tier: str, one: Measured) -> None:
        if one.verdict in ("refused", "oom"):
            self.report.reasons[shape, tier] = one.detail
            return
        self.report.measured += 1
        self.memory.put(shape.spec, tier, measured_by="tune", **asdict(one))


def _postpone(
    late: dict[float, list[tuple[Shape, str]]], shape: Shape, tier: str, waited: float
) -> None:
    limit = probing.next_limit(waited)
    if limit is not None:
        late.setdefault(limit, []).append((shape, tier))


def plan_decode(
    vae: Any, latent: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Job, Plan | None]:
    """The decode of latents by a VAE on "meta", and how it would be done with all the memory that
    is free; None where nothing fits."""
    backend, family = best_backend(device, dtype), unproven_family(vae)
    if family.conditioned:
        family.timestep = 0.05  # whatever it is, the layers are the same
    job = Job(family, latent, device, dtype, dtype, backend)
    try:
        return job, plan_job(job, make_budget(None, meter.machine_of(device)))
    except ValueError:
        return job, None


_HEAD = ("tier", "ms", "peak", "verdict", "")
_TOLD = ("verdict", "seconds", "first_seconds", "peak_bytes", "detail")
_CURRENT = "current"


@dataclass(frozen=True)
class Line:
    """One shape: records by tier, reasons of those without, what protect() chooses and what is
    fastest (None where nothing healthy is known)."""

    shape: Shape
    records: Mapping[str, Record]
    reasons: Mapping[str, str]
    chosen: str | None
    fastest: str | None

    def seconds(self, tier: str | None) -> float | None:
        """Of one call, where a healthy one was measured."""
        record = None if tier is None else self.records.get(tier)
        return record.seconds if record is not None and record.verdict in HEALTHY else None


def lines_of(report: TuneReport) -> list[Line]:
    """One a shape, in the report's order."""
    found = []
    for shape, records in zip(report.shapes, report.records, strict=True):
        reasons = {tier: why for (s, tier), why in report.reasons.items() if s == shape}
        healthy = {t: r.seconds for t, r in records.items()
                   if r.seconds is not None and r.verdict in HEALTHY}  # fmt: skip
        fastest = min(healthy, key=lambda tier: healthy[tier], default=None)
        chosen = _chosen(report.setting, records, reasons)
        found.append(Line(shape, records, reasons, chosen, fastest))
    return found


def _chosen(
    setting: Setting, records: Mapping[str, Record], reasons: Mapping[str, str]
) -> str | None:
    """The tier that protect() would take, by the name that the verdict store has for it."""
    candidates = [
        Candidate(tier, record=records.get(_known_as(tier, setting)),
                  refused=reasons.get(tier) if tier not in records else None)
        for tier in TIERS
        # Where nothing was measured nobody can say that it is the cheapest.
        if tier in (_CURRENT, "cpu") or tier in records
    ]  # fmt: skip
    order = choose(Policy("auto"), candidates, setting).order
    return _known_as(order[0], setting) if order else None


def _known_as(tier: str, setting: Setting) -> str:
    return setting.current if tier == _CURRENT and setting.current != "other" else tier


@dataclass(frozen=True)
class Gain:
    """Seconds of all convolutions of one decode: by today's default, as chosen, at best. Only
    shapes that all three have count; `shapes_not_counted`: how many others there are."""

    default: float = 0.0
    chosen: float = 0.0
    fastest: float = 0.0
    shapes_not_counted: int = 0


def gain_of(lines: Sequence[Line], default: str) -> Gain:
    """`default`: the tier that computes these shapes today ("vendor" or "native")."""
    total, without = Gain(), 0
    for line in lines:
        times = [line.seconds(tier) for tier in (default, line.chosen, line.fastest)]
        if any(time is None for time in times):
            without += 1
            continue
        before, chosen, fastest = (line.shape.count * (time or 0.0) for time in times)
        total = Gain(total.default + before, total.chosen + chosen, total.fastest + fastest)
    return replace(total, shapes_not_counted=without)


def tune_text(report: TuneReport, default: str) -> str:
    """The table, what is missing, and the gain."""
    lines = lines_of(report)
    text = ["hy3d-rocm tune", ""]
    for line in lines:
        text += [line.shape.line(), *_table(line), ""]
    text.append("<- protect() chooses it   * fastest")
    if report.left_out:
        text += ["", "Not tried:", *(f"  {one}" for one in report.left_out)]
        text.append("Run the command again: what is known now is not measured twice.")
    if report.interrupted:
        text += ["", "Interrupted: what was measured by then is kept."]
    if report.fault:
        text += ["", f"Ended early: {report.fault}", "What was measured by then is kept."]
    text += ["", *_gain_lines(gain_of(lines, default), default, report.setting)]
    took = f"{report.measured} new records in {report.seconds:.0f} s"
    text.append(f"{took}; hy3d-rocm db list shows all.")
    return "\n".join(text) + "\n"


def _table(line: Line) -> list[str]:
    rows = []
    order = sorted(line.records, key=lambda t: (line.seconds(t) is None, line.seconds(t) or 0, t))
    for tier in order:
        record = line.records[tier]
        marks = ("<-" if tier == line.chosen else "") + (" *" if tier == line.fastest else "")
        seconds = "-" if record.seconds is None else f"{record.seconds * 1e3:.3g}"
        peak = "-" if record.peak_bytes is None else size_text(record.peak_bytes)
        detail = "" if record.verdict == "ok" and tier != "triton" else record.detail
        rows.append((tier, seconds, peak, record.verdict, f"{marks}  {detail}".strip()))
    told = [f"    {tier}: {why}" for tier, why in line.reasons.items() if tier not in line.records]
    if not rows:
        return told
    # The last column is text of any length.
    heads = aligned([_HEAD[:4], *(row[:4] for row in rows)])
    texts = ["", *(row[4] for row in rows)]
    table = [f"    {head}  {text}".rstrip() for head, text in zip(heads, texts, strict=True)]
    return [*table, *told]


def _gain_lines(gain: Gain, default: str, setting: Setting) -> list[str]:
    name = ("MIOpen" if setting.is_rocm else "cuDNN") if default == "vendor" else "PyTorch native"
    if not gain.default:
        return [f"No gain can be told: no shape has a time of today's default ({name})."]
    lines = [
        f"Convolutions of one decode: {gain.default:.2f} s by today's default ({name}),"
        f" {gain.chosen:.2f} s as protect() chooses ({_factor(gain.default, gain.chosen)}),"
        f" {gain.fastest:.2f} s with the fastest measured"
        f" ({_factor(gain.default, gain.fastest)})."
    ]
    if gain.shapes_not_counted:
        lines.append(
            f"{gain.shapes_not_counted} shapes lack one of these times and are not counted."
        )
    if setting.trusts_vendor:
        lines.append(
            "Here protect() leaves PyTorch as it is set up until that fails (cuDNN is healthy);"
            ' policy="pin:triton" takes another tier.'
        )
    return lines


def _factor(before: float, after: float) -> str:
    return f"{before / after:.2f}x" if after else "-"


def tune_dict(report: TuneReport, default: str) -> dict[str, Any]:
    """JSON-able."""
    lines = lines_of(report)
    return {
        "shapes": [
            {
                "spec": line.shape.spec.to_json(),
                "count": line.shape.count,
                "chosen": line.chosen,
                "fastest": line.fastest,
                "tiers": {
                    tier: {name: getattr(record, name) for name in _TOLD}
                    for tier, record in line.records.items()
                },
                "reasons": dict(line.reasons),
            }
            for line in lines
        ],
        "default": default,
        "seconds_of_a_decode": asdict(gain_of(lines, default)),
        "left_out": report.left_out,
        "interrupted": report.interrupted,
        "fault": report.fault,
        "seconds": report.seconds,
    }
