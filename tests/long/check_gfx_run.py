"""Every Triton kernel and tile that can be chosen on AMD, executed: its machine code, on the
emulator (tools/dev/gfx), launched by the package's own code, its results held against float64.

    python tests/long/check_gfx_run.py              six targets, every dtype: hours of a core
    python tests/long/check_gfx_run.py --arch gfx1100 --dtype f16 --select values
    python tests/long/check_gfx_run.py --arch gfx1100 --dtype f16 --find "conv_rows 128x128"

The variants are those that check_gfx.py and check_fused_gfx.py compile; by default a selection in
which each two values of two constants meet. Each is launched twice by a convolution or a job of the
fused decode that the enumeration found it in: on small integers, where every bit must agree, and on
reals, within the bound of docs/numerics.md (of norms and SiLU on reals alone). An access outside of
the launch's tensors, a register read before its load was waited for and an instruction that the
emulator does not know are faults. One line a kernel (--markdown: as a table of the docs has
it); status 1 unless every variant was executed and is right. With --device cpu, in a process that
has TRITON_INTERPRET=1, the same launches are interpreted: it says whether a difference is the
compiler's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "long"), str(ROOT / "tests" / "support")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

import check_fused_gfx  # noqa: E402
import check_gfx  # noqa: E402
import gfx_layers  # noqa: E402
import gfx_problems  # noqa: E402
from children import run_children  # noqa: E402
from triton_device import INTERPRETER, Watch  # noqa: E402

from hy3d_rocm.conv.triton import configs  # noqa: E402
from tools.dev import variants  # noqa: E402

ARCHES = ("gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201", "gfx942")
SELECTIONS: dict[str, Any] = {
    "values": variants.values, "pairs": variants.pairs, "every": lambda found: found,
}  # fmt: skip
COLUMNS = (
    "arch", "dtype", "kernel", "variants", "executed", "differing", "outside", "hazards", "other",
    "values", "of bound", "launches", "instructions", "s",
)  # fmt: skip
SEED = 5


@dataclass
class Row:
    """One kernel of an architecture and dtype. Of its variants: how many were asked for and
    executed, and how many of those differ, reach outside of memory, break a rule of timing, or
    failed otherwise."""

    arch: str
    dtype: str
    kernel: str
    asked: int = 0
    executed: int = 0
    differing: int = 0
    outside: int = 0
    hazards: int = 0
    other: int = 0
    compared: int = 0
    of_bound: float = 0.0
    launches: int = 0
    instructions: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.arch, self.dtype, self.kernel

    def add(self, other: Row) -> None:
        """That of another process."""
        for name in ("asked", "executed", "differing", "outside", "hazards", "other", "compared",
                     "launches", "instructions", "seconds", "wrong"):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.of_bound = max(self.of_bound, other.of_bound)

    def cells(self) -> tuple[str, ...]:
        counts = (self.asked, self.executed, self.differing, self.outside, self.hazards, self.other,
                  self.compared)  # fmt: skip
        ends = f"{self.of_bound:.3f}", str(self.launches), str(self.instructions)
        return (*self.key, *map(str, counts), *ends, f"{self.seconds:.1f}")

    @property
    def is_right(self) -> bool:
        return not self.wrong and self.asked == self.executed


def asked(arch: str, dtype: str, options: argparse.Namespace) -> Iterator[tuple[Any, Any, Any]]:
    """Each variant with its source, and the module that runs it."""
    select = SELECTIONS[options.select]
    tiles = list(configs.offered(arch, dtype))
    found: list[tuple[Any, Any, Any]] = [
        *((*one, gfx_problems) for one in variants.sources(arch, dtype, select=select).items()),
        *(
            (*one, gfx_layers)
            for one in check_fused_gfx.sources(arch, dtype, tiles, select).items()
        ),
    ]
    for variant, source, module in found:
        if options.find in str(variant):
            yield variant, source, module


class Runner:
    """Runs the variants of one architecture and dtype in this process."""

    def __init__(self, arch: str, dtype: str, watch: Watch) -> None:
        self.arch, self.dtype, self.watch = arch, dtype, watch
        self.rows: dict[str, Row] = {}
        self.done: set[Any] = set()

    def run(self, variant: Any, source: Any, module: Any) -> None:
        """One variant, unless it was executed beside another, and the result was right."""
        row = self.rows.setdefault(
            variant.function, Row(self.arch, self.dtype, variant.function)
        )  # fmt: skip
        row.asked += 1
        wanted = self.key_of(variant)
        if wanted in self.done:
            row.executed += 1
            return
        start, before = time.perf_counter(), len(self.launched())
        if module is gfx_problems:
            source = gfx_problems.wide_enough(variant, source, self.arch)
        result, words = gfx_problems.Result(), None
        try:
            for one in module.run(variant, source, self.arch, SEED):
                result.add(one)
        except Exception as error:  # noqa: BLE001 - told with the others
            words = f"{type(error).__name__}: {error}"
            kind = kind_of(error)
            setattr(row, kind, getattr(row, kind) + 1)
        launched = self.launched()[before:]
        row.seconds += time.perf_counter() - start
        row.compared += result.compared
        row.of_bound = max(row.of_bound, result.of_bound)
        self._count(row, launched)
        kernels = {self.key_of_launch(one) for one in launched}
        if words is None and wanted not in kernels:
            words = "its source launches other kernels"
            row.other += 1
        row.executed += wanted in kernels
        if words is None and not result.is_right:
            row.differing += 1
            words = (
                f"{result.differing} of {result.compared} values differ,"
                f" {result.of_bound:.3g} of the bound"
            )
        if words is not None:
            row.wrong.append(f"{variant}: {words}")
        else:
            self.done |= kernels

    def launched(self) -> list[Any]:
        watched = self.watch.watched
        return watched.items if self.watch.device == INTERPRETER else watched.launches

    def _count(self, row: Row, launched: list[Any]) -> None:
        row.launches += len(launched)
        if self.watch.device != INTERPRETER:
            row.instructions += sum(one.counts.instructions for one in launched)

    def key_of(self, variant: Any) -> Any:
        """What a launch must have been compiled for; the interpreter knows no forms."""
        if self.watch.device == INTERPRETER:
            return variant.function, variant.constants, variant.num_warps, variant.num_stages
        from tools.dev.gfx.driver import Kernel

        return Kernel.of(variant)

    def key_of_launch(self, one: Any) -> Any:
        return one.compiled_for if self.watch.device == INTERPRETER else one.kernel


def kind_of(error: Exception) -> str:
    """The column that an error is counted in."""
    kind = "bounds" if isinstance(error, IndexError) else getattr(error, "kind", "")
    return {"bounds": "outside", "hazard": "hazards"}.get(kind, "other")


def interpreted() -> Watch:
    """The interpreter, noting launches; `watched.items` are theirs."""
    from hy3d_rocm.conv.triton import jit

    watch = Watch(INTERPRETER)
    watch.watched.items = []
    launch = jit.launch

    def noted(item: Any, operands: Any) -> Any:
        watch.watched.items.append(item)
        return launch(item, operands)

    jit.launch = noted
    return watch


def run_child(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every options.workers-th variant from options.first on, of each architecture and dtype."""
    import torch

    torch.set_num_threads(1)
    rows: list[Row] = []
    for arch in options.arch:
        watch = interpreted() if options.device == INTERPRETER else Watch(arch)
        for dtype in options.dtype:
            runner = Runner(arch, dtype, watch)
            chosen = list(asked(arch, dtype, options))[options.first :: options.workers]
            for variant, source, module in chosen[: options.most]:
                runner.run(variant, source, module)
                if options.verbose:
                    print(runner.rows[variant.function].cells(), variant, file=sys.stderr)
            rows += runner.rows.values()
        if options.device != INTERPRETER:
            if unlisted := watch.unlisted():
                rows.append(Row(arch, "all", "instructions", wrong=unlisted))
            watch.figures()
            watch.watched.remove()
    return [vars(row) for row in rows]


def spawn(options: argparse.Namespace) -> list[Row]:
    """The rows of options.workers processes. RuntimeError if one fails."""
    given = ["--select", options.select, "--find", options.find, "--device", options.device]
    given += ["--arch", *options.arch, "--dtype", *options.dtype, "--most", str(options.most)]
    interpret = options.device == INTERPRETER
    parts = run_children(
        __file__, given, 0, options.workers, options.workers, interpret=interpret
    )  # fmt: skip
    rows: dict[tuple[str, str, str], Row] = {}
    for part in parts:
        for fields in part:
            row = Row(**fields)
            if row.key in rows:
                rows[row.key].add(row)
            else:
                rows[row.key] = row
    order = [(arch, dtype) for arch in options.arch for dtype in (*options.dtype, "all")]
    return sorted(rows.values(), key=lambda row: order.index((row.arch, row.dtype)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", nargs="+", default=list(ARCHES))
    parser.add_argument("--dtype", nargs="+", default=list(variants.DTYPES))
    parser.add_argument("--select", choices=list(SELECTIONS), default="pairs")
    parser.add_argument("--find", default="", help="only variants whose text has this")
    parser.add_argument("--most", type=int, default=10**9, help="variants a process and dtype")
    parser.add_argument("--device", default="", help="cpu: Triton's interpreter")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--markdown", action="store_true", help="rows as in docs/amd_truth.md")
    parser.add_argument("--verbose", action="store_true", help="each variant, with --child")
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_child(options)))
        return 0
    start = time.perf_counter()
    rows = spawn(options)
    lines = [COLUMNS, *(row.cells() for row in rows)]
    if options.markdown:
        lines.insert(1, ("---",) * len(COLUMNS))
        print("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    else:
        print(check_gfx.table(lines))
    for row in rows:
        for words in row.wrong:
            print("FAILED", row.arch, words)
    wrong = sum(not row.is_right for row in rows)
    print(
        f"{sum(row.executed for row in rows)} of {sum(row.asked for row in rows)} variants executed"
        f" in {sum(row.launches for row in rows)} launches,"
        f" {sum(len(row.wrong) for row in rows)} of them wrong;"
        f" {time.perf_counter() - start:.0f} s: {'FAIL' if wrong or not rows else 'pass'}"
    )
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
