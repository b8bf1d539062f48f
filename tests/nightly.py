"""The long checks, each a command with its figure: all of them, or some.

    python tests/nightly.py [--quick] [--only NAME ...] [--logs DIR] [--list]

`--quick` takes small counts, for an hour on two cores; without it the counts are those of
docs/testing.md. A check's last line of output is its figure. A check that ends with 77 can't be run
on this machine and has said why. The closing line counts; the exit code is 1 if any check failed.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

from nightly_checks import CHECKS, Check

ROOT = Path(__file__).resolve().parents[1]
CANNOT_RUN_HERE = 77


def command_of(check: Check, quick: bool) -> list[str]:
    """The check's command, by the Python that runs this."""
    words = shlex.split(check.quick if quick else check.full)
    return [sys.executable if word == "python" else word for word in words]


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "(no output)"


def run(check: Check, quick: bool, logs: Path) -> str:
    """ "passed", "failed" or "skipped"; prints the figure."""
    started = time.monotonic()
    log = logs / f"{check.name}.log"
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(
            command_of(check, quick), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False
        )
    outcome = {0: "passed", CANNOT_RUN_HERE: "skipped"}.get(done.returncode, "failed")
    figure = last_line(log.read_text(encoding="utf-8", errors="replace"))
    print(f"{check.name:22} {outcome:8} {time.monotonic() - started:6.0f} s  {figure}", flush=True)
    if outcome == "failed":
        print(f"    the output is in {log}; again: {check.quick if quick else check.full}")
    return outcome


def chosen(names: list[str] | None) -> list[Check]:
    known = {check.name: check for check in CHECKS}
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        sys.exit(f"No such check: {', '.join(unknown)}. There are: {', '.join(known)}.")
    return [known[name] for name in names] if names else list(CHECKS)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small counts")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these, in this order")
    parser.add_argument(
        "--logs", type=Path, default=ROOT / "build" / "nightly", help="their output"
    )
    parser.add_argument("--list", action="store_true", help="names, and what each checks")
    arguments = parser.parse_args()
    checks = chosen(arguments.only)
    if arguments.list:
        for check in checks:
            print(f"{check.name:22} {check.claim}")
        return 0
    arguments.logs.mkdir(parents=True, exist_ok=True)
    outcomes = [run(check, arguments.quick, arguments.logs) for check in checks]
    count = outcomes.count
    print(f"{count('passed')} passed, {count('failed')} failed, {count('skipped')} skipped")
    return 1 if "failed" in outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
