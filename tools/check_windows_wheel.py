"""What a wheel for Windows must be, looked up in its files: nothing of it is run.

    python tools/check_windows_wheel.py dist/hy3d_rocm-*-win_amd64.whl [--objects build/temp.win...]

Its record is right. Its DLLs need nothing but Windows, the C run-time and python3.dll, of which the
extension takes names that tools/windows/python3.def lists; it has no date and exports its init
function alone. With the folder of the objects that it was linked of: instructions of AVX are in the
kernels' files for AVX2 and AVX-512 and nowhere else, and no aligned move of a vector to memory is
left (csrc/windows.mk says why). Needs objdump of MinGW-w64. Exits with 1 and says what is wrong.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = "hy3d_rocm/_core.pyd"
BLAS = "hy3d_rocm/_vendor/libhy3d_openblas.dll"
# What every Windows has: its own, and the C run-time, the old one or the universal one.
SYSTEM = re.compile(r"kernel32\.dll|msvcrt\.dll|ucrtbase\.dll|api-ms-win-crt-[\w-]+\.dll", re.I)
# By the encoding (VEX, EVEX): all names with a v, and what came with AVX2 and AVX-512 beside them.
AVX = re.compile(
    r"\t(v(?!er[rw]|m(?:call|launch))\w+|k(?:mov|ortest|test|not|x?n?or|and)\w*"
    r"|andn|bextr|blsr|blsi|blsmsk|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx)\s"
)
ALIGNED = re.compile(r"\tvmov(?:ap[sd]|dqa)\d*\s.*\(")
AVX_SOURCES = re.compile(r"kernels/(?:\w+_)?avx(?:2|512)\.o$")


def objdump() -> str:
    named = os.environ.get("OBJDUMP")
    found = named or shutil.which("x86_64-w64-mingw32-objdump") or shutil.which("objdump")
    if found is None:
        sys.exit("There is no objdump of MinGW-w64: install it, or name it with OBJDUMP.")
    return found


def dump(file: Path, *options: str) -> str:
    command = [objdump(), *options, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def record_faults(wheel: zipfile.ZipFile) -> Iterator[str]:
    """RECORD lists every file but itself, with its digest."""
    (name,) = [n for n in wheel.namelist() if n.endswith(".dist-info/RECORD")]
    rows = {row[0]: row[1] for row in csv.reader(wheel.read(name).decode().splitlines())}
    for odd in sorted(rows.keys() ^ set(wheel.namelist())):
        yield f"{odd}: in {'RECORD' if odd in rows else 'the wheel'} alone"
    for file in rows.keys() & set(wheel.namelist()) - {name}:
        digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(file)).digest())
        if rows[file] != f"sha256={digest.decode().rstrip('=')}":
            yield f"{file}: RECORD has another digest"


def imports(headers: str) -> dict[str, set[str]]:
    """The names that a DLL takes of each other one, as `objdump -p` tells them."""
    found: dict[str, set[str]] = {}
    for part in headers.split("\tDLL Name: ")[1:]:
        library, _, table = part.partition("\n")
        lines = table.split("\n\n")[0].splitlines()
        found[library] = {line.split()[-1] for line in lines if re.match(r"\t[0-9a-f]+\s", line)}
    return found


def exports(headers: str) -> set[str]:
    table = headers.partition("[Ordinal/Name Pointer] Table")[2].partition("\n\n")[0]
    return set(re.findall(r"^\t\[ *\d+\] (?:\+base\[ *\d+\] +\w+ )?(\w+)$", table, re.M))


def allowed_names() -> set[str]:
    lines = (ROOT / "tools" / "windows" / "python3.def").read_text().splitlines()
    return {line.split()[0] for line in lines if re.match(r"_?Py", line)}


def library_faults(headers: str, of_python: set[str]) -> Iterator[str]:
    """What is wrong with a DLL that may take these names of python3.dll."""
    for library, names in imports(headers).items():
        if library == "python3.dll" and of_python:
            if names - of_python:
                yield f"takes {sorted(names - of_python)} of python3.dll"
        elif not SYSTEM.fullmatch(library):
            yield f"needs {library}"
    for flag in ("DYNAMIC_BASE", "NX_COMPAT", "HIGH_ENTROPY_VA"):
        if flag not in headers:
            yield f"is not {flag}"


def core_faults(headers: str) -> Iterator[str]:
    yield from library_faults(headers, allowed_names())
    if "python3.dll" not in imports(headers):
        yield "takes nothing of python3.dll"
    if exports(headers) != {"PyInit__core"}:
        yield f"exports {sorted(exports(headers))}"
    if not re.search(r"^Time/Date\s+Thu Jan  1 00:00:00 1970$", headers, re.M):
        yield "has a date"


def code_faults(core: Path, objects: Path) -> Iterator[str]:
    """Where instructions of AVX stand, of the objects and of what was linked of them."""
    listing = dump(core, "-d", "--no-show-raw-insn")
    aligned = ALIGNED.findall(listing)
    if aligned:
        yield f"has {len(aligned)} aligned moves of vectors to memory"
    inside = 0
    for file in sorted(objects.rglob("*.o")):
        count = len(AVX.findall(dump(file, "-d", "--no-show-raw-insn")))
        if not AVX_SOURCES.search(file.as_posix()):
            if count:
                yield f"has {count} instructions of AVX from {file.name}"
        elif count == 0:
            yield f"has no instruction of AVX from {file.name}"
        inside += count
    if len(AVX.findall(listing)) != inside:
        yield f"has {len(AVX.findall(listing))} instructions of AVX, its objects have {inside}"


def faults(file: Path, objects: Path | None) -> Iterator[str]:
    if not file.name.endswith("-cp311-abi3-win_amd64.whl"):
        yield f"{file.name}: is not cp311-abi3-win_amd64"
    with zipfile.ZipFile(file) as wheel, tempfile.TemporaryDirectory() as folder:
        yield from record_faults(wheel)
        names = wheel.namelist()
        libraries = sorted(n for n in names if re.search(r"\.(pyd|dll|so|exe|a|lib)(\.|$)", n))
        vendored = [BLAS, f"{Path(BLAS).parent.as_posix()}/LICENSE.txt"]
        wanted = [CORE, *(n for n in vendored if n in names)]
        if len(wanted) not in (1, 3) or libraries != [n for n in wanted if not n.endswith(".txt")]:
            yield f"holds {libraries}"
        for name in libraries:
            extracted = Path(wheel.extract(name, folder))
            headers = dump(extracted, "-p")
            found = list(core_faults(headers) if name == CORE else library_faults(headers, set()))
            if name == CORE and objects is not None:
                found += code_faults(extracted, objects)
            yield from (f"{name}: {fault}" for fault in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--objects", type=Path, help="the folder of what it was linked of")
    chosen = parser.parse_args()
    found = list(faults(chosen.wheel, chosen.objects))
    for fault in found:
        print(f"{chosen.wheel.name}: {fault}")
    size = chosen.wheel.stat().st_size
    print(f"{chosen.wheel.name}: {size / 1e6:.1f} MB, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
