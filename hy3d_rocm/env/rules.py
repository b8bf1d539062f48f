"""What is known of environment variables on AMD machines: one table, and how it is applied.

A rule says which values of which variables it is about, for which versions and GPUs, what they
do, what to do about it, and where that was read (rule.py). The rules themselves are in table_*.py;
`python -m hy3d_rocm.env.variables_page` prints docs/variables.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from hy3d_rocm.env import table_miopen, table_pack, table_rocm, table_torch
from hy3d_rocm.env.machine import Machine
from hy3d_rocm.env.rule import Case, Finding, Rule, Verdict


def judge(environ: Mapping[str, str], machine: Machine) -> list[Finding]:
    """What the table says of these variables, by name; FINE findings included.

    A value that throws is only that: nothing else is said of it.
    """
    return [
        finding
        for name in sorted(environ)
        for finding in _judge_one(Case(name, environ[name], environ, machine))
    ]


def _judge_one(case: Case) -> list[Finding]:
    concerned = [rule for rule in rules_of(case.name) if rule.fits(case.machine)]
    special = [rule for rule in concerned if not rule.rest]
    findings = [_finding(rule, case, said) for rule in special if (said := rule.check(case))]
    throwing = [finding for finding in findings if finding.rule.verdict is Verdict.THROWS]
    if findings:
        return throwing[:1] or findings
    rests = (rule for rule in concerned if rule.rest)
    return [_finding(rule, case, said) for rule in rests if (said := rule.check(case))][:1]


def _finding(rule: Rule, case: Case, found: bool | str) -> Finding:
    kept = rule.repair(case) if rule.repair else None
    return Finding(rule, case.name, case.value, found if isinstance(found, str) else "", kept)


@cache
def table() -> tuple[Rule, ...]:
    """All rules, in the order of docs/variables.md."""
    return tuple(rule for _, rules in families() for rule in rules)


@cache
def _by_name() -> tuple[dict[str, list[int]], list[tuple[str, int]]]:
    """Where in the table a name, and a pattern's beginning, is spoken of."""
    names: dict[str, list[int]] = {}
    patterns: list[tuple[str, int]] = []
    for place, rule in enumerate(table()):
        for variable in rule.variables:
            if variable.endswith("*"):
                patterns.append((variable[:-1], place))
            else:
                names.setdefault(variable, []).append(place)
    return names, patterns


def rules_of(name: str) -> list[Rule]:
    """The rules about a variable, whatever its value, in the table's order."""
    names, patterns = _by_name()
    places = {*names.get(name, ()), *(place for start, place in patterns if name.startswith(start))}
    return [table()[place] for place in sorted(places)]


def families() -> tuple[tuple[str, tuple[Rule, ...]], ...]:
    """(heading, its rules), in the order of docs/variables.md."""
    return (
        ("MIOpen", table_miopen.RULES),
        ("PyTorch's memory allocator", table_torch.ALLOCATOR),
        ("PyTorch and attention", table_torch.RULES),
        ("ROCm's runtime and libraries", table_rocm.RULES),
        ("ComfyUI and this pack", table_pack.RULES),
    )


def is_known(name: str) -> bool:
    """Whether some rule is about this variable, whatever its value."""
    return bool(rules_of(name))
