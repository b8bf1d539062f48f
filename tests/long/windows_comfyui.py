"""ComfyUI in a CPython for Windows, under wine, with the wheel for Windows: the texture stage.

    make wheel-windows wheel-windows-test                  makes the wheel and the interpreter
    python tests/long/windows_comfyui.py dist/hy3d_rocm-*-win_amd64.whl --comfyui DIR --wrapper DIR
                                         [--only SCENARIO] [--keep DIR]

It installs the wheel, which is to be of this commit, brings ComfyUI's packages and the wrapper's as
wheels for Windows and runs scenarios of tests/comfyui/run.py, "raster" without --only, from a clone
of this checkout in which nothing is compiled. Wine is not Windows.

One check of "raster" fails here and tells of NumPy, not of Windows: wine 8 cannot run NumPy 2, and
with NumPy 1 upstream's own in-painting over the mesh computes its weights in float64, ours in
float32, as NumPy 2 does.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from check_windows_python import PLACE, ROOT, TORCH, environment, gcc, install, pip

PACKAGES = PLACE / "comfyui"
# What asks for torch, whose conditions pip would read for this system; versions as in
# tests/comfyui/README.md.
WITHOUT_DEPENDENCIES = (TORCH, "torchvision==0.28.0", "torchaudio==2.11.0", "accelerate",
                        "torchsde", "kornia", "spandrel", "comfy-kitchen")  # fmt: skip
PINNED = ("numpy==1.26.4", "transformers==4.53.3", "diffusers==0.39.0", "trampoline", "kornia-rs")
NOT_TRIED = ("comfyui-frontend-package", "comfyui-workflow-templates", "comfyui-embedded-docs",
             "pybind11")  # fmt: skip
# Of Windows 10, and asked for by everything in Rust; wine 8 has none.
RANDOM = """
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE at, SIZE_T left)
{
    while (left > 0) {
        ULONG some = left > 1 << 20 ? 1 << 20 : (ULONG)left;
        SystemFunction036(at, some);
        at += some, left -= some;
    }
    return TRUE;
}
"""
# Through pipes: under wine, Python can't use a file that it inherits.
LAUNCHER = """#!/bin/bash
{settings}
unset DISPLAY TMPDIR
export PYTHONPATH=$(echo "$PYTHONPATH" | sed 's|:|;|g')
exec {wine} {python} "$@" > >(cat) 2> >(cat >&2)
"""


def name_of(line: str) -> str:
    return line.partition("#")[0].strip().split(";")[0].split("=")[0].rstrip("<>~! ").lower()


def fetch(comfyui: Path, wrapper: Path) -> None:
    """ComfyUI's requirements and the wrapper's, newest as pip would take them."""
    apart = {name_of(line) for line in (*WITHOUT_DEPENDENCIES, *PINNED, *NOT_TRIED)}
    lines = [
        line.partition("#")[0].strip()
        for folder in (comfyui, wrapper)
        for line in (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
        if name_of(line) and name_of(line) not in apart
    ]
    shutil.rmtree(PACKAGES, ignore_errors=True)
    pip("install", "--target", PACKAGES, *lines, *PINNED)
    pip("install", "--no-deps", "--target", PACKAGES, *WITHOUT_DEPENDENCIES)


def make_launcher() -> Path:
    """A program that the harness takes for an interpreter."""
    python = PLACE / "python" / "python.exe"
    source = PLACE / "random.c"
    source.write_text(RANDOM)
    gcc("-shared", "-o", python.with_name("bcryptprimitives.dll"), source, "-ladvapi32")
    changed = {name: text for name, text in environment().items() if os.environ.get(name) != text}
    settings = "\n".join(f"export {name}={shlex.quote(text)}" for name, text in changed.items())
    launcher = PLACE / "launcher"
    launcher.write_text(LAUNCHER.format(settings=settings, wine="wine", python=python))
    launcher.chmod(0o755)
    return launcher


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--comfyui", type=Path, required=True, metavar="DIR")
    parser.add_argument("--wrapper", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", action="append", metavar="SCENARIO")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    given = parser.parse_args()
    if not PACKAGES.is_dir():
        fetch(given.comfyui, given.wrapper)
    if not install(given.wheel.resolve()):
        return 1
    pack = PLACE / "pack"
    shutil.rmtree(pack, ignore_errors=True)
    subprocess.run(["git", "clone", "-q", str(ROOT), str(pack)], check=True)
    command = [sys.executable, ROOT / "tests" / "comfyui" / "run.py", "--comfyui", given.comfyui,
               "--wrapper", given.wrapper, "--python", make_launcher(), "--pack", pack,
               "--site", PACKAGES]  # fmt: skip
    for name in given.only or ["raster"]:
        command += ["--only", name]
    if given.keep is not None:
        command += ["--keep", given.keep]
    return subprocess.run([str(word) for word in command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
