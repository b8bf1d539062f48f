"""What happens to the environment before torch is imported, when ComfyUI starts.

Values that MIOpen, PyTorch or the runtime would throw on are left out of the process, the few
that help are set where nothing is set, and the rest is only named. A value that works is never
changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

from hy3d_rocm.diagnose.env.choices import is_off
from hy3d_rocm.diagnose.env.machine import Machine, detect
from hy3d_rocm.diagnose.env.shown import SHOWN_CHARACTERS, guard_log, printable

if TYPE_CHECKING:
    from hy3d_rocm.diagnose.env.rules import Finding

LOGGER = logging.getLogger("hy3d_rocm")
_OWN = "HY3D_"  # of these the doctor speaks; whoever reads them says what is wrong with them
# Verdicts of what is named and left alone, as in "NAME=value is not advised: ...".
_NAMED = {
    "does nothing": "does nothing", "harmful": "is not advised", "improvable": "may be improved",
}  # fmt: skip
_Line = tuple[int, str]  # level, text


def run(environ: MutableMapping[str, str], machine: Machine | None = None) -> list[str]:
    """Puts the environment in order and returns the lines that were logged. Never raises."""
    guard_log()
    lines: list[_Line] = []
    try:
        for line in _put_in_order(environ, machine):
            lines.append(line)  # one by one: what was done before a failure is told
    except Exception as error:  # noqa: BLE001  (a wrong guess of ours must not stop ComfyUI)
        failed = f"the check of the variables failed: {type(error).__name__}: {error}"
        lines.append((logging.WARNING, failed))
    for level, text in lines:
        LOGGER.log(level, "hy3d_rocm: %s", text)
    return [text for _, text in lines]


def _put_in_order(environ: MutableMapping[str, str], machine: Machine | None) -> Iterator[_Line]:
    """One line for each thing done or to be said, when it is done."""
    for switch, what in (("HY3D_ROCM", "this pack"), ("HY3D_ROCM_ENV", "the variables' check")):
        if is_off(environ, switch):
            yield logging.INFO, f"{switch}=off: {what} is switched off"
            return
    machine = detect(environ) if machine is None else machine
    if not machine.has_rocm_libraries:
        return
    # Here, not above: on all other machines the rules needn't even be read.
    from hy3d_rocm.diagnose.env import rules

    for finding in rules.judge(environ, machine):
        if finding.rule.verdict == "throws" and not finding.name.startswith(_OWN):
            yield _leave_out(environ, finding)
    if not machine.runs_on_amd:
        return
    for rule in rules.proposing():
        name = rule.variables[0]
        if rule.fits(machine) and name not in environ:
            environ[name] = rule.proposes
            said = f"{name}={rule.proposes} is set: {rule.effect}; "
            yield logging.INFO, said + "HY3D_ROCM_ENV=off leaves all variables alone"
    # Judged again: of what was left out nothing more is to be said.
    yield from _named([f for f in rules.judge(environ, machine) if not f.name.startswith(_OWN)])


def _leave_out(environ: MutableMapping[str, str], finding: Finding) -> _Line:
    shown = f"{finding.name}={printable(finding.value, SHOWN_CHARACTERS)}"
    if finding.kept is None:
        del environ[finding.name]
        return logging.WARNING, f"{shown} is left out: {finding.text}"
    environ[finding.name] = finding.kept
    kept = printable(finding.kept, SHOWN_CHARACTERS)
    return logging.WARNING, f"{shown} is cut down to {kept}: {finding.text}"


def _named(findings: list[Finding]) -> Iterator[_Line]:
    """One line for what one rule says, however many variables it says it of."""
    told: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.rule.verdict in _NAMED:
            told.setdefault(finding.text, []).append(finding)
    for text, group in told.items():
        names = ", ".join(map(_subject, group))
        yield logging.INFO, f"{names} {_NAMED[group[0].rule.verdict]}: {text}"


def _subject(finding: Finding) -> str:
    if finding.rule.part:
        return printable(finding.subject, SHOWN_CHARACTERS)
    return f"{finding.name}={printable(finding.value, SHOWN_CHARACTERS)}"
