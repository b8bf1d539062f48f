"""Environment variables that matter here, and what the rules say of their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from hy3d_rocm.diagnose.env import allocator, choices, rules
from hy3d_rocm.diagnose.env.machine import Machine
from hy3d_rocm.diagnose.env.rules import Finding, Verdict
from hy3d_rocm.diagnose.env.shown import MASK, SHOWN_CHARACTERS, printable

# What a token of a variable's value may be: a number, a version, an architecture, a device.
_HARMLESS = re.compile(
    r"[+-]?\d{1,16}(?:\.\d{0,6}){0,3}%?(?:[kmgt]i?b?)?|0x[0-9a-f]{1,16}|gfx[0-9a-f]{3,5}"
    r"|(?:cuda|hip|cpu|gpu)\d{0,3}|",
    re.IGNORECASE,
)
_SEPARATORS = re.compile(r"[\s,;:=+|>\[\]()-]+")
_SWITCHES = (
    "true false yes no on off enable enabled disable disabled none auto all default protect fp16 "
    "bf16 fp32 ref avx2 avx512 native stream per_image legacy"
)


@cache
def _known_words() -> frozenset[str]:
    """The words that the table of rules names as values, in lower case."""
    words = set(_SWITCHES.split()) | {w.lower() for w in (*allocator.KEYS, *allocator.BACKENDS)}
    words |= {*choices.VAE_MODES, *(part for name in choices.NAMES for part in name.split("-"))}
    for rule in rules.table():
        # Values are in capitals or single words between commas; the rest is English.
        parts = (part.strip() for part in re.split(r"[,:()]", f"{rule.values},{rule.proposes}"))
        words |= {part.lower() for part in parts if re.fullmatch(r"[A-Za-z]\w+", part)}
    return frozenset(words)


def relevant(
    environ: Mapping[str, str], machine: Machine | None = None
) -> dict[str, dict[str, str]]:
    """Name -> {"value", "verdict", "note"} of every variable that is set and in the table.

    machine: whose versions and GPUs decide which rules hold; None: one of which nothing is known.
    The note is "" where nothing is known against the value. Values that may tell more than a
    setting (paths, tokens) are not shown, see public_value().
    """
    judged: dict[str, list[Finding]] = {}
    for finding in rules.judge(environ, machine or Machine()):
        judged.setdefault(finding.name, []).append(finding)
    return {
        name: {
            "value": public_value(environ[name]),
            "verdict": str(judged[name][0].rule.verdict) if name in judged else "",
            "note": "; ".join(
                f"{finding.rule.verdict}: {public_text(finding)}"
                for finding in judged.get(name, [])
                if not (finding.rule.rest and finding.rule.verdict is Verdict.FINE)
            ),
        }
        for name in sorted(environ)
        if rules.is_known(name)
    }


def public_value(value: str) -> str:
    """A variable's value as others may see it: as it is where all of it is known to be harmless
    (numbers, switches, the words that the rules know), else only how long it is."""
    if not _private_tokens(value):
        return printable(value, SHOWN_CHARACTERS)
    is_path = re.match(r"\s*(?:[~/\\]|[A-Za-z]:[\\/]|file:)", value) is not None
    return f"({'a path' if is_path else f'{len(value)} characters'}, not shown)"


def public_subject(finding: Finding) -> str:
    """finding.subject as others may see it."""
    found = finding.found
    return finding.subject.replace(found, public_value(found)) if found else finding.subject


def public_text(finding: Finding) -> str:
    """finding.text, with the variable's value, and what was found in it, as others may see them."""
    found = finding.found
    for token in _private_tokens(finding.value):
        found = found.replace(token, MASK)
    return finding.message(public_value(finding.value), found)


def _private_tokens(value: str) -> list[str]:
    """What of a value is not known to be harmless, the longest first."""
    known = _known_words()
    tokens = {token for token in _SEPARATORS.split(value) if not _HARMLESS.fullmatch(token)}
    return sorted((t for t in tokens if t.lower() not in known), key=len, reverse=True)
