"""How long prestartup_script.py takes: fresh processes, as in ComfyUI and on its own.

    python tests/bench/measure_startup.py [--runs 20]

"in ComfyUI" has those standard modules imported already that ComfyUI's main.py imports before it
runs the scripts; the rules are read, the machine is looked at, and nothing of that is cached.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMED = """
import sys, time
{before}
start, cpu = time.perf_counter(), time.process_time()
import importlib.util
spec = importlib.util.spec_from_file_location("prestartup_script", {script!r})
spec.loader.exec_module(importlib.util.module_from_spec(spec))
took, cpu = time.perf_counter() - start, time.process_time() - cpu
assert not {{"torch", "numpy"}} & set(sys.modules)
assert "hy3d_rocm.diagnose.env.checks" in sys.modules or {light}
print(took * 1000, cpu * 1000)
"""
IN_COMFYUI = "import argparse, asyncio, dataclasses, enum, logging, pathlib, re, typing, shutil"
# A case on an AMD machine, where the rules that the start needs are read.
AMD = """
from hy3d_rocm.diagnose.env import machine, startup
detect = machine.detect
def on_amd(environ):
    detect(environ)
    return machine.Machine(("gfx1151",), True, (2, 9), True, (7, 1))
startup.detect = on_amd
"""


def milliseconds(before: str, light: bool) -> tuple[float, float]:
    """Wall clock and CPU time of one start."""
    code = TIMED.format(before=before, script=str(ROOT / "prestartup_script.py"), light=light)
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    wall, cpu = map(float, run.stdout.split())
    return wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    cases = {
        "this machine, in ComfyUI": (IN_COMFYUI, True),
        "this machine, on its own": ("", True),
        "AMD machine, in ComfyUI": (IN_COMFYUI + AMD, False),
    }
    for title, (before, light) in cases.items():
        walls, cpus = zip(*(milliseconds(before, light) for _ in range(runs)), strict=True)
        print(
            f"{title}: median {statistics.median(walls):.1f} ms "
            f"({min(walls):.1f} to {max(walls):.1f}), "
            f"of that CPU {statistics.median(cpus):.1f} ms; {runs} starts"
        )


if __name__ == "__main__":
    main()
