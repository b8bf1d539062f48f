"""Every kernel between guard pages, all lengths and offsets, on all cores.

    python tests/long/check_guards.py [--jobs 16] [--parts 64] [--only PART]

Runs `check_hy3d guards` (built by `make ctest`) with HY3D_GUARDS=all:PART/PARTS, each part every
so-many-th length from 0 to 257. A part is run again by the same variable.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_part(program: str, part: int, parts: int) -> tuple[bool, int, int, str]:
    """(good, kernels, calls, output) of one part."""
    extent = f"all:{part}/{parts}"
    run = subprocess.run(
        [program, "guards"],
        capture_output=True,
        text=True,
        env={**os.environ, "HY3D_GUARDS": extent},
        check=False,
    )
    kernels = re.search(r"^(\d+) kernels between guard pages$", run.stdout, flags=re.M)
    calls = re.search(r"^(\d+) calls of kernels between", run.stdout, flags=re.M)
    good = run.returncode == 0 and kernels is not None and calls is not None
    text = f"HY3D_GUARDS={extent} {program} guards\n{run.stdout}{run.stderr}"
    return good, int(kernels[1]) if kernels else 0, int(calls[1]) if calls else 0, text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--parts", type=int, default=64, help="1 to 258")
    parser.add_argument("--only", type=int, action="append", help="this part alone")
    parser.add_argument("--program", default=str(ROOT / "build" / "c" / "check_hy3d"))
    options = parser.parse_args()
    start = time.monotonic()
    wanted = options.only or range(options.parts)
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda p: run_part(options.program, p, options.parts), wanted))
    for good, _, _, text in results:
        if not good:
            print(text)
    kernels = {count for _, count, _, _ in results}
    failed = sum(not good for good, _, _, _ in results) + (len(kernels) != 1)
    calls = sum(count for _, _, count, _ in results)
    print(
        f"{max(kernels)} kernels between guard pages, {calls} calls, {failed} failed parts of "
        f"{len(results)}, {time.monotonic() - start:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
