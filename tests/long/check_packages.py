"""Builds the sdist and the wheel, and uses them as a stranger would.

    python tests/long/check_packages.py            needs `build` and a package index

With build isolation: sdist -> wheel, the wheel in a fresh virtual environment outside the source
tree; `pip install .` and `pip install -e .` from the unpacked sdist in two more.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IN_SDIST = ("include/hy3d/conv3d.h", "csrc/base/blas.c", "csrc/kernels/kernels.inc", "setup.py",
            "tests/c/test_base.c", "tests/project/test_packaging.py", "LICENSE", "MANIFEST.in",
            "examples/protected_decode.py", "examples/demo/run.py", "examples/render/run.py",
            "tools/dev/isa.py", "tools/dev/bench/__main__.py", "__init__.py")  # fmt: skip
IN_WHEEL = ("hy3d_rocm/_core.abi3.so", "hy3d_rocm/_core.pyi", "hy3d_rocm/py.typed",
            "hy3d_rocm/_vendor/libhy3d_openblas.so", "hy3d_rocm/_vendor/LICENSE.txt")  # fmt: skip
USE = """
import sys, numpy as np, hy3d_rocm
from hy3d_rocm import _core
rng = np.random.default_rng(1)
x = rng.integers(-3, 4, (2, 8, 4, 9, 9)).astype("f4")
weight = rng.integers(-3, 4, (6, 8, 3, 3, 3)).astype("f4")
y = hy3d_rocm.conv3d(x, weight, padding=1)
wanted = np.zeros_like(y)
padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1), (1, 1)))
for t, h, w in np.ndindex(3, 3, 3):
    part = padded[:, :, t : t + y.shape[2], h : h + y.shape[3], w : w + y.shape[4]]
    wanted += np.einsum("oc,ncthw->nothw", weight[:, :, t, h, w], part)
assert (y == wanted).all()
assert _core.blas_info()["available"], _core.blas_info()["error"]
assert "torch" not in sys.modules
print(_core.__file__)
"""


def run(*command: object, cwd: Path | None = None) -> str:
    """Standard output; the end of both outputs when the command fails."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    result = subprocess.run(
        [str(c) for c in command], cwd=cwd, capture_output=True, text=True, check=False, env=clean
    )
    if result.returncode != 0:
        sys.exit(f"{command} failed:\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}")
    return result.stdout.strip()


def use_in_fresh_environment(folder: Path, name: str, *install: object) -> str:
    """Installs into a new environment, computes outside the source tree, and uninstalls: nothing of
    ours is left."""
    place = folder / name
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", *install)
    installed = run(python, "-m", "pip", "list", "--format=freeze")
    if "torch" in installed:
        sys.exit(f"{name}: torch was pulled in:\n{installed}")
    where = run(python, "-c", USE, cwd=place)
    run(python, "-m", "pip", "uninstall", "-qy", "hy3d-rocm")
    if left := sorted(place.rglob("*hy3d*")):
        sys.exit(f"{name}: left by pip uninstall: {', '.join(map(str, left[:10]))}")
    return where


def main() -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = Steps()
        run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
        (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
        steps.done(f"built {sdist.name} ({sdist.stat().st_size >> 10} kB) and {wheel.name}")
        with tarfile.open(sdist) as archive:
            names = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
            archive.extractall(folder / "source", filter="data")
        missing = [n for n in IN_SDIST if n not in names]
        inside = zipfile.ZipFile(wheel).namelist()
        missing += [n for n in IN_WHEEL if n not in inside]
        # A developer's tools and the demo are parts of a source checkout.
        outside = [n for n in inside if not re.match(r"hy3d_rocm(-[^/]+\.dist-info)?/", n)]
        strays = outside + [n for n in names if n.endswith((".so", ".o", ".pyc"))]
        if missing or strays or not wheel.name.endswith("-cp311-abi3-linux_x86_64.whl"):
            sys.exit(f"missing {missing}, strays {strays}, wheel {wheel.name}")
        (source,) = (folder / "source").iterdir()
        for kind, install in {
            "wheel": [wheel],
            "pip install .": [source],
            "pip install -e .": ["-e", source],
        }.items():
            where = use_in_fresh_environment(folder, kind.replace(" ", "_"), *install)
            steps.done(f"{kind}: conv3d exact with {where.removeprefix(str(folder))}")
    return 0


class Steps:
    """Prints what was done and how long it took."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def done(self, text: str) -> None:
        now = time.monotonic()
        print(f"{now - self._start:6.1f} s  {text}", flush=True)
        self._start = now


if __name__ == "__main__":
    sys.exit(main())
