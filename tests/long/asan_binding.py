"""The extension under AddressSanitizer and UndefinedBehaviorSanitizer.

    python tests/long/asan_binding.py [--count 5000]

Builds _core with both sanitizers in a temporary copy of the tree, runs the binding's tests there
and then the argument fuzzer. Leaks are not looked for: CPython itself leaves much at its exit;
tests/unit/_core/test_memory.py counts the core's own allocations instead.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import c_tests

ROOT = Path(__file__).resolve().parents[2]
FLAGS = """-shared -fPIC -std=c11 -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined
    -fno-sanitize-recover=undefined -fvisibility=hidden -ffp-contract=off -pthread
    -DPy_LIMITED_API=0x030B0000 -D_GNU_SOURCE -Iinclude -Icsrc""".split()
# Of _core: arguments, arrays, device, faults, fingerprint, fused, memory, out_of_memory, prepared,
# program, refusals; not what compares many values, signals processes or reads the symbols.
TESTS = ("_core/test_[adfmopr]", "conv/test_functional", "conv/test_prepared")
# Without the drift of reference counts: a matter of 10^4 calls, not of addresses.
CHOICE = "not counts_do_not_drift"
FILES = [str(p.relative_to(ROOT)) for t in TESTS for p in ROOT.glob(f"tests/unit/{t}*.py")]
PYTEST = ["-q", "-p", "no:cacheprovider", "-k", CHOICE, *FILES]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000, help="fuzzed cases a function")
    count = parser.parse_args().count
    compiler = os.environ.get("CC", "gcc")
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        for folder in ("csrc", "include", "hy3d_rocm", "tests"):
            shutil.copytree(
                ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("_core*.so")
            )
        for file in ("pyproject.toml", "setup.py"):
            shutil.copy(ROOT / file, tree)
        sources = sorted(str(p.relative_to(tree)) for p in tree.glob("csrc/**/*.c"))
        python = f"-I{sysconfig.get_path('include')}"
        target = "hy3d_rocm/_core.abi3.so"
        subprocess.run(
            [compiler, *FLAGS, python, *sources, "-o", target, "-ldl", "-lm"], cwd=tree, check=True
        )
        libraries = [
            subprocess.check_output([compiler, f"-print-file-name={lib}.so"], text=True).strip()
            for lib in ("libasan", "libubsan")
        ]
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(libraries),
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0",
            "PYTHONPATH": str(tree),
            c_tests.NAMED: str(c_tests.build()),
        }
        runs = [
            ["-m", "pytest", *PYTEST],
            ["tests/long/fuzz_arguments.py", "--count", str(count)],
        ]
        codes = [
            subprocess.run(
                [sys.executable, *run], cwd=tree, env=environment, check=False
            ).returncode
            for run in runs
        ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
