"""How good `hy3d-rocm diagnose` is on a labelled set of excerpts.

    python tests/long/check_diagnose.py EXCERPTS.json [--only ID] [--text]

The file is a list, or an object with the list "excerpts". An excerpt has its text ("log", or a list
"lines"), an "id" or "link", and its label: "kind" (fault, control, out-of-scope) and "cause", both
for people. With "expect" (ids of rules of which any one is right as the first) and "never" (ids
that mislead) it is judged here; without "expect" what was said is printed beside the label, for a
person to judge. "expected" (all ids in order, as tests/data/log_excerpts.json has it) is compared
as a whole. Exit code 1 where an excerpt that was judged is not right.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
from pathlib import Path
from typing import Any

from hy3d_rocm.diagnose.log.examine import Examination, examine
from hy3d_rocm.diagnose.log.read import lines_of_text
from hy3d_rocm.diagnose.log.report import exit_code, text_of

RIGHT = ("right", "right, not first", "unknown", "control")


def excerpts(path: Path) -> list[dict[str, Any]]:
    read = json.loads(path.read_text(encoding="utf-8"))
    return list(read["excerpts"] if isinstance(read, dict) else read)


def examined(found: dict[str, Any]) -> Examination:
    text = found["log"] if "log" in found else "\n".join(found["lines"])
    return examine(lines_of_text(text))


def judged(found: dict[str, Any], told: Examination) -> str:
    """One word of the verdict, or "" where a person has to judge."""
    causes = [cause.rule for cause in told.causes]
    everything = [diagnosis.rule for diagnosis in told.diagnoses]
    if set(everything) & set(found.get("never", ())):
        return "misleading"
    if "expected" in found:
        return "right" if everything == found["expected"] else "wrong"
    if found.get("kind") == "control" and "expect" not in found:
        return "wrong" if causes else "control"
    if not causes and (found.get("kind") == "out-of-scope" or "expect" in found):
        return "unknown" if exit_code(told) == 3 else "missed at exit 0"
    if "expect" not in found:
        return ""
    right = set(found["expect"])
    if causes and causes[0] in right:
        return "right"
    below = {row.rule for cause in told.causes for row in cause.follow_ups}
    return "right, not first" if right & (set(causes) | below) else "wrong"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("excerpts", type=Path)
    parser.add_argument("--only", help="the id or link of one excerpt")
    parser.add_argument("--text", action="store_true", help="print the whole report of each")
    arguments = parser.parse_args()
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for found in excerpts(arguments.excerpts):
        name = found.get("id") or found["link"]
        if arguments.only not in (None, name, found.get("link")):
            continue
        told = examined(found)
        verdict = judged(found, told)
        kind = found.get("kind", "excerpt")
        counts[kind][verdict or f"for a person, exit {exit_code(told)}"] += 1
        causes = [f"{cause.rule}: {cause.symptom}" for cause in told.causes] or ["nothing"]
        print(f"{name}  {kind}  exit {exit_code(told)}  [{verdict or '?'}]  {'; '.join(causes)}")
        if not verdict or verdict not in RIGHT:
            for key in ("cause", "acceptable_other", "remedy", "misleading_if", "expect", "note"):
                if found.get(key):
                    print(f"      {key}: {found[key]}")
            for cause in told.causes[:1]:
                print(f"      said, do: {cause.do}")
        if arguments.text:
            print(text_of(told, name))
    for kind, row in counts.items():
        total = sum(row.values())
        shares = ", ".join(f"{what} {n} ({100 * n / total:.0f} %)" for what, n in row.most_common())
        print(f"{kind}: {total}: {shares}")
    bad = sum(
        n
        for row in counts.values()
        for what, n in row.items()
        if what not in RIGHT and not what.startswith("for a person")
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
