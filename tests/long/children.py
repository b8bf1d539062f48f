"""Long checks in several processes: a script calls itself with --child for every n-th case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any


def run_children(
    script: str, arguments: Iterable[str], first: int, count: int, workers: int, *, interpret: bool
) -> list[dict[str, Any]]:
    """The last line, JSON, that each of `workers` processes of the script prints.

    The k-th gets `arguments`, --child, --workers, --first first + k and --count count - k.
    interpret: with Triton's interpreter on. RuntimeError, with the end of what it said, if one
    fails.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment |= {"TRITON_INTERPRET": "1"} if interpret else {}
    command = [sys.executable, script, "--child", *arguments, "--workers", str(workers)]
    children = [
        subprocess.Popen(
            [*command, "--first", str(first + k), "--count", str(count - k)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for k in range(workers)
    ]  # fmt: skip
    parts = []
    for child in children:
        out, err = child.communicate()
        if child.returncode:
            raise RuntimeError(f"the child ended with {child.returncode}\n{err[-3000:]}")
        parts.append(json.loads(out.splitlines()[-1]))
    return parts
