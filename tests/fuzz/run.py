"""Runs the fuzzers that `make cfuzz` built, on a machine with or without clang.

    python tests/fuzz/run.py [--seconds 1800] [--jobs 16] [--target conv3d] [--keep]

Targets run one after another, each `--seconds` long on `--jobs` processes (0: one a core). They
begin from the kept corpora. What fails lies in build/fuzz/found; how to run it again is
printed.
--keep minimises what was found and packs it into tests/fuzz/corpus.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import corpora

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("conv3d", "schedule", "raster", "program")
MOST_BYTES = 768  # of an input
# One input takes milliseconds; a minute is a hang. OpenBLAS and three threads take 400 MB.
LIMITS = ["-timeout=60", "-rss_limit_mb=4096", f"-max_len={MOST_BYTES}"]


def environment() -> dict[str, str]:
    vendored = ROOT / "hy3d_rocm" / "_vendor" / "libhy3d_openblas.so"
    known = {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
    if vendored.exists():
        known["HY3D_BLAS_LIBRARY"] = str(vendored)
    return {**known, **os.environ}


def fuzz(binary: Path, inputs: Path, seconds: int, jobs: int) -> tuple[bool, int, str]:
    """(whether nothing failed, inputs run, the end of its log) of one target."""
    found = ROOT / "build" / "fuzz" / "found" / binary.name
    shutil.rmtree(found, ignore_errors=True)
    found.mkdir(parents=True)
    command = [str(binary), f"-fork={jobs}", f"-max_total_time={seconds}", *LIMITS,
               f"-artifact_prefix={found}/", str(inputs)]  # fmt: skip
    run = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment(), check=False
    )
    counts = re.findall(r"^#(\d+): cov", run.stderr, flags=re.M)
    # Inputs that fail while a run begins do not change its exit status, but are written down.
    failures = sorted(path.name for path in found.iterdir() if not path.name.startswith("slow"))
    again = "".join(f"again: {binary} {found / name}\n" for name in failures[:5])
    good = run.returncode == 0 and not failures and bool(counts)
    return good, int(counts[-1]) if counts else 0, f"{run.stderr[-4000:]}\n{again}"


def keep(binary: Path, inputs: Path, name: str) -> str:
    """Minimises the inputs and packs them."""
    smaller = inputs.with_name(f"{name}-merged")
    shutil.rmtree(smaller, ignore_errors=True)
    smaller.mkdir(parents=True)
    command = [str(binary), "-merge=1", *LIMITS, str(smaller), str(inputs)]
    subprocess.run(command, capture_output=True, env=environment(), check=True)
    path = ROOT / "tests" / "fuzz" / "corpus" / f"{name}.bin"
    count = corpora.pack(smaller, path)
    return f"{count} inputs kept, {path.stat().st_size} bytes"


def run_target(name: str, options: argparse.Namespace) -> tuple[bool, int]:
    binary = Path(options.binaries) / f"fuzz_{name}"
    inputs = ROOT / "build" / "fuzz" / "inputs" / name
    had = corpora.unpack(ROOT / "tests" / "fuzz" / "corpus" / f"{name}.bin", inputs)
    start = time.monotonic()
    good, count, log = fuzz(binary, inputs, options.seconds, options.jobs or os.cpu_count() or 1)
    word, seconds = "ok" if good else "FAILED", time.monotonic() - start
    now = len(list(inputs.iterdir()))
    print(f"{name:9} {word}: {count} inputs in {seconds:.0f} s, {had} kept, {now} now", flush=True)
    if not good:
        print(log)
    elif options.keep:
        print(f"{name:9} {keep(binary, inputs, name)}")
    return good, count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=1800, help="a target")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0: one a core")
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--binaries", default=str(ROOT / "build" / "fuzz"))
    parser.add_argument("--keep", action="store_true", help="pack what was found")
    options = parser.parse_args()
    start = time.monotonic()
    results = [run_target(name, options) for name in options.target or TARGETS]
    failed = sum(not good for good, _ in results)
    print(
        f"{len(results)} targets, {sum(count for _, count in results)} inputs, {failed} failed, "
        f"{time.monotonic() - start:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
