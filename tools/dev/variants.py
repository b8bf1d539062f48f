"""Every kernel that the tier may launch on an architecture, enumerable without a GPU (those of the
fused decode: tests/long/check_fused_gfx.py).

What is launched is decided by steps.py, so it is asked: a set of small problems reaches each of its
decisions, and the launches that come back, with each tile that configs.py offers, are the variants.
(tests/unit/conv/triton/test_variants.py holds it to that: random problems launch nothing else.) A
kernel is also compiled anew for what Triton knows of its pointers, so each comes in several forms.
"""

from __future__ import annotations

import functools
import heapq
import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hy3d_rocm.conv.problem import Problem
from hy3d_rocm.conv.triton import configs, steps
from hy3d_rocm.conv.triton.configs import Config
from hy3d_rocm.conv.triton.plan import (
    KERNELS,
    PLAIN,
    FiveStrides,
    Launch,
    Layout,
    plain_strides,
)
from hy3d_rocm.conv.triton.work import Target
from hy3d_rocm.decoding.backends.triton.launches import KERNELS as DECODE_KERNELS

V = TypeVar("V")
S = TypeVar("S")

DTYPES = ("f16", "bf16", "f32")
# Constants that follow the shape without end (steps of a tap, size of the kernel): a few values
# stand for all, since they only change by what a number is divided.
FREE = ("CHUNKS", "KH", "KW")
_TYPES = {"f16": "*fp16", "bf16": "*bf16", "f32": "*fp32"}
_FLOATS = dict.fromkeys(("sums", "factor", "summand", "parts"), "*fp32") | {"moments": "*fp64"}
_ITEMSIZE = {"f16": 2, "bf16": 2, "f32": 4}
# Triton's letters: D, an address divisible by 16; S, a tensor below 2 GiB. What differs from both.
_FORMS: Mapping[str, Mapping[str, str]] = {
    "small": {},
    "large input": {"x": "D"},
    "large output": {"out": "D"},
    "input unaligned": {"x": "S"},
    "output unaligned": {"out": "S"},
    "bias unaligned": {"bias": "S"},
    "large weight": {"unpacked": "D"},
    "weight unaligned": {"unpacked": "S"},
}
# Kernels that copy: what they read may be unaligned.
_COPIES = ("load_rows", "load_rows_and_weight")
FORMS = tuple(_FORMS)


@dataclass(frozen=True)
class Variant:
    """A kernel with its constants; satisfies compile.Variant. operands: the tensor behind each
    pointer; pieces of the source are all "x"."""

    function: str
    dtype: str
    operands: tuple[str, ...]
    constants: tuple[Any, ...]
    num_warps: int
    num_stages: int
    form: str = "small"

    @property
    def module(self) -> str:
        return _module_of(self.function)

    @property
    def constexprs(self) -> dict[str, Any]:
        names = [name for name, kind in _parameters(self.function).items() if kind == "constexpr"]
        return dict(zip(names, self.constants, strict=True))

    @property
    def signature(self) -> dict[str, str]:
        kinds = _parameters(self.function)
        real = ("eps", "scale")
        found = {name: "fp32" if name in real else kind or "i32" for name, kind in kinds.items()}
        for name, operand in zip(kinds, self.operands, strict=False):
            found[name] = _FLOATS.get(operand, _TYPES[self.dtype])
        return found

    @property
    def attributes(self) -> dict[str, str]:
        differing = _FORMS[self.form]
        names = zip(_parameters(self.function), self.operands, strict=False)
        return {name: differing.get(operand, "DS") for name, operand in names}

    @property
    def generic(self) -> Variant:
        """The variant without what follows the shape alone: FREE constants are 0."""
        values = tuple(0 if name in FREE else v for name, v in self.constexprs.items())
        return replace(self, constants=values)

    @property
    def arithmetic(self) -> bool:
        """Whether it multiplies matrices (the others copy and add)."""
        return self.function.startswith("conv_") or self.function == "attend"

    @property
    def is_plain(self) -> bool:
        """The commonest: a padded 3x3x3 on NCDHW with a bias, channels in whole steps."""
        found = self.constexprs
        on = ("EVEN_K", "FLAT", "BIAS")
        off = ("CHANNELS_LAST", "SPLIT", "GROUPED", "ADD", "MOMENTS")
        flags = all(found.get(n, True) for n in on) and not any(found.get(n) for n in off)
        return flags and self.form == "small"

    def __str__(self) -> str:
        flags = [f"{n}={v}" for n, v in self.constexprs.items() if len(n) > 2 and n != "GROUP"]
        return f"{self.function} {self.tile} {self.dtype} {' '.join(flags)} ({self.form})"

    @property
    def tile(self) -> str:
        found = self.constexprs
        names = ("BP", "BM", "BN", "BK", "BD", "BW", "BC", "BW_W", "BC_W", "BT", "DA", "DB")
        sizes = [str(found[name]) for name in names if name in found]
        return f"{'x'.join(sizes)}w{self.num_warps}s{self.num_stages}"


@dataclass(frozen=True)
class Source:
    """A convolution among whose launches a variant is, in the form "small"."""

    problem: Problem
    layout: Layout
    has_bias: bool
    units: int
    tile: Config

    def steps(self, arch: str, dtype: str) -> steps.Steps:
        """Its launches."""
        target = Target(arch, self.units, tile=self.tile)
        return steps.make_steps(self.problem, self.layout, dtype, self.has_bias, target)


def _module_of(function: str) -> str:
    return DECODE_KERNELS if function in ("attend", "group_factors", "pack_weight") else KERNELS


@functools.cache
def _parameters(function: str) -> dict[str, str]:
    """Parameters in order: "constexpr", an annotated type such as "i64", or "" for the others."""
    from triton.runtime.jit import JITFunction

    module = importlib.import_module(_module_of(function))
    # Under the interpreter the module has functions of another class.
    compiled = JITFunction(getattr(module, function).fn)
    return {p.name: "constexpr" if p.is_constexpr else p.annotation_type for p in compiled.params}


def _base(dtype: str) -> Problem:
    return Problem(
        batch=1, channels=64, outputs=64, groups=1, size=(4, 9, 9), kernel=(3, 3, 3),
        stride=(1, 1, 1), dilation=(1, 1, 1), pad_before=(0, 0, 0), pad_after=(0, 0, 0),
        itemsize=_ITEMSIZE[dtype],
    )  # fmt: skip


def _problems(dtype: str) -> Iterator[tuple[Problem, Layout, bool]]:
    """Problems, layouts and has_bias that reach each decision of steps.py."""
    base = _base(dtype)
    both = (False, True)
    flags = itertools.product((64, 72), (64, 20), (1, 2), (1, 2), both, both, both)
    for channels, outputs, groups, stride, direct, last, bias in flags:
        p = replace(base, channels=channels, outputs=outputs, groups=groups, stride=(stride,) * 3)
        yield p, _layout(p, direct, last), bias
    for channels, outputs, direct, bias in itertools.product((64, 72), (1, 2, 3, 5), both, both):
        few = replace(base, channels=channels, outputs=outputs)
        yield few, _layout(few, direct, False), bias
    for channels, direct, twice in itertools.product((64, 72), both, both):
        one, pace = replace(base, channels=channels, outputs=1), (1, 2, 2)
        one = replace(one, stride=pace) if twice else replace(one, dilation=pace)
        yield one, _layout(one, direct, False), False
    for channels, bias in itertools.product((64, 72), both):
        one = replace(base, channels=channels, kernel=(1, 1, 1), size=(4, 8, 8))
        yield one, _layout(one, False, False), bias
        yield replace(one, stride=(2, 2, 2)), _layout(one, True, True), bias


def _copies(dtype: str) -> Iterator[tuple[Problem, Layout, bool]]:
    """What load_rows is compiled for, whatever the tile: block shapes, strides."""
    base = _base(dtype)
    widths = (8, 24, 48, 64, 96, 128, 4, 20, 44, 60, 92, 124)  # whole vectors, and not
    for channels, last in itertools.product(widths, (False, True)):
        p = replace(base, channels=channels)
        layout = _layout(p, last, last)
        yield p, replace(layout, aligned=False), False
        # Strides of a view that is contiguous in nothing, or (with channels last) in both.
        x = (*layout.x[:4], 1 if last else 2)
        yield p, replace(layout, x=x, aligned=False), False


def _packings(dtype: str) -> Iterator[tuple[Problem, Layout, bool]]:
    """What packs a weight: each tile of it, what is contiguous, beside rows or alone."""
    for kernel, direct, lies in itertools.product(
        ((3, 1, 1), (1, 3, 3), (3, 3, 3)), (False, True), (plain_strides, _last, _spread)
    ):
        p = replace(_base(dtype), kernel=kernel)
        # Unaligned, so that channels-last weights are copied too.
        yield p, replace(_layout(p, direct, False), weight=lies(p), weight_aligned=False), False


def _last(p: Problem) -> FiveStrides:
    """A channels-last weight."""
    return _strides(p.kernel, p.channels, True)


def _spread(p: Problem) -> FiveStrides:
    """One that is contiguous in nothing."""
    (_, kh, kw), tap = p.kernel, 2 * p.channels * p.cout
    return (2 * p.channels, 2, kh * kw * tap, kw * tap, tap)


def _with_packing(
    found: Mapping[Variant, Source], arch: str
) -> Iterator[tuple[Variant, Source]]:  # fmt: skip
    """Each copy into rows alone, as for a second box, and beside each packing, as for a first, if
    there is a convolution that launches both."""
    packs, copies = dict[Variant, Source](), dict[Variant, Source]()
    for v, source in found.items():
        if v.function == "load_rows" and v.operands[0] == "unpacked":
            packs[v] = source
        elif v.function == "load_rows_and_weight":
            operands, constants = ("x", *("rows",) * 3), (*PLAIN, *v.constants[:4])
            alone = replace(v, function="load_rows", operands=operands, constants=constants)
            copies[alone] = replace(source, problem=replace(source.problem, batch=2))
    yield from copies.items()
    yield from packs.items()
    for (rows, source), (pack, packing) in itertools.product(copies.items(), packs.items()):
        both = replace(
            rows, function="load_rows_and_weight",
            operands=(*rows.operands[:2], *pack.operands[:2]),
            constants=(*rows.constants[-4:], *pack.constants[-4:]),
        )  # fmt: skip
        made = _packed_as(replace(source, problem=replace(source.problem, batch=1)), packing)
        if any(of_launch(item, v.dtype) == both for item in made.steps(arch, v.dtype).launches):
            yield both, made


def _packed_as(source: Source, packing: Source) -> Source:
    """The same with the kernel of another problem, and a weight that lies as there."""
    p = replace(source.problem, kernel=packing.problem.kernel)
    there = packing.problem
    lies = next(f for f in (plain_strides, _last, _spread) if f(there) == packing.layout.weight)
    layout = replace(_with_size(source.layout, p), weight=lies(p), weight_aligned=False)
    return replace(source, problem=p, layout=layout)


def _with_size(layout: Layout, p: Problem) -> Layout:
    """The layout with the strides of the output that follow from the problem's sizes."""
    return replace(layout, out=_layout(p, False, layout.out[1] == 1).out)


def _layout(p: Problem, x_last: bool, out_last: bool) -> Layout:
    channels, outputs = p.channels * p.groups, p.outputs * p.groups
    return Layout(_strides(p.size, channels, x_last), _strides(p.out, outputs, out_last), True)


def _strides(size: tuple[int, int, int], channels: int, last: bool) -> FiveStrides:
    t, h, w = size
    if last:
        return (t * h * w * channels, 1, h * w * channels, w * channels, channels)
    return (channels * t * h * w, t * h * w, h * w, w, 1)


def _harvest(
    arch: str, dtype: str, config: Config, problems: Iterable[tuple[Problem, Layout, bool]]
) -> dict[Variant, Source]:
    """The variants that the problems launch with one tile, in the form "small", each with the first
    problem that does. (1x1x1 in place takes another for a tile of 96 or 192 channels.)"""
    found: dict[Variant, Source] = {}
    for p, layout, bias in problems:
        for units in (1, 4096):  # few units: never in parts; many: in parts where that is possible
            source = Source(p, layout, bias, units, config)
            for item in source.steps(arch, dtype).launches:
                if item.kernel != "conv_points" or not config.is_in_two:
                    found.setdefault(of_launch(item, dtype), source)
    return found


def of_launch(item: Launch, dtype: str) -> Variant:
    """The variant that a launch needs, in the form "small"."""
    operands = tuple("x" if name.startswith("x") else name for name, _ in item.operands)
    return Variant(
        item.kernel, dtype, operands, item.constants, item.num_warps, item.num_stages
    )  # fmt: skip


def _forms(variant: Variant) -> list[str]:
    """How its pointers can be. Workspaces are small and aligned; an absent bias isn't read."""
    operands = set(variant.operands)
    found = [form for form, differing in _FORMS.items() if differing.keys() <= operands]
    if variant.function not in _COPIES and "x" in operands:  # reads in place only what is aligned
        found.remove("input unaligned")
    if not variant.constexprs.get("BIAS") and "bias" in operands:
        found.remove("bias unaligned")
    return found


def variants(
    arch: str, dtype: str, *, tiles: Iterable[Config] | None = None,
    select: Callable[[list[Variant]], list[Variant]] | None = None,
) -> list[Variant]:  # fmt: skip
    """All variants of an architecture and dtype; with `select` what it picks for each tile.

    tiles: instead of those that are offered.
    """
    return list(sources(arch, dtype, tiles=tiles, select=select))


def sources(
    arch: str, dtype: str, *, tiles: Iterable[Config] | None = None,
    select: Callable[[list[Variant]], list[Variant]] | None = None,
) -> dict[Variant, Source]:  # fmt: skip
    """The same, each with a convolution that launches it in the form "small"."""
    offered = configs.offered(arch, dtype) if tiles is None else tiles
    return dict(_sources(arch, dtype, tuple(offered), select or list))


@functools.lru_cache(maxsize=4)
def _sources(
    arch: str, dtype: str, offered: tuple[Config, ...],
    select: Callable[[list[Variant]], list[Variant]],
) -> Mapping[Variant, Source]:  # fmt: skip
    return picked(_by_tile(arch, dtype, offered), select)


def picked(by_tile: Iterable[Mapping[V, S]], select: Callable[[list[V]], list[V]]) -> dict[V, S]:
    """What `select` picks of each tile's variants, each with its first source."""
    found: dict[V, S] = {}
    for every in by_tile:
        for v in select(list(every)):
            found.setdefault(v, every[v])
    return found


@functools.lru_cache(maxsize=4)
def _by_tile(
    arch: str, dtype: str, offered: tuple[Config, ...]
) -> tuple[Mapping[Variant, Source], ...]:
    """The variants of each tile; those that no tile changes are the first one's."""
    found = []
    for config in offered:
        mine = _harvest(arch, dtype, config, _problems(dtype))
        if config is offered[0]:
            others = itertools.chain(_copies(dtype), _packings(dtype))
            found_here = _harvest(arch, dtype, config, others)
            for v, source in _with_packing(found_here, arch):
                mine.setdefault(v, source)
        found.append({
            v if f == v.form else replace(v, form=f): source
            for v, source in mine.items() for f in _forms(v)
        })  # fmt: skip
    return tuple(found)


def pairs(every: list[Variant]) -> list[Variant]:
    """A selection in which each two values of two constants meet that meet anywhere.

    Registers depend on few constants at a time, so that most faults show; the same for each run.
    """
    return _covering(every, 2)


def values(every: list[Variant]) -> list[Variant]:
    """A smaller selection, in which each value of each constant occurs."""
    return _covering(every, 1)


def _covering(every: list[Variant], strength: int) -> list[Variant]:
    """Greedily, of each kernel, until every combination of `strength` values has occurred."""
    chosen: list[Variant] = []
    for function in dict.fromkeys(v.function for v in every):
        mine = [v for v in every if v.function == function]
        members = _numbered([_values_of(v) for v in mine], strength)
        missing = set().union(*members)
        # A member brings no more than it did when it was last counted, so that few are counted
        # again: the first of the heap is the best if its count still holds.
        heap = [(-len(numbers), k) for k, numbers in enumerate(members)]
        heapq.heapify(heap)
        while missing:
            counted, k = heap[0]
            brought = -len(members[k] & missing)
            if brought != counted:
                heapq.heapreplace(heap, (brought, k))
                continue
            heapq.heappop(heap)
            missing -= members[k]
            chosen.append(mine[k])
    return chosen


def _numbered(rows: list[tuple[Any, ...]], strength: int) -> list[set[int]]:
    """The combinations of each row, each combination as a number."""
    numbers: dict[tuple[int, Any], int] = {}
    by_value = [[numbers.setdefault(one, len(numbers)) for one in enumerate(row)] for row in rows]
    if strength == 1:
        return [set(row) for row in by_value]
    assert strength == 2
    many = len(numbers)
    return [{a * many + b for a, b in itertools.combinations(row, 2)} for row in by_value]


def _values_of(variant: Variant) -> tuple[Any, ...]:
    return (*variant.operands, *variant.constants, variant.form)


def combinations(variant: Variant, strength: int) -> Iterable[tuple[Any, ...]]:
    """Its combinations of `strength` constants with their values (operands and form count)."""
    return itertools.combinations(enumerate(_values_of(variant)), strength)
