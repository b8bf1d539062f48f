"""Builds a C program of this folder with the core's sources, internal headers included."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build(name: str, folder: Path) -> Path:
    """The program `folder`/`name` of tests/bench/`name`.c."""
    program = folder / name
    sources = [p for p in (ROOT / "csrc").rglob("*.c") if "python" not in p.parts]
    command = ["cc", "-std=c11", "-O2", "-ffp-contract=off", "-D_GNU_SOURCE", "-pthread"]
    command += [f"-I{ROOT / 'include'}", f"-I{ROOT / 'csrc'}", "-o", str(program)]
    command += [str(ROOT / "tests" / "bench" / f"{name}.c"), *map(str, sources)]
    subprocess.run([*command, "-lm", "-ldl"], check=True)
    return program
