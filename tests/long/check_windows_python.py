"""Tries the wheel for Windows in a CPython for Windows, under wine.

    make wheel-windows wheel-windows-test          needs mingw-w64, wine64 and a package index

The interpreter is that of python.org, as panda3d's wheel carries it for programs that are frozen:
python3XX.dll and the modules of the standard library in C. Its other half, in Python, is that of
the interpreter that runs this. python.exe is made by mingw-w64, and so is python3.dll, which
forwards names to python3XX.dll as the real one does, but all of them. NumPy, torch and the other
libraries are the wheels for Windows. Installed by its pip, the wheel has to compute exactly, also
from a folder whose name is not ASCII, its BLAS has to be found below a path of more than 260
characters, and its command has to run. Then come the tests of the core at each level, the tests in
windows_tests.txt, and the commands (windows_commands.py), with streams of cp1252, from a copy of
this tree that holds the wheel in the place of the package and lies in a user's folder with blanks
and letters of all kinds. Wine is not Windows. Exits with 1 where anything failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

from check_packages import USE

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_windows_wheel  # noqa: E402

PLACE = ROOT / "build" / "windows" / "wine"
VERSION = "{}.{}".format(*sys.version_info)
DLL = "python{}{}.dll".format(*sys.version_info)
INTERPRETER = "panda3d==1.10.16"
# Microsoft's own: with wine 8's, each C++ exception in torch writes to memory that was freed.
RUNTIME = "msvc-runtime==14.44.35112"
RUNTIME_DLLS = ("vcruntime140", "vcruntime140_1", "msvcp140")
# NumPy 2 calls functions of the C run-time that wine 8 does not have. pip would read torch's
# conditions for this system: what it needs elsewhere is named here.
PACKAGES = ("numpy==1.26.4", "filelock", "fsspec", "jinja2", "networkx", "sympy",
            "typing-extensions", "pip", "setuptools", "pytest", "pytest-timeout", "hypothesis",
            "psutil", "colorama")  # fmt: skip
TORCH = "torch==2.13.0"
# Not the newest: later ones of safetensors, and of what huggingface_hub needs, call functions of
# Windows 10 that wine 8 does not have.
NO_DEPENDENCIES = ("av==18.1.0", "pillow", "safetensors==0.4.3", "diffusers==0.37.1",
                   "huggingface_hub==0.36.0", "requests", "urllib3", "idna", "certifi",
                   "charset-normalizer", "pyyaml", "tqdm", "regex", "importlib_metadata", "zipp",
                   "accelerate", TORCH)  # fmt: skip
MAIN = """
int Py_Main(int count, unsigned short **words);
int wmain(int count, unsigned short **words) { return Py_Main(count, words); }
"""
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=900")
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*_cache", "__pycache__",
                                  "hy3d_rocm", "*.egg-info")  # fmt: skip
SOMEWHERE = "ein Ordner mit Ümläuten und 日本語/noch einer darin"
DEEP = "/".join(("l" * 90, "ä" * 90, "日" * 80))
USE_BLAS = """
from hy3d_rocm import _core
assert _core.blas_info()["available"], _core.blas_info()
assert len(_core.__file__) > 260
print(ascii(_core.__file__))
"""
USER = "Jörg Müller ☂"
# A part of each user's C: drive, so that a path of Linux', such as /proc, leads nowhere.
HOME = PLACE / "prefix" / "drive_c" / "users" / USER
TESTS = Path(__file__).with_name("windows_tests.txt")


def pip(*words: object) -> None:
    for_windows = ("--platform", "win_amd64", "--python-version", VERSION, "--only-binary", ":all:")
    command = [sys.executable, "-m", "pip", words[0], "-q", *for_windows, *words[1:]]
    subprocess.run([str(word) for word in command], check=True)


def gcc(*words: object) -> None:
    compiler = shlex.split(os.environ.get("CC", "x86_64-w64-mingw32-gcc"))
    subprocess.run([*compiler, *map(str, words)], check=True)


def unpack(wheel: Path, folder: str, names: str, place: Path) -> None:
    """The files of a folder whose names match."""
    with zipfile.ZipFile(wheel) as packed:
        for member in packed.namelist():
            if re.fullmatch(f"{folder}/({names})", member):
                (place / Path(member).name).write_bytes(packed.read(member))


def make_python(home: Path) -> None:
    """A folder as the installer of python.org leaves it, as far as tests look."""
    pip("download", "--no-deps", "-d", home.parent, INTERPRETER, RUNTIME)
    (home / "DLLs").mkdir(parents=True)
    (wheel,) = home.parent.glob("panda3d-*.whl")
    unpack(wheel, "deploy_libs", r"python\d+\.dll", home)
    unpack(wheel, "deploy_libs", r"\w+\.pyd|lib\S+\.dll|sqlite3\.dll", home / "DLLs")
    (wheel,) = home.parent.glob("msvc_runtime-*.whl")
    unpack(wheel, r".+/Scripts", rf"({'|'.join(RUNTIME_DLLS)})\.dll", home)
    ours = shutil.ignore_patterns("site-packages", "test", "lib-dynload", "config-*", "__pycache__")
    shutil.copytree(sysconfig.get_path("stdlib"), home / "Lib", ignore=ours)
    names = check_windows_wheel.exports(check_windows_wheel.dump(home / DLL, "-p"))
    stem = DLL.removesuffix(".dll")
    rows = "".join(f"{n}={stem}.{n}\n" for n in sorted(names) if n.startswith(("Py", "_Py")))
    forwards = home.parent / "python3.def"
    forwards.write_text(f"LIBRARY python3.dll\nEXPORTS\n{rows}")
    gcc("-shared", "-nostdlib", "-Wl,--entry=0", "-o", home / "python3.dll", forwards)
    program = home.parent / "main.c"
    program.write_text(MAIN)
    gcc("-municode", "-o", home / "python.exe", program, home / "python3.dll")
    packages = home / "Lib" / "site-packages"
    pip("install", "--target", packages, *PACKAGES)
    pip("install", "--no-deps", "--target", packages, *NO_DEPENDENCIES)


def environment(**more: str) -> dict[str, str]:
    """Intel's OpenMP, in torch, asks for processors in a way that wine 8 does not answer. A program
    that crashes ends, and waits for no debugger."""
    clean = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "PYTHONPATH")}
    ours = {"WINEPREFIX": str(PLACE / "prefix"), "WINEDEBUG": "-all", "KMP_AFFINITY": "disabled",
            "WINEDLLOVERRIDES": f"winedbg.exe=d;{','.join(RUNTIME_DLLS)}=n",
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}  # fmt: skip
    return {**clean, **ours, **more}


def wine(what: str, wanted: str, *command: object, cwd: Path = PLACE, **more: str) -> bool:
    """Runs a program for Windows; what it says is shown as it comes. Whether it went well, and said
    what is wanted: under wine the status alone does not tell."""
    start, said = time.monotonic(), False
    words = [*shlex.split(os.environ.get("WINE") or "wine"), *map(str, command)]
    with subprocess.Popen(
        words, cwd=cwd, env=environment(**more), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as running:  # fmt: skip
        # Through a pipe: under wine, Python can't use a file that it inherits.
        for line in running.stdout or ():
            text = line.decode(errors="replace")
            said |= wanted in text
            sys.stdout.write(text)
            sys.stdout.flush()
    seconds = time.monotonic() - start
    words_of = "" if said else f", but not {wanted!r}"
    print(f"{what}: exit {running.returncode}{words_of}, {seconds:.0f} s", flush=True)
    return running.returncode == 0 and said


def copy_tree(wheel: Path, tree: Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT, symlinks=True)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tree)


def install(wheel: Path) -> bool:
    words = ("-m", "pip", "install", "--no-index", "--no-deps", "--force-reinstall",
             "--no-warn-script-location", wheel)  # fmt: skip
    python = PLACE / "python" / "python.exe"
    return wine("pip install", "Successfully installed hy3d-rocm", python, *words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--levels", nargs="+", default=["ref", "avx2", "avx512"])
    parser.add_argument("--tests", nargs="+", default=["tests/unit/_core"], help="for pytest")
    chosen = parser.parse_args()
    wheel, home, tree = chosen.wheel.resolve(), PLACE / "python", HOME / "hy3d rocm"
    python = home / "python.exe"
    PLACE.mkdir(parents=True, exist_ok=True)
    if not python.is_file():
        shutil.rmtree(home, ignore_errors=True)
        make_python(home)
    elsewhere, deep = PLACE / SOMEWHERE, PLACE / DEEP
    for folder in (elsewhere, deep):
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)
    use, use_blas = PLACE / "use.py", PLACE / "use_blas.py"
    use.write_text(USE)
    use_blas.write_text(USE_BLAS)
    results = [
        install(wheel),
        wine("installed", "_core.pyd", python, use),
        wine("elsewhere", "_core.pyd", python, use, PYTHONPATH=f"Z:{elsewhere}"),
        wine("deep down", "_core.pyd", python, use_blas, PYTHONPATH=f"Z:{deep}"),
        wine("its command", "hy3d-rocm ", home / "Scripts" / "hy3d-rocm.exe", "--version"),
    ]
    copy_tree(wheel, tree)  # the drive is made by now
    counted = f"Z:{ROOT / 'build' / 'c-win' / 'hy3d_tests.dll'}"
    for level in chosen.levels:
        told = {"HY3D_CPU": level, "HY3D_TESTS_LIBRARY": counted}
        tests = (*PYTEST, *chosen.tests)
        results.append(wine(f"HY3D_CPU={level}", " passed", python, *tests, cwd=tree, **told))
    told = {"HY3D_TESTS_LIBRARY": counted, "PYTHONUTF8": "0"}
    of_files = ("--basetemp", "../t", *TESTS.read_text().split())
    results.append(wine("files", " passed", python, *PYTEST, *of_files, cwd=tree, **told))
    shutil.rmtree(HOME / "c", ignore_errors=True)
    commands = ("tests/long/windows_commands.py", "../c")
    results.append(wine("commands", ", 0 failed", python, *commands, cwd=tree, **told))
    print(f"{wheel.name}: {len(results)} runs, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
