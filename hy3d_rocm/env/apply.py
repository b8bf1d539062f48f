"""Changes an environment as the rules say, and says so: see startup.py."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping

from hy3d_rocm.env import rules
from hy3d_rocm.env.machine import Machine
from hy3d_rocm.env.rule import SHOWN_CHARACTERS, Finding, Verdict
from hy3d_rocm.env.shown import printable

OWN = "HY3D_"  # of these the doctor speaks; whoever reads them says what is wrong with them
Line = tuple[int, str]  # level, text


def apply(lines: list[Line], environ: MutableMapping[str, str], machine: Machine) -> None:
    """Appends one line for each thing done or to be said, when it is done."""
    for finding in rules.judge(environ, machine):
        if finding.rule.leave_out:
            lines.append(_leave_out(environ, finding))
    if machine.runs_on_amd:
        # Judged again: of what was left out nothing more is to be said.
        _name(lines, [f for f in rules.judge(environ, machine) if not f.name.startswith(OWN)])
        _set(lines, environ, machine)


def _leave_out(environ: MutableMapping[str, str], finding: Finding) -> Line:
    shown = f"{finding.name}={printable(finding.value, SHOWN_CHARACTERS)}"
    if finding.kept is None:
        del environ[finding.name]
        return logging.WARNING, f"{shown} is left out: {finding.text}"
    environ[finding.name] = finding.kept
    kept = printable(finding.kept, SHOWN_CHARACTERS)
    return logging.WARNING, f"{shown} is cut down to {kept}: {finding.text}"


def _name(lines: list[Line], findings: list[Finding]) -> None:
    """One line for what one rule says, however many variables it says it of."""
    told: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.rule.verdict in (Verdict.NOTHING, Verdict.HARMFUL):
            told.setdefault(finding.text, []).append(finding)
    for text, group in told.items():
        names = ", ".join(f"{f.name}={printable(f.value, SHOWN_CHARACTERS)}" for f in group)
        lines.append((logging.INFO, f"{names} {group[0].rule.verdict.phrase}: {text}"))


def _set(lines: list[Line], environ: MutableMapping[str, str], machine: Machine) -> None:
    for rule in rules.table():
        name = rule.variables[0]
        if rule.proposes and rule.fits(machine) and name not in environ:
            environ[name] = rule.proposes
            lines.append((
                logging.INFO,
                f"{name}={rule.proposes} is set: {rule.effect}; "
                "HY3D_ROCM_ENV=off leaves all variables alone",
            ))  # fmt: skip
