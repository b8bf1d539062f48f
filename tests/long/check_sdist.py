"""The sdist, unpacked, builds and computes where there is no network and no scipy-openblas32.

    python tests/long/check_sdist.py       needs the system's OpenBLAS, setuptools, numpy, Linux

The build runs in a network namespace of its own (`unshare --net`), with HY3D_BLAS=system. Ends with
77 where namespaces are forbidden or there is no OpenBLAS.
"""

from __future__ import annotations

import argparse
import ctypes.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from check_packages import ROOT, USE, run

CANNOT_RUN_HERE = 77
SDIST = "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])"
LINKS = "import socket; print(*[name for _, name in socket.if_nameindex()])"


def without_network() -> list[str]:
    """The command that takes the network away; empty where there is none."""
    for words in (["unshare", "--net"], ["unshare", "--net", "--map-root-user"]):
        if shutil.which("unshare") is None:
            return []
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            return words
    return []


def build(folder: Path, alone: list[str]) -> Path:
    """The folder that the sdist's build is installed to."""
    run(sys.executable, "-c", SDIST, folder, cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-build-isolation",
        "--no-index",
        "--no-deps",
    ]
    run(*alone, "env", "HY3D_BLAS=system", *pip, "--target", folder / "installed", source)
    return folder / "installed"


def main() -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    start = time.monotonic()
    alone = without_network()
    if not alone or ctypes.util.find_library("openblas") is None:
        print("skipped: no network namespaces here, or no OpenBLAS of the system's")
        return CANNOT_RUN_HERE
    links = run(*alone, sys.executable, "-c", LINKS)
    if links not in ("", "lo"):
        sys.exit(f"the network is still there: {links}")
    with tempfile.TemporaryDirectory() as name:
        installed = build(Path(name), alone)
        if (installed / "hy3d_rocm" / "_vendor").exists():
            sys.exit("HY3D_BLAS=system vendored a library")
        where = run(
            *alone, "env", f"PYTHONPATH={installed}", sys.executable, "-c", USE, cwd=Path("/")
        )
    seconds = time.monotonic() - start
    print(f"built without a network, conv3d exact with {Path(where).name}, {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
