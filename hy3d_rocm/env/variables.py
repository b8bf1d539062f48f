"""Environment variables that matter here, and what the rules say of their values."""

from __future__ import annotations

from collections.abc import Mapping

from hy3d_rocm.env import rules
from hy3d_rocm.env.machine import Machine
from hy3d_rocm.env.rule import Finding, Verdict, printable


def relevant(
    environ: Mapping[str, str], machine: Machine | None = None
) -> dict[str, dict[str, str]]:
    """Name -> {"value", "verdict", "note"} of every variable that is set and in the table.

    machine: whose versions and GPUs decide which rules hold; None: one of which nothing is known.
    The note is "" where nothing is known against the value.
    """
    judged: dict[str, list[Finding]] = {}
    for finding in rules.judge(environ, machine or Machine()):
        judged.setdefault(finding.name, []).append(finding)
    return {
        name: {
            "value": printable(environ[name]),
            "verdict": str(judged[name][0].rule.verdict) if name in judged else "",
            "note": "; ".join(map(_note, judged.get(name, []))),
        }
        for name in sorted(environ)
        if rules.is_known(name)
    }


def note(name: str, value: str, machine: Machine | None = None) -> str:
    """What is known to be wrong with, or to follow from, this value; "" if nothing is."""
    return relevant({name: value}, machine).get(name, {}).get("note", "")


def _note(finding: Finding) -> str:
    silent = finding.rule.rest and finding.rule.verdict is Verdict.FINE
    return "" if silent else f"{finding.rule.verdict}: {finding.text}"
