"""Builds hy3d_rocm._core and puts its BLAS library beside it; everything else is in pyproject.toml.

HY3D_BLAS=vendored  (default) OpenBLAS from the pinned scipy-openblas32 wheel, copied under a name
                    of our own, so that it is never confused with SciPy's or NumPy's copy.
HY3D_BLAS=system    the machine's OpenBLAS, found by the loader at run time.

The same commit gives the same archives, bit for bit, with the same build tools and compiler:
tools/check_reproducible.py looks. How the parts work is in CONTRIBUTING.md, "Releases".
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info
from setuptools.command.sdist import sdist
from setuptools.errors import SetupError

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))  # build backends run this file without its folder

import archives  # noqa: E402
import sbom  # noqa: E402
import vendored_blas  # noqa: E402

# No stable ABI without the GIL: such an interpreter gets a module of its own.
STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")
WINDOWS = vendored_blas.WINDOWS
NOTICES = "OpenBLAS.txt"
RUN_TIME = "MinGW-w64.txt"  # what the compiler for Windows links in
FOR_WINDOWS = ROOT / "tools" / "windows"
# The demo, `render` and the demo's VAE: in a checkout beside the package, in a wheel within it
# (hy3d_rocm/checkout.py finds them in both).
BUNDLED = ("__init__.py", "demo_vae.py", "demo/*.py", "render/*.py", "data/*")


def check_system_blas() -> None:
    """Raises unless pkg-config knows openblas or the loader finds it; in a build for another system
    nobody can say."""
    if (sys.platform == "win32") != WINDOWS:
        return
    if shutil.which("pkg-config"):
        found = subprocess.run(["pkg-config", "--exists", "openblas"], check=False)
        if found.returncode == 0:
            return
    names = ("libopenblas.dll",) if WINDOWS else ("libopenblas.so.0", "libopenblas.so")
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return
    raise SetupError(
        f"HY3D_BLAS=system, but this machine has no OpenBLAS: {vendored_blas.INSTALL_ONE}."
    )


class BuildCore(build_ext):
    """build_ext, then the BLAS library beside the module it belongs to."""

    def finalize_options(self) -> None:
        # GCC's attributes (the kernels' instruction sets), built-ins and vector types are all over
        # the core. Microsoft's compiler has none of them, MinGW-w64 has all; and csrc/windows.mk
        # tests the core with it.
        if WINDOWS and not STABLE_ABI:
            raise SetupError("There is no build for Windows by a Python without the GIL.")
        if WINDOWS and self.compiler is None:
            self.compiler = "mingw32"
        super().finalize_options()

    def build_extensions(self) -> None:
        compiler = self.compiler.compiler[0]
        if shutil.which(compiler) is None:
            raise SetupError(
                f"There is no C compiler here ({compiler!r}): install one, and Python's headers "
                "(Debian, Ubuntu: apt-get install gcc python3-dev), or install a wheel of "
                "hy3d-rocm (docs/install.md). Nothing was changed; ComfyUI's nodes load without."
            )
        if WINDOWS:
            self.compiler.dll_libraries = []  # the C run-time is the compiler's own choice
            self.take_headers()
            self.make_import_library()
        compile_files = self.compiler.compile
        may_use = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
        cores = min(len(may_use(0)), 16)

        def compile_beside(sources: list[str], **options: Any) -> list[str]:
            """As many files at a time as there are cores; their objects in the files' order."""
            with ThreadPoolExecutor(cores) as pool:
                made = pool.map(lambda source: compile_files([source], **options), sources)
                return [name for names in made for name in names]

        self.compiler.compile = compile_beside
        super().build_extensions()

    def take_headers(self) -> None:
        """CPython's, beside a pyconfig.h that is not of the system which builds."""
        place = Path(self.build_temp) / "python"
        other = shutil.ignore_patterns("pyconfig.h")
        shutil.copytree(sysconfig.get_path("include"), place, ignore=other, dirs_exist_ok=True)
        shutil.copy(FOR_WINDOWS / "pyconfig.h", place)
        self.compiler.include_dirs.insert(0, str(place))

    def make_import_library(self) -> None:
        """Of python3.dll, from the names that we use: then no Python for Windows need be there."""
        command = [
            *shlex.split(self.compiler.cc, posix=os.name != "nt"),
            "-print-prog-name=dlltool",
        ]
        dlltool = subprocess.check_output(command, text=True).strip()
        library = Path(self.build_temp) / "libpython3.a"
        try:
            names = FOR_WINDOWS / "python3.def"
            subprocess.run([dlltool, "-d", str(names), "-l", str(library)], check=True)
        except OSError as error:
            raise SetupError(
                f"The compiler for Windows, {self.compiler.cc!r}, has no dlltool beside it: name "
                "that of MinGW-w64 with CC."
            ) from error
        self.compiler.add_library_dir(str(library.parent))

    def get_libraries(self, ext: Extension) -> list[str]:
        """On Windows python3.dll, not that of one version: the wheel is for all of them."""
        return [*ext.libraries, "python3"] if WINDOWS else super().get_libraries(ext)

    def get_ext_filename(self, fullname: str) -> str:
        """Windows knows no suffix for the stable ABI."""
        if WINDOWS:
            return str(Path(*fullname.split(".")).with_suffix(".pyd"))
        return super().get_ext_filename(fullname)

    def run(self) -> None:
        choice = vendored_blas.choice()
        if choice == "system":
            check_system_blas()
        super().run()
        package = ROOT if self.inplace else Path(self.build_lib)
        folder = package / "hy3d_rocm" / "_vendor"
        if choice == "vendored":
            vendored_blas.vendor(folder)
        elif folder.is_dir():
            shutil.rmtree(folder)


class BuildPython(build_py):
    """build_py, with the examples that are commands; an editable install has the checkout's."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        shutil.rmtree(Path(self.build_lib) / "hy3d_rocm" / "_bundled", ignore_errors=True)
        for name in relative(*(f"examples/{pattern}" for pattern in BUNDLED)):
            target = Path(self.build_lib) / "hy3d_rocm" / "_bundled" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)


class EggInfo(egg_info):
    """Metadata of the source: says that a wheel's licence is another one, where it vendors."""

    def run(self) -> None:
        metadata = self.distribution.metadata
        metadata.license_expression = str(metadata.license_expression)  # plain: "Dynamic"
        super().run()


class Wheel(bdist_wheel):
    """bdist_wheel with the notices and the bill of materials of what is vendored."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        super().egg2dist(egginfo_path, distinfo_path)
        if vendored_blas.choice() == "vendored":
            self.describe_library(Path(distinfo_path))

    def describe_library(self, folder: Path) -> None:
        library = vendored_blas.find()
        parts = library.parts()
        metadata = self.distribution.metadata
        own = f"License-Expression: {metadata.license_expression}\n"
        run_time = ["ZPL-2.1"] if WINDOWS else []
        names = [metadata.license_expression, *run_time, *(p[2] for p in parts)]
        whole = " AND ".join(dict.fromkeys(names))
        text = (folder / "METADATA").read_text(encoding="utf-8")
        if text.count(own) != 1 or text.count("License-File: LICENSE\n") != 1:
            raise SetupError("The metadata name no licence as setup.py expects it: mend setup.py.")
        text = text.replace(own, f"License-Expression: {whole}\n")
        file = f"License-File: LICENSE\nLicense-File: {NOTICES}\n"
        if WINDOWS:
            file += f"License-File: {RUN_TIME}\n"
            shutil.copyfile(FOR_WINDOWS / RUN_TIME, folder / "licenses" / RUN_TIME)
        text = text.replace("License-File: LICENSE\n", file)
        (folder / "METADATA").write_text(text, encoding="utf-8", newline="\n")
        notices = vendored_blas.notices(library)
        (folder / "licenses" / NOTICES).write_text(notices, encoding="utf-8", newline="\n")
        (folder / "sboms").mkdir()
        bill = sbom.bill(metadata.name, metadata.version, whole, archives.source_date(ROOT), parts)
        (folder / "sboms" / "hy3d-rocm.cdx.json").write_text(bill, encoding="utf-8", newline="\n")

    def write_wheelfile(self, wheelfile_base: str, generator: str = "hy3d-rocm setup.py") -> None:
        """The last step before the archive: from here on files' modes do not change."""
        super().write_wheelfile(wheelfile_base, generator)
        # Not bdist_dir, which an editable install never makes.
        archives.plain_modes(Path(wheelfile_base).parent)


class Sdist(sdist):
    """sdist of what git tracks, where there is git; the date of the commit goes with it."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        tracked = archives.tracked(ROOT)
        if tracked is not None:
            files = [f for f in files if f.replace(os.sep, "/") in tracked or ".egg-info" in f]
        super().make_release_tree(base_dir, files)
        (Path(base_dir) / archives.STAMP).write_text(f"{archives.source_date(ROOT)}\n")
        listed = "".join(f"{name}\n" for name in sorted(files))
        for place in Path(base_dir).glob("*.egg-info/SOURCES.txt"):
            place.unlink()  # it may be a hard link to the tree's own
            place.write_text(listed, newline="\n")

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):  # noqa: A002
        if format != "gztar" or root_dir is not None:
            raise SetupError(f"There is no sdist as {format}: it is a .tar.gz.")
        target = Path(base_name + ".tar.gz")
        target.parent.mkdir(parents=True, exist_ok=True)
        archives.write_tar_gz(target, Path(base_dir), archives.source_date(ROOT))
        return str(target)


def relative(*patterns: str) -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for p in patterns for path in ROOT.glob(p))


COMPILE = ["-std=c11", "-O2", "-ffp-contract=off", "-g0", f"-ffile-prefix-map={ROOT}=."]
if WINDOWS:
    # csrc/windows.mk says why unaligned moves.
    COMPILE += ["-Wa,-muse-unaligned-vector-move", "-D_WIN32_WINNT=0x0601"]
    LINK = ["-Wl,-s", "-static", "-Wl,--no-insert-timestamp"]
else:
    COMPILE += ["-fvisibility=hidden", "-pthread"]
    LINK = ["-pthread", "-Wl,-s", "-Wl,-z,relro,-z,now"]
MACROS = [("_GNU_SOURCE", None), ("HY3D_HIDDEN", None)]
if STABLE_ABI:
    MACROS.append(("Py_LIMITED_API", "0x030B0000"))

os.environ[archives.STAMP] = str(archives.source_date(ROOT))  # for the archive of the wheel too

setup(
    ext_modules=[
        Extension(
            "hy3d_rocm._core",
            sources=relative("csrc/**/*.c"),
            depends=relative("csrc/**/*.h", "csrc/**/*.inc", "include/**/*.h"),
            include_dirs=["include", "csrc"],
            define_macros=MACROS,
            extra_compile_args=COMPILE,
            extra_link_args=LINK,
            libraries=[] if WINDOWS else ["m", "dl"],
            py_limited_api=STABLE_ABI,
        )
    ],
    cmdclass={
        "build_ext": BuildCore,
        "build_py": BuildPython,
        "egg_info": EggInfo,
        "bdist_wheel": Wheel,
        "sdist": Sdist,
    },
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
)
