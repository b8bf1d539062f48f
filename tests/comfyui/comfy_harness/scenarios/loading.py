"""Load order, missing parts, switches: what the log says, and that it warns of nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from comfy_harness import graphs
from comfy_harness.context import OURS, PATCHED, UPSTREAM, Context
from comfy_harness.graphs import DELIGHT, upstream_pipe
from comfy_harness.layout import NATIVE, copy_pack, name_listed
from comfy_harness.scenarios.baseline import NO_ACCELERATOR
from comfy_harness.server import Line, Server

PATCHED_LINE = "run on the right device"
ALONE_LINE = "left alone"
OBEYED = "\x1b[2J"  # a terminal would clear its window
MISSPELT = f"(-delihgt{OBEYED.lower()}: did you mean -delight?)"  # as it is before our filter
NO_CHOICE = "HY3D_RASTER is 'of' and is passed over; give one of on, off"


def run(context: Context) -> None:
    for first in (True, False):
        with _ordered(context, first) as server:
            context.report.check(f"the pack is listed {_where(first)} upstream", True)
            _works(context, server, f"loaded {_where(first)} upstream")
    misspelt = {**PATCHED, "HY3D_RASTER": "of"}
    with context.server(packs={OURS: context.pack}, environ=misspelt) as server:
        ours = [name for name in server.ask("/object_info") if name.startswith("Hy3DRocm")]
        context.report.check("alone: its nodes are there", len(ours) >= 5, ours)
        context.report.equal("alone: nothing is said of patches", _patch_lines(context, server), [])
        said = [line.message for line in context.our_lines(server) if NO_CHOICE in line.message]
        context.report.check("HY3D_RASTER=of: one line gives the words", len(said) == 1, said)
        context.quiet(server, NO_CHOICE)
    without = copy_pack(context.pack, context.work / f"{context.core.name}-no-core", NATIVE)
    with context.server(without, PATCHED) as server:
        _works(context, server, "without _core")
    _switched_off(context)


def _where(first: bool) -> str:
    return "before" if first else "after"


@contextmanager
def _ordered(context: Context, first: bool) -> Iterator[Server]:
    base = context.new_base({UPSTREAM: context.wrapper})
    folder = base / "custom_nodes"
    letters = "a0m" if first else "zZ~"
    names = [f"{letter}{number}-{OURS}" for number in range(40) for letter in letters]
    name = name_listed(folder, UPSTREAM, first, names)
    (folder / name).symlink_to(context.pack)
    with context.server(base=base, environ=PATCHED) as server:
        yield server


def _patch_lines(context: Context, server: Server) -> list[str]:
    lines = [line.message for line in context.our_lines(server)]
    return [line for line in lines if PATCHED_LINE in line or ALONE_LINE in line]


def _works(context: Context, server: Server, label: str) -> None:
    result = server.run(graphs.delight(upstream_pipe(DELIGHT), 3, seed_mode="legacy"))
    expected = context.baseline()["delight 3"]
    context.report.equal(f"{label}: delight runs", result.items() or result.seen(), expected)
    lines = _patch_lines(context, server)
    one = len(lines) == 1 and PATCHED_LINE in lines[0]
    context.report.check(f"{label}: one line says what is patched", one, lines)
    context.quiet(server)


def _switched_off(context: Context) -> None:
    cases: tuple[tuple[str, Mapping[str, str]], ...] = (
        ("HY3D_ROCM=off", {"HY3D_ROCM": "off", **PATCHED}),
        ("HY3D_ROCM_PATCH unset, no AMD GPU", {}),
        ("HY3D_ROCM_PATCH=off", {"HY3D_ROCM_PATCH": "off"}),
        ("HY3D_ROCM_PATCH=on,-delihgt", {"HY3D_ROCM_PATCH": f"on,-delihgt{OBEYED}"}),
    )
    for label, environ in cases:
        with context.server(context.pack, environ) as server:
            result = server.run(graphs.delight(upstream_pipe(DELIGHT), 1))
            untouched = NO_ACCELERATOR in result.error
            context.report.check(f"{label}: nothing is patched", untouched, result.seen())
            _one_line(context, label, context.our_lines(server), "HY3D_ROCM" in environ)
            context.quiet(server, MISSPELT if "delihgt" in label else None)
            shown = [line for line in server.text().splitlines() if OBEYED in line]
            context.report.check(f"{label}: nothing that a terminal obeys", not shown, shown)


def _one_line(context: Context, label: str, lines: list[Line], whole_pack: bool) -> None:
    """One line about patches; of the whole pack if that is off."""
    said = [line.message for line in lines if line.logger.startswith("hy3d_rocm")]
    if not whole_pack:
        said = [line for line in said if ALONE_LINE in line]
    context.report.check(f"{label}: one line says so", len(said) == 1, said)
    for line in said:
        context.report.note("    " + line.replace(OBEYED, ascii(OBEYED)[1:-1]))
