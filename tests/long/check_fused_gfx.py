"""The fused backend's kernels compiled for AMD architectures, and their ISA checked. No GPU.

    python tests/long/check_fused_gfx.py      (--quick: each value of each constant once)
    python tests/long/check_fused_gfx.py --arch gfx1100 --dtype f16 --tile 128x128x32w8s2g8

What check_gfx.py does for the convolution tier: no spill, no scratch, LDS within 64 KB, the right
matrix instruction. The variants are harvested from the launches that work.py makes of jobs that
reach each of its decisions; of those a selection in which each two values of two constants meet.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "long")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

import check_gfx  # noqa: E402

from hy3d_rocm.conv.triton import configs, work  # noqa: E402
from hy3d_rocm.conv.triton.configs import Config  # noqa: E402
from hy3d_rocm.conv.triton.work import (  # noqa: E402
    Job,
    Piece,
    Strides,
    last_strides,
)
from hy3d_rocm.decoding.backends.triton import launches  # noqa: E402
from tools.dev import isa, variants  # noqa: E402
from tools.dev.variants import Variant  # noqa: E402

ARCHES = ("gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1201")
CACHE = ROOT / "build" / "triton-gfx"
# Of the forms of a tier's pointers.
FORMS = {
    name: variants._FORMS[name]
    for name in ("small", "large input", "large output", "input unaligned", "output unaligned")
}


@dataclasses.dataclass(frozen=True)
class Source:
    """A job among whose launches a variant is, in the form "small". last: its result is
    channels-last."""

    job: Job
    last: bool
    tile: Config

    @property
    def out(self) -> Strides:
        """Strides of the result."""
        high, wide = self.job.out_size
        plain = (self.job.out_frames * high * wide, high * wide, wide, 1)
        return last_strides(self.job.outputs, self.job.out_size) if self.last else plain

    def work(self, arch: str) -> work.Work:
        """Its launches, on one compute unit."""
        return work.work_of(self.job, work.Target(arch, 1, tile=self.tile), self.out)


def _job(dtype: str, channels: int, outputs: int, last: bool, **fields: Any) -> Job:
    high, wide = size = fields.get("size", (8, 9))
    plain = (4 * high * wide, high * wide, wide, 1)
    strides = last_strides(channels, size) if last else plain
    base: dict[str, Any] = {
        "dtype": dtype, "channels": channels, "outputs": outputs, "kernel": (3, 3, 3), "size": size,
        "pieces": (Piece(4, strides, True),), "first": 0, "total": 4, "frames": (0, 4),
        "before": (2, 1, 1), "after": (0, 1, 1),
    }  # fmt: skip
    return Job(**(base | fields))


def conv_jobs(dtype: str) -> Iterator[tuple[Job, bool]]:
    """Jobs that reach each decision about conv_rows, and whether the result is channels-last."""
    flags = (False, True)
    ones = {"kernel": (1, 1, 1), "before": (0, 0, 0), "after": (0, 0, 0)}
    up = {"up": (2, 2, 2), "keep_first": True, "replicate": (True,) * 3}
    for channels, outputs, bias, add, moments, last in itertools.product(
        (128, 136), (128, 20), flags, flags, flags, flags
    ):
        if add and (outputs % 8 or not last):
            continue  # added by torch, or copied first (backend.py)
        rest = {"bias": bias, "add": add, "moments": moments}
        for more in ({}, up, {"shuffle": (1, 2, 2)}, {"stride": (1, 2, 2), "size": (15, 17)}):
            yield _job(dtype, channels, outputs, True, **rest, **more), last
        yield _job(dtype, channels, outputs, True, **rest, **ones), last
    many = {"size": (128, 130), "moments": True}
    yield _job(dtype, 128, 128, True, **many, **ones), True  # moments of many tiles


def load_jobs(dtype: str) -> Iterator[tuple[Job, bool]]:
    """The same for load_rows: norms, layouts, widths, up-sampling by index, padding."""
    widths, norms = (8, 20, 48, 64, 96, 128, 384, 1024), ("", "rms", "l2", "layer")
    both = (False, True)
    for channels, norm, affine, silu, last in itertools.product(widths, norms, both, both, both):
        for up, keep in (((1, 1, 1), False), ((2, 1, 1), True), ((1, 2, 3), False)):
            more = {"norm": norm, "affine": affine, "silu": silu, "up": up, "keep_first": keep}
            for sides in ((False,) * 3, (True,) * 3):
                yield _job(dtype, channels, 64, last, replicate=sides, **more), True


def _harvest(arch: str, dtype: str, tile: Config, made: Any) -> dict[Variant, Source]:
    """The variants, each with the first job that launches it."""
    found: dict[Variant, Source] = {}
    for job, last in made:
        source = Source(job, last, tile)
        assert work.refusal(job) is None
        assert work.view_of(job).rows
        for item in source.work(arch).launches:
            found.setdefault(variants.of_launch(item, dtype), source)
    return found


def every(arch: str, dtype: str, tiles: list[Config], select: Any) -> Iterator[Variant]:
    """What is to be compiled for one architecture and dtype."""
    yield from sources(arch, dtype, tiles, select)
    yield from attentions(arch, dtype)
    yield from factors(dtype)
    yield from packings(dtype)


def packings(dtype: str) -> list[Variant]:
    """The one of pack_weight."""
    work = launches.pack_of(
        dtype, 16, 96, 96, (3, 3, 3), (2, 2, 2), (True, True), (0, 0, 0, 1, 1, 1, 1, 1)
    )
    return [variants.of_launch(item, dtype) for item in work.launches]


def factors(dtype: str) -> list[Variant]:
    """Of group_factors, all that differ: parameters, and the width of a group."""
    return [
        variants.of_launch(item, dtype)
        for of, size in itertools.product(itertools.product(("", dtype), repeat=2), (16, 24, 1024))
        for item in launches.factors_of(size, 1, ((3, 100),), 1e-6, of).launches
    ]


def attentions(arch: str, dtype: str) -> list[Variant]:
    """Of attend, all that differ: widths of a head, whole or not, and layouts of the result."""
    if configs.attention(arch, dtype) is None:
        return []
    made = [
        launches.attention_of(
            launches.AttentionJob(dtype, size, 1, 2, 40, 0, 0, 40, 40, 80 * size, 80 * size, out),
            arch,
        )
        for size in (264, 384, 512, 1024)
        for out in ((size, size, 1), (80 * size, 1, 80))
    ]
    found = dict.fromkeys(variants.of_launch(item, dtype) for one in made for item in one.launches)
    return [dataclasses.replace(v, form=form) for v in found for form in ("small", "large input")]


def sources(
    arch: str, dtype: str, tiles: list[Config], select: Any
) -> dict[Variant, Source]:  # fmt: skip
    """The same, each with a job that launches it in the form "small"."""
    return dict(_sources(arch, dtype, tuple(tiles), select))


@functools.lru_cache(maxsize=4)
def _sources(
    arch: str, dtype: str, tiles: tuple[Config, ...], select: Any
) -> Mapping[Variant, Source]:  # fmt: skip
    return variants.picked(_by_tile(arch, dtype, tiles), select)


@functools.lru_cache(maxsize=4)
def _by_tile(
    arch: str, dtype: str, tiles: tuple[Config, ...]
) -> tuple[Mapping[Variant, Source], ...]:
    """The variants of each tile; those of load_rows are the first one's."""
    made = []
    for k, tile in enumerate(tiles):
        found = _harvest(arch, dtype, tile, conv_jobs(dtype))
        if k == 0:
            for v, source in _harvest(arch, dtype, tile, load_jobs(dtype)).items():
                found.setdefault(v, source)
        else:
            found = {v: source for v, source in found.items() if v.function == "conv_rows"}
        made.append({
            dataclasses.replace(v, form=form): source
            for v, source in found.items()
            for form, differing in FORMS.items()
            if set(differing) <= set(v.operands)
            and not (form == "output unaligned" and v.constexprs.get("ADD"))
        })  # fmt: skip
    return tuple(made)


def subset() -> Iterator[tuple[str, Variant]]:
    """For `make test`: the heaviest store of the first tile of some architectures."""
    for arch, dtype in (("gfx942", "f16"), ("gfx1030", "f16"), ("gfx1100", "bf16"),
                        ("gfx1151", "f32"), ("gfx1201", "bf16")):  # fmt: skip
        tile = configs.offered(arch, dtype)[0]
        job = _job(dtype, 128, 128, True, add=True, moments=True, bias=True, affine=True, silu=True)
        for item in _harvest(arch, dtype, tile, [(job, True)]):
            if arch == "gfx1100" or item.function == "conv_rows":
                yield arch, item
        yield from ((arch, item) for item in (
            *attentions(arch, dtype)[2:3], factors(dtype)[-1], packings(dtype)[-1]
        ))  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", nargs="+", default=list(ARCHES))
    parser.add_argument("--dtype", nargs="+", default=list(variants.DTYPES))
    parser.add_argument("--kernel", nargs="+", default=[], help="only these kernels")
    parser.add_argument("--tile", nargs="+", default=[], help="such as 128x128x32w8s2g8")
    parser.add_argument("--quick", action="store_true", help="each value of each constant once")
    parser.add_argument("--workers", type=int, default=2, help="compiler processes")
    options = parser.parse_args()
    start = time.perf_counter()
    select: Any = variants.values if options.quick else variants.pairs
    asked = [
        (arch, variant)
        for arch in options.arch
        for dtype in options.dtype
        for variant in every(
            arch, dtype,
            [Config.parse(text) for text in options.tile] or list(configs.offered(arch, dtype)),
            select,
        )
        if not options.kernel or variant.function in options.kernel
    ]  # fmt: skip
    lines = check_gfx.check(
        asked, workers=options.workers, cache=CACHE, progress=check_gfx._show_progress
    )
    print(check_gfx.table([check_gfx.COLUMNS, *(line.cells() for line in lines)]))
    wrong = [f"{line.arch} {words}" for line in lines for words in line.wrong]
    for words in wrong:
        print("FAILED", words)
    print(
        f"{sum(line.count for line in lines)} kernels compiled for {len(options.arch)}"
        f" architectures in {time.perf_counter() - start:.0f} s, {len(wrong)} failed:"
        f" {'FAIL' if wrong or not lines else 'pass'}"
    )
    return 1 if wrong or not lines else 0


if __name__ == "__main__":
    assert isa.COLUMNS
    assert configs.is_known("gfx1100")
    sys.exit(main())
