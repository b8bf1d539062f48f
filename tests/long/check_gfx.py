"""Every Triton kernel and tile that can be chosen on AMD, compiled, and its ISA checked. No GPU.

    python tests/long/check_gfx.py                        forty minutes of one core; --quick: ten
    python tests/long/check_gfx.py --arch gfx1100 --dtype f16 --every
    python tests/long/check_gfx.py --arch gfx1100 --dtype f16 --tile 128x128x64w8s2g8

A kernel passes that spills no register, uses no scratch memory, stays within 64 KB of LDS, and does
its products with what the architecture has for the dtype: WMMA, MFMA, v_dot2 (f16 on gfx1030), FMA
(f32 on RDNA). By default each tile is compiled in a selection of its variants in which each two
values of two constants meet that can meet; with --quick each value occurs once; --every compiles
them all. --tile looks at a tile that need not be offered. One line a tile: the worst of its
variants. docs/triton.md explains the columns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hy3d_rocm.conv.triton import configs  # noqa: E402
from hy3d_rocm.conv.triton.configs import Config  # noqa: E402
from tools.dev import compile as compiling  # noqa: E402
from tools.dev import isa, variants  # noqa: E402
from tools.dev.variants import Variant  # noqa: E402

CACHE = ROOT / "build" / "triton-gfx"
COLUMNS = ("arch", "dtype", "kernel", "tile", "variants", *isa.COLUMNS)


@dataclass
class Line:
    """What is known of one kernel and tile: the worst variant, and what is wrong."""

    arch: str
    dtype: str
    function: str
    tile: str
    count: int = 0
    worst: isa.Isa | None = None
    wrong: list[str] = field(default_factory=list)

    def add(self, variant: Variant, compiled: compiling.Compiled) -> None:
        self.count += 1
        if compiled.error is not None:
            self.wrong.append(f"{variant}: {compiled.error}")
            return
        found = compiled.isa()
        dtype = self.dtype if variant.arithmetic else None
        self.wrong += [f"{variant}: {words}" for words in isa.problems(found, dtype)]
        if self.worst is None or _badness(found) > _badness(self.worst):
            self.worst = found

    def cells(self) -> tuple[str, ...]:
        names = (self.arch, self.dtype, self.function, self.tile, str(self.count))
        return names + (isa.row(self.worst) if self.worst else ("-",) * len(isa.COLUMNS))


def _badness(found: isa.Isa) -> tuple[int, int, int, int]:
    spilled = found.spilled_vgprs + found.spilled_sgprs
    return spilled, found.scratch_bytes, -found.waves, found.total_vgprs


def check(
    asked: list[tuple[str, Variant]], *, workers: int | None = None, cache: Path = CACHE,
    progress: Callable[[int, int], None] | None = None,
) -> list[Line]:  # fmt: skip
    """Compiles (arch, variant) pairs; one Line a kernel and tile, in the order asked for."""
    lines: dict[tuple[str, str, str, str], Line] = {}
    named: dict[str, tuple[Variant, Line]] = {}
    jobs = []
    for arch, variant in asked:
        key = (arch, variant.dtype, variant.function, variant.tile)
        job = compiling.make_job(variant, arch)
        named[repr(job)] = (variant, lines.setdefault(key, Line(*key)))
        jobs.append(job)
    done = compiling.compile_all(jobs, workers=workers, cache_dir=cache, progress=progress)
    for compiled in done:
        variant, line = named[repr(compiled.job)]
        line.add(variant, compiled)
    return list(lines.values())


def subset(of: Collection[tuple[str, str]]) -> Iterator[tuple[str, Variant]]:
    """For `make test`: the first tile of each of these (architecture, dtype), in one variant."""
    for arch, dtype in of:
        tiles = configs.offered(arch, dtype)[:1]
        found = variants.variants(arch, dtype, tiles=tiles)
        yield from ((arch, v) for v in found if v.function == "conv_rows" and v.is_plain)


def refused() -> list[str]:
    """Architectures and dtypes where nothing is offered."""
    return [
        f"{arch} {dtype}"
        for arch in compiling.GFX_TARGETS
        for dtype in variants.DTYPES
        if not configs.offered(arch, dtype)
    ]


def table(rows: list[tuple[str, ...]]) -> str:
    """Columns as wide as what is in them."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _show_progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {of}", end="\n" if done == of else "", file=sys.stderr, flush=True)


def _asked(options: argparse.Namespace) -> list[tuple[str, Variant]]:
    tiles = [Config.parse(text) for text in options.tile] or None
    select = None if options.every else variants.values if options.quick else variants.pairs
    return [
        (arch, variant)
        for arch in options.arch
        for dtype in options.dtype
        for variant in variants.variants(arch, dtype, tiles=tiles, select=select)
        if not options.kernel or variant.function in options.kernel
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", nargs="+", default=list(compiling.GFX_TARGETS))
    parser.add_argument("--dtype", nargs="+", default=list(variants.DTYPES))
    parser.add_argument("--kernel", nargs="+", default=[], help="only these kernels")
    parser.add_argument("--tile", nargs="+", default=[], help="such as 128x128x32w8s2g8")
    parser.add_argument("--every", action="store_true", help="every variant; hours")
    parser.add_argument("--quick", action="store_true", help="each value of each constant once")
    parser.add_argument("--workers", type=int, help="compiler processes (all CPUs)")
    options = parser.parse_args()
    start = time.perf_counter()
    lines = check(_asked(options), workers=options.workers, progress=_show_progress)
    print(table([COLUMNS, *(line.cells() for line in lines)]))
    for name in refused():
        print(f"{name}: nothing is offered; the tier refuses")
    wrong = [f"{line.arch} {words}" for line in lines for words in line.wrong]
    for words in wrong:
        print("FAILED", words)
    count = sum(line.count for line in lines)
    print(
        f"{count} kernels compiled for {len({line.arch for line in lines})} architectures in "
        f"{time.perf_counter() - start:.0f} s, {len(wrong)} failed: {'FAIL' if wrong else 'pass'}"
    )
    return 1 if wrong or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
