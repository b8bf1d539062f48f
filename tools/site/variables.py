"""docs/variables.md, made from the rules: python tools/site/variables.py"""

from __future__ import annotations

import sys

from hy3d_rocm.diagnose.env import rules
from hy3d_rocm.diagnose.env.rules import Rule

SHOWN_NAMES = 6
_HEAD = """\
# Environment variables on AMD cards

Made by `python tools/site/variables.py`; a test holds this page against the rules, so
change hy3d_rocm/diagnose/env/rules/*.toml and make it anew.

At ComfyUI's start, before torch is imported, `prestartup_script.py` looks at the variables below.

| verdict | what the start does | log |
|---|---|---|
| throws | the variable, or the refused part of it, is left out | what it would have thrown |
| does nothing | nothing | one line |
| harmful | nothing: your value stays | one line with the remedy |
| improvable | nothing: your value stays | one line with what to try |
| helpful | sets it where it is not set; your value stays | one line when it acts |
| fine | nothing | none |

- It acts where torch is a ROCm build and there is an AMD GPU (or none can be asked for: Windows,
  WSL), where an AMD GPU is there but no torch is found, and under ZLUDA. With a ROCm build and no
  AMD GPU only values that throw are left out. Everywhere else it does and says nothing.
- `HY3D_ROCM_ENV=off` leaves all variables alone; `HY3D_ROCM=off` switches the whole pack off.
- A rule with a lower version bound is applied only where the version is known.
- "Not confirmed" marks what was read in one place and could not be checked.
- `hy3d-rocm doctor` says the same of the variables that are set now, at any time.
- Nothing here was tried on an AMD card. What is said of PyTorch's parser since 2.9 is tested
  against torch itself (tests/unit/diagnose/env/test_allocator.py).
"""


def page() -> str:
    parts = [_HEAD]
    for heading, family in rules.families():
        parts.append(f"\n## {heading}\n\n" + _table(family))
    return "".join(parts)


def _table(family: tuple[Rule, ...]) -> str:
    lines = ["| variable | value | verdict | what it does; what to do | where it holds | source |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    lines += [f"| {' | '.join(_cells(rule))} |" for rule in family]
    return "\n".join(lines) + "\n"


def _cells(rule: Rule) -> list[str]:
    effect = rule.effect.format(found="...", value="...")
    unsure = "" if rule.confirmed else " Not confirmed."
    text = "; ".join(filter(None, (effect, rule.remedy))) + "." + unsure
    cells = [_names(rule), rule.values, f"**{rule.verdict}**", text, _where(rule)]
    return [*(cell.replace("|", "\\|") for cell in cells), _source(rule.source)]


def _names(rule: Rule) -> str:
    shown = [f"`{name}`" for name in rule.variables[:SHOWN_NAMES]]
    more = len(rule.variables) - SHOWN_NAMES
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _where(rule: Rule) -> str:
    limits = (("ROCm", rule.rocm), ("torch", rule.torch))
    spans = [f"{what} {span}" for what, span in limits if str(span)]
    return "; ".join(spans + [f"{name}*" for name in rule.architectures]) or "all"


def _source(source: str) -> str:
    if not source.startswith("https://"):
        return source
    parts = source.removeprefix("https://").split("/")
    label = "/".join([*parts[1:3], parts[-1]]) if parts[0] == "github.com" else parts[0]
    return f"[{label}]({source})"


if __name__ == "__main__":
    sys.stdout.write(page())
