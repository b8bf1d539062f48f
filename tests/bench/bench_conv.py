"""`python -m tools.dev.bench conv`: exact sums of the wide 3x3x3 layers, with memory.

    python tests/bench/bench_conv.py [--no-memory] [OPTIONS OF bench conv ...]

The same command with other defaults; an option that is given wins (--accuracy fast, --kernel any
--min-channels 1 for every layer).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

DEFAULTS = ["--threads", "1", "--accuracy", "exact", "--kernel", "3x3x3", "--min-channels", "64"]


def main() -> int:
    from tools.dev.bench.__main__ import main as command

    given = sys.argv[1:]
    memory = [] if "--no-memory" in given else ["--memory"]
    rest = [option for option in given if option != "--no-memory"]
    return command(["conv", *DEFAULTS, *memory, *rest])


if __name__ == "__main__":
    sys.exit(main())
