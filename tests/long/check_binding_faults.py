"""Every call of the binding for memory fails, once and for ever.

    python tests/long/check_binding_faults.py [--count 6] [--jobs N] [--list]

Two ways. Sites: the binding and the core are built with tests/sites/*.h before each source, so that
every call of CPython that may want memory, and every one of the core's allocator, is a numbered
site; for calls of all functions of _core, each site fails once and then for ever; at the end each
site must have failed both ways, or is listed with the reason why it can't be reached. Interpreter:
the extension as it is built, with the n-th allocation of the interpreter itself failing, n = 1, 2,
... until the call comes through, once and for ever.

Each time: MemoryError or the result of a call that never failed; the next call gives that result;
no allocation of the core, no reference to an argument and no block of the interpreter is left.

--count: calls of each function that give something, and as many that raise. --jobs: processes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "long")]

FLAGS = """-std=c11 -O1 -g -fPIC -fvisibility=hidden -ffp-contract=off -pthread -Iinclude -Icsrc
    -Itests/sites""".split()
REPEATS = 24  # of a call that seems to leave something
FEW = 3


def compiler() -> str:
    return os.environ.get("CC", "gcc")


def build_no_memory(folder: Path) -> Path:
    """The library that lets the interpreter's allocators fail."""
    target = folder / "no_memory.so"
    python = f"-I{sysconfig.get_path('include')}"
    source = str(ROOT / "tests" / "sites" / "no_memory.c")
    subprocess.run([compiler(), "-shared", "-fPIC", "-O1", python, source, "-o", str(target)],
                   check=True)  # fmt: skip
    return target


def build_sites(folder: Path, flags: str = "") -> Path:
    """The extension with its sites; the core's objects are those of `make csites`. flags: for the
    binding's own sources."""
    core = ["make", "-s", f"-j{os.cpu_count()}", "build/c-sites/core.a"]
    subprocess.run(core, cwd=ROOT, check=True)
    target = folder / "_core.abi3.so"
    python = f"-I{sysconfig.get_path('include')}"
    sources = sorted(str(path) for path in (ROOT / "csrc" / "python").glob("*.c"))
    subprocess.run(
        [compiler(), "-shared", *FLAGS, *shlex.split(flags), python,
         "-DPy_LIMITED_API=0x030B0000", "-include", "tests/sites/python_sites.h", *sources,
         "-Wl,--whole-archive", "build/c-sites/core.a", "-Wl,--no-whole-archive",
         "-o", str(target), "-ldl", "-lm"],
        cwd=ROOT, check=True,
    )  # fmt: skip
    return target


def load_core(path: Path) -> Any:
    """The module at `path` in the place of hy3d_rocm._core."""
    spec = importlib.util.spec_from_file_location("hy3d_rocm._core", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hy3d_rocm._core"] = module
    spec.loader.exec_module(module)
    return module


class Sites:
    """k-th call of a site fails."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.test_sites_disarm.restype = ctypes.c_uint64
        self.library.test_sites_name.restype = ctypes.c_char_p
        self.library.test_sites_live.restype = ctypes.c_int64
        self.where = ""

    def run(self, function: Any, args: Any, kwargs: Any, k: int, forever: bool) -> Any:
        self.library.test_sites_arm(ctypes.c_uint64(k), 3 if forever else 1)
        try:
            return function(*args, **kwargs)
        finally:
            self.asked = int(self.library.test_sites_disarm())
            site = self.library.test_sites_failed()
            self.where = self.name(site) if site >= 0 else ""

    def name(self, site: int) -> str:
        return str(self.library.test_sites_name(site).decode())

    def tallies(self) -> dict[str, list[int]]:
        found = {}
        for site in range(self.library.test_sites_count()):
            counts = [ctypes.c_uint64() for _ in range(3)]
            self.library.test_sites_tally(site, *map(ctypes.byref, counts))
            found[self.name(site)] = [int(count.value) for count in counts]
        return found

    def live(self) -> int:
        return int(self.library.test_sites_live())


class NoMemory:
    """k-th allocation of the interpreter fails."""

    where = "the interpreter"

    def __init__(self, path: Path) -> None:
        library = ctypes.PyDLL(str(path))
        self.call = library.no_memory_call
        self.call.restype = ctypes.py_object
        self.call.argtypes = [ctypes.py_object] * 3 + [ctypes.c_int64, ctypes.c_int]
        self.count = library.no_memory_asked
        self.count.restype = ctypes.c_int64

    def run(self, function: Any, args: Any, kwargs: Any, k: int, forever: bool) -> Any:
        try:
            return self.call(function, args, kwargs, k, int(forever))
        finally:
            self.asked = int(self.count())

    def tallies(self) -> dict[str, list[int]]:
        return {}


def is_documented(got: tuple[Any, ...], wanted: tuple[Any, ...], where: str, forever: bool) -> bool:
    """Whether a call may answer so where a site fails (and all after it), and `wanted` else."""
    if got[:2] == ("raised", "MemoryError"):
        return True
    # CPython 3.11.2 raises what PyErr_Format was asked for without a text, where that has no room.
    if where == NoMemory.where and got[0] == "raised" and got == (*wanted[:2], ""):
        return True
    no_thread = ("raised", "Hy3dError", "a thread or lock could not be created")
    return got == no_thread and (forever or "pthread" in where)


def quotes_array(call: Any) -> bool:
    """Whether a refusal prints an array: what NumPy's own printing does without memory (it leaks,
    and returns without an exception) is not looked at."""
    outcome = call.outcome()
    return outcome[0] == "raised" and "array(" in outcome[2]


class Checker:
    def __init__(self, faults: Any, core: Any, live: Callable[[], int]) -> None:
        self.faults, self.core, self.live = faults, core, live
        self.runs = 0
        self.wrong: list[str] = []

    def sweep(self, call: Any) -> None:
        wanted = call.outcome()
        for forever in (False, True):
            k = 1
            while k < 5000 and self._one(call, wanted, k, forever):
                k += 1

    def _one(self, call: Any, wanted: Any, k: int, forever: bool) -> bool:
        """Whether the k-th was there to fail."""
        run = lambda f, a, kw: self.faults.run(f, a, kw, k, forever)  # noqa: E731
        self.runs += 1
        self.core.trim()
        live, references = self.live(), call.references()
        got = call.outcome(run)
        reached, where = self.faults.asked >= k, self.faults.where
        is_right = got == wanted or (reached and is_documented(got, wanted, where, forever))
        if not is_right:
            self._complain(call, k, forever, where, f"{str(got)[:200]}, not {str(wanted)[:200]}")
        self.core.trim()
        if call.outcome() != wanted:
            self._complain(call, k, forever, where, "the next call differs")
        self.core.trim()
        if self.live() > live and self._after_collecting() > live:
            self._complain(call, k, forever, where, "memory of the core is left")
        if call.references() != references:
            self._complain(call, k, forever, where, "references to arguments are left")
        if reached and self._grows(call, run):
            self._complain(call, k, forever, where, "blocks of the interpreter are left")
        return reached

    def _after_collecting(self) -> int:
        gc.collect()  # a copy of the module that was imported has a context of its own
        return self.live()

    def _grows(self, call: Any, run: Any) -> bool:
        """Whether each of several equal failures leaves a block."""
        # Caches grow less and less (an import's over some 300 calls), leaks each time.
        for repeats in (FEW, *[REPEATS] * 30):
            if repeats == REPEATS:
                gc.collect()
            before = sys.getallocatedblocks()
            for _ in range(repeats):
                call.outcome(run)
            if repeats == REPEATS:
                gc.collect()
            if sys.getallocatedblocks() - before < repeats:
                return False
        return True

    def _complain(self, call: Any, k: int, forever: bool, where: str, what: str) -> None:
        tail = " and all after it" if forever else ""
        self.wrong.append(f"{call.name}, number {k}{tail} ({where}): {what}")


def run_child(options: argparse.Namespace) -> dict[str, Any]:
    """One process's share of the calls, by one of the two ways."""
    path = Path(options.library)
    if options.way == "sites":
        core = load_core(path)
        faults: Any = Sites(path)
        live = faults.live
    else:
        from core_memory import memory

        from hy3d_rocm import _core as core

        faults = NoMemory(path)
        live = memory.live
    from binding_calls import list_calls

    checker = Checker(faults, core, live)
    calls = list_calls(options.count, options.count)
    if options.way != "sites":  # importlib's own thousands of allocations are not ours
        calls = [c for c in calls if c.name != "import" and not c.by_ctypes and not quotes_array(c)]
    for call in calls[options.part :: options.parts]:
        checker.sweep(call)
    return {"runs": checker.runs, "calls": len(calls), "wrong": checker.wrong,
            "tallies": faults.tallies()}  # fmt: skip


def run_children(way: str, library: Path, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-X", "faulthandler", __file__, "--way", way]
    command += ["--library", str(library), "--count", str(options.count)]
    command += ["--parts", str(options.jobs)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    vendored = ROOT / "hy3d_rocm" / "_vendor" / "libhy3d_openblas.so"
    if vendored.exists():
        environment.setdefault("HY3D_BLAS_LIBRARY", str(vendored))
    children = [
        subprocess.Popen([*command, "--part", str(part)], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        for part in range(options.jobs)
    ]  # fmt: skip
    total: dict[str, Any] = {"runs": 0, "calls": 0, "wrong": [], "tallies": {}}
    for child in children:
        out, err = child.communicate()
        if child.returncode:
            total["wrong"].append(f"{way}: a child ended with {child.returncode}\n{err[-3000:]}")
            continue
        found = json.loads(out.splitlines()[-1])
        total["runs"] += found["runs"]
        total["calls"] = found["calls"]
        total["wrong"] += found["wrong"]
        for name, counts in found["tallies"].items():
            known = total["tallies"].get(name, [0, 0, 0])
            total["tallies"][name] = [a + b for a, b in zip(known, counts, strict=True)]
    return total


def report_sites(tallies: dict[str, list[int]], show: bool) -> tuple[int, int]:
    """Of the binding's own sites: how many there are, have not failed both ways."""
    mine = {name: counts for name, counts in tallies.items() if name.startswith("csrc/python/")}
    missed = 0
    for name, (asked, once, forever) in sorted(mine.items()):
        if show or not (once and forever):
            state = "" if once and forever else "  NEVER FAILED"
            print(f"{name:62} asked {asked:7}  once {once:5}  for ever {forever:5}{state}")
        missed += not (once and forever)
    return len(mine), missed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=6, help="calls of each function, good and bad")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--list", action="store_true", help="every site, not only those missed")
    parser.add_argument("--folder", type=Path, help="where the libraries are built, and stay")
    parser.add_argument("--cflags", default="", help="for the binding's sources")
    parser.add_argument("--way", choices=("sites", "interpreter"), help=argparse.SUPPRESS)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--parts", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        print(json.dumps(run_child(options)))
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="binding_faults_") as name:
        folder = options.folder.resolve() if options.folder else Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        sites = run_children("sites", build_sites(folder, options.cflags), options)
        memory = run_children("interpreter", build_no_memory(folder), options)
    wrong = [*sites["wrong"], *memory["wrong"]]
    for line in wrong[:40]:
        print(line)
    count, missed = report_sites(sites["tallies"], options.list)
    print(
        f"{count - missed} of {count} sites of the binding failed once and for ever, "
        f"{sites['runs']} failing calls; {memory['runs']} calls with an "
        f"allocation of the interpreter failing; {sites['calls']} calls of _core: {len(wrong)} "
        f"wrong, {time.monotonic() - began:.0f} s"
    )
    return 1 if wrong or missed else 0


if __name__ == "__main__":
    sys.exit(main())
