"""`examine()`: facts, and what they mean, worst first. Never raises for a broken machine."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hy3d_rocm.conv.errors import is_cancel
from hy3d_rocm.diagnose.doctor import basic, checks, kernel, selftest, windows
from hy3d_rocm.diagnose.doctor.finding import Facts, Finding, Rule, Severity, Variant
from hy3d_rocm.diagnose.doctor.report import Examination
from hy3d_rocm.diagnose.env import gpu, rules
from hy3d_rocm.diagnose.env.machine import Machine, detect
from hy3d_rocm.diagnose.env.shown import anonymous
from hy3d_rocm.diagnose.miopen import places
from hy3d_rocm.diagnose.tables import read
from hy3d_rocm.memory import ROOT

logger = logging.getLogger("hy3d_rocm")

FOLDER = Path(__file__).with_name("rules")
FILES = ("torch", "windows", "versions", "pack", "memory", "miopen")
DEFAULT_SECONDS = 60.0
_TORCH_SHARE = 0.5  # of the time: a cold import of a ROCm build takes ten seconds and more
_OF_MACHINE = (
    "architectures", "torch", "torch_is_rocm", "rocm", "zluda", "system", "runs_on_amd",
)  # fmt: skip
# What a program that this one runs in knows of itself; set by comfy/routes.py.
host_facts: dict[str, Callable[[], Mapping[str, Any]]] = {}


def examine(
    environ: Mapping[str, str] = os.environ,
    self_test: bool = True,
    seconds: float = DEFAULT_SECONDS,
    *,
    tell: Callable[[str], None] | None = None,
    cancel: Callable[[], None] | None = None,
) -> Examination:
    """Looks at this machine, at most about `seconds` (5 and more) long, and at what that means.

    self_test: each convolution back-end is tried in a child process. tell(text) says what
    is being done, cancel() is called often while children run; what it raises goes through.
    """
    environ = dict(environ)
    until = time.monotonic() + seconds
    share = seconds * _TORCH_SHARE if self_test else seconds
    facts = collect(environ, torch_seconds=max(share, 5.0), tell=tell)
    if self_test:
        if tell is not None:
            tell("trying each convolution back-end")
        share = max(until - time.monotonic(), 3.0)
        facts["self_test"] = _guarded(selftest.run, facts["torch"], share, tell=tell, cancel=cancel)
    shown = anonymous(facts, environ, keep_paths=True)
    return Examination(shown, tuple(judge(shown)))


def collect(
    environ: Mapping[str, str],
    *,
    torch_seconds: float = DEFAULT_SECONDS,
    root: Path = ROOT,
    machine: Machine | None = None,
    torch: Mapping[str, Any] | None = None,
    system: windows.System | None = None,
    folders: Sequence[str] | None = None,
    tell: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """All facts but the self-test's. A section that fails is {"error": ...}.

    root, machine, torch, system (how Windows is asked), folders (of packages): in place of this
    machine's (tests).
    """
    topology = root / gpu.TOPOLOGY.relative_to("/")
    if machine is None:
        try:
            machine = detect(environ, topology=topology)
        except Exception as error:  # noqa: BLE001  (nothing is known of it then)
            logger.debug("hy3d_rocm: the machine can't be told: %s", error)
            machine = Machine()
    if torch is None:
        if tell is not None:
            tell("asking PyTorch")
        torch = _guarded(basic.ask_torch, torch_seconds)
    facts = _guarded(basic.collect, environ, machine=machine, torch=torch, topology=topology)
    facts.setdefault("torch", dict(torch))
    of_machine = {name: getattr(machine, name) for name in _OF_MACHINE}
    facts["machine"] = {n: list(v) if isinstance(v, tuple) else v for n, v in of_machine.items()}
    facts["judged"] = _judged(environ, machine)
    facts["kernel"] = _guarded(kernel.collect, root)
    if of_windows := _guarded(windows.collect, environ, root, system, folders):
        facts["windows"] = of_windows
    facts["memory"] = _guarded(kernel.memory, root)
    facts["miopen"] = _guarded(places.collect, environ)
    facts.update(_guarded(kernel.storage, environ))
    facts.update((name, _guarded(function)) for name, function in host_facts.items())
    facts["when"] = time.strftime("%Y-%m-%d %H:%M:%S")
    return facts


def rules_of_file(path: Path) -> tuple[Rule, ...]:
    """Raises TableError."""
    makers: dict[str, Callable[[Any], Any]] = {
        "check": lambda name: getattr(checks, name),
        "variants": lambda written: {name: Variant(**case) for name, case in written.items()},
    }
    return read(path, Rule, makers=makers)[1]


@cache
def table() -> tuple[Rule, ...]:
    """All rules."""
    return tuple(rule for name in FILES for rule in rules_of_file(FOLDER / f"{name}.toml"))


def judge(facts: Mapping[str, Any]) -> list[Finding]:
    """What all rules say of these facts, worst first; in the order of the table within that."""
    seen = Facts(facts)
    findings: list[Finding] = []
    for rule in table():
        try:
            findings += rule.findings(seen)
        except Exception as error:  # facts of a kind no rule thought of
            logger.debug("hy3d_rocm: the doctor's rule %s failed", rule.id, exc_info=True)
            findings.append(Finding(
                "rule-failed", Severity.ADVICE, "One of the doctor's own rules failed",
                f"{rule.id}: {type(error).__name__}: {error}", "report it with this report",
            ))  # fmt: skip
    return sorted(findings, key=lambda finding: list(Severity).index(finding.severity))


def _judged(environ: Mapping[str, str], machine: Machine) -> list[dict[str, str]]:
    """What the table of variables says, where it is about this machine."""
    return [
        {
            "name": finding.name,
            "subject": finding.subject,
            "value": finding.value,
            "verdict": finding.rule.verdict,
            "rule": finding.rule.name,
            "effect": finding.text.removesuffix(f"; {finding.rule.remedy}"),
            "remedy": finding.rule.remedy,
            "source": finding.rule.source,
        }
        for finding in (found.public() for found in rules.judge(environ, machine))
        if machine.has_rocm_libraries or finding.name.startswith("HY3D_")
    ]


def _guarded(
    function: Callable[..., Mapping[str, Any]], *given: Any, **named: Any
) -> dict[str, Any]:
    try:
        return dict(function(*given, **named))
    except Exception as error:  # that it failed is the fact
        if is_cancel(error):
            raise
        return {"error": f"{type(error).__name__}: {error}"}
