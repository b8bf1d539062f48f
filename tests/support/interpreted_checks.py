"""Long checks with Triton's interpreter on, each in a process that is forked from one which has
imported torch (warm_start.py) and Triton: to import them takes as long as a few cases. This file is
that process, too: `python interpreted_checks.py '[["MODULE", {ARGUMENT: VALUE}], ...]'`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import warm_start
from places import LONG, ROOT

Asked = tuple[str, dict[str, Any]]


def results(*asked: Asked) -> list[dict[str, Any]]:
    """What run_child(**arguments) of each module of tests/long gives. RuntimeError if one fails."""
    child = warm_start.run(
        __file__, json.dumps(asked), timeout=280,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = [line for line in child.stdout.splitlines() if line.startswith("{")]
    if child.returncode or len(lines) != len(asked):
        raise RuntimeError(f"a child ended with {child.returncode}\n{child.stderr[-3000:]}")
    return [json.loads(line) for line in lines]


def main() -> int:
    sys.path[:0] = [str(ROOT), str(LONG)]
    importlib.import_module("torch")
    # Torch may have imported it, without the variable: Triton's own functions are interpreted or
    # not from then on. What is compiled is imported once.
    for name in [n for n in sys.modules if f"{n}.".startswith("triton.")]:
        if not name.startswith("triton._C"):
            del sys.modules[name]
    importlib.import_module("triton")
    asked: list[Asked] = json.loads(sys.argv[1])
    modules = [importlib.import_module(name) for name, _ in asked]
    code = 0
    for module, (_, arguments) in zip(modules, asked, strict=True):
        if os.fork() == 0:
            print(json.dumps(module.run_child(**arguments)), flush=True)
            os._exit(0)
        code |= os.waitstatus_to_exitcode(os.wait()[1])
    return code


if __name__ == "__main__":
    sys.exit(main())
