"""Builds the sdist and the wheel, and uses them as a stranger would.

    python tests/long/check_packages.py            needs `build` and a package index
    python tests/long/check_packages.py --wheel FILE --python PY ... --root DIR ... [--torch SPEC]

With build isolation: sdist -> wheel, the wheel in a fresh virtual environment outside the source
tree; `pip install .` and `pip install -e .` from the unpacked sdist in two more.

The second form installs a wheel that is there, with its extras, into new environments: of other
interpreters, and of other systems. DIR is the root of one, in which there is no compiler and its
Python is python3 (root's rights are needed):

    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates trixie DIR

In each the core computes and a mesh is drawn; with --torch ("torch==2.13.0", in pip's words), which
is installed first, the demo decodes its clip and every command that takes the demo's VAE runs. What
was installed before must be as it was, and `pip uninstall` must leave nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IN_SDIST = ("include/hy3d/conv3d.h", "csrc/base/blas.c", "csrc/kernels/kernels.inc", "setup.py",
            "tests/c/test_base.c", "tests/project/test_packaging.py", "LICENSE", "MANIFEST.in",
            "examples/protected_decode.py", "examples/demo/run.py", "examples/render/run.py",
            "tools/dev/isa.py", "tools/dev/bench/__main__.py", "__init__.py")  # fmt: skip
BUNDLED = "hy3d_rocm/_bundled/examples/"
IN_WHEEL = ("hy3d_rocm/_core.abi3.so", "hy3d_rocm/_core.pyi", "hy3d_rocm/py.typed",
            "hy3d_rocm/_vendor/libhy3d_openblas.so", "hy3d_rocm/_vendor/LICENSE.txt",
            f"{BUNDLED}demo/run.py", f"{BUNDLED}render/run.py",
            f"{BUNDLED}data/demo_vae.safetensors")  # fmt: skip
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
# What a decode needs beside torch, and the commands that take the demo's VAE.
EXTRAS, SIZE = "cli,demo,render", ("--frames", "5", "--size", "64x64")
COMMANDS = (
    ("render", "--size", "256", "--frames", "0", "--out", "views"),
    ("demo", "--out", "film"),
    ("plan", "--vae", "demo", *SIZE),
    ("validate", *SIZE, "--out", "validated"),
    ("optimize", *SIZE, "--out", "optimized"),
    ("capture", "latent.safetensors", "--vae", "demo", "--out", "captured"),
    ("decode", "latent.safetensors", "--vae", "demo", "--out", "frames.mp4"),
)
WITHOUT_TORCH = ("render",)
LATENT = """
import torch, safetensors.torch
latent = torch.randn(1, 16, 2, 8, 8, generator=torch.manual_seed(1))
safetensors.torch.save_file({"samples": latent}, "latent.safetensors")
"""
COMPILERS = "for c in cc gcc clang c++ make; do command -v $c; done; true"
# Into another system's root, with the network and the kernel's files; the mounts end with it.
ENTER = """
set -e; for d in proc dev; do mount --rbind /$d "$0/$d"; done
cp /etc/resolv.conf "$0/etc/"; exec chroot "$0" "$@"
"""
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


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


@dataclass(frozen=True)
class System:
    """Where a wheel is installed: this system (root: None) or another one's root, its Python, and
    a folder there for an environment and what the commands write."""

    root: Path | None
    python: str
    folder: Path

    def path(self, file: Path) -> Path:
        """As this system sees a file of that one."""
        return file if self.root is None else self.root / file.relative_to("/")

    def run(self, *command: object) -> str:
        words = ["sh", "-c", f'cd {shlex.quote(str(self.folder))}; exec "$@"', "sh", *command]
        if self.root is None:
            return run(*words)
        told = {"HOME": str(self.folder), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        if CERTIFICATES.is_file():  # this machine's: it may be behind a proxy that has its own
            shutil.copy(CERTIFICATES, self.path(self.folder) / "certificates.crt")
            told["PIP_CERT"] = f"{self.folder}/certificates.crt"
        given = ["env", "-i", *(f"{name}={value}" for name, value in told.items()), *words]
        return run("unshare", "--mount", "sh", "-c", ENTER, self.root, *given)


def use_as_a_user(system: System, wheel: Path, torch: str | None, steps: Steps) -> None:
    folder = system.path(system.folder)
    folder.mkdir(parents=True)
    shutil.copy(wheel, folder)
    python, tool = system.folder / "v" / "bin" / "python", system.folder / "v" / "bin" / "hy3d-rocm"
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    system.run(system.python, "-m", "venv", "v")
    version = system.run(python, "--version")
    compilers = system.run("sh", "-c", COMPILERS).split()
    system.run(*pip, "install", "-q", "numpy", *(shlex.split(torch) if torch else ()))
    before = system.run(*pip, "list", "--format=freeze").splitlines()
    steps.done(f"{version}, compilers: {', '.join(compilers) or 'none'}; {torch or 'no torch'}")
    system.run(*pip, "install", "-q", f"{system.folder / wheel.name}")
    steps.done(f"pip install {wheel.name}")
    where = system.run(python, "-c", USE)
    steps.done(f"conv3d exact with {where.removeprefix(str(system.folder))}")
    extras = f"{system.folder / wheel.name}[{EXTRAS if torch else 'render'}]"
    system.run(*pip, "install", "-q", extras)
    steps.done(f"its extras: {EXTRAS if torch else 'render'}")
    if torch:
        system.run(python, "-c", LATENT)
    for command in COMMANDS:
        if torch or command[0] in WITHOUT_TORCH:
            said = system.run(tool, *command)
            last = [line.strip() for line in said.splitlines() if "done in" in line]
            steps.done(f"hy3d-rocm {' '.join(command)} {''.join(last)}".rstrip())
    after = system.run(*pip, "list", "--format=freeze").splitlines()
    if changed := sorted(set(before) - set(after)):
        sys.exit(f"the installation replaced {changed}")
    system.run(*pip, "uninstall", "-q", "-y", "hy3d-rocm")
    left = [str(at) for at in (folder / "v").rglob("*") if "hy3d" in at.name.lower()]
    if left:
        sys.exit(f"pip uninstall left {left}")
    steps.done("nothing replaced, nothing left by pip uninstall")


def use_a_wheel(given: argparse.Namespace) -> None:
    wheel = given.wheel.resolve()
    print(f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB")
    with tempfile.TemporaryDirectory(prefix="hy3d-packages-") as name:
        places = [
            System(None, python, Path(name, str(number)))
            for number, python in enumerate(given.python)
        ]
        # Below /opt: a temporary folder of that system may be a mount of its own.
        places += [System(root.resolve(), "python3", Path("/opt/hy3d")) for root in given.root]
        for system in places:
            print(f"in {system.root}" if system.root else f"by {system.python}")
            try:
                use_as_a_user(system, wheel, given.torch, Steps())
            finally:
                shutil.rmtree(system.path(system.folder), ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, metavar="FILE")
    parser.add_argument("--python", action="append", default=[], metavar="PY")
    parser.add_argument("--root", type=Path, action="append", default=[], metavar="DIR")
    parser.add_argument("--torch", metavar="SPEC")
    given = parser.parse_args()
    if given.wheel is not None:
        use_a_wheel(given)
        return 0
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
        # A developer's tools are parts of a source checkout.
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
