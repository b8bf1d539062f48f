"""`hy3d-rocm bench raster`: arguments, progress on stderr, the report on stdout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hy3d_rocm.bench.models import BenchError
from hy3d_rocm.bench.raster_jobs import PEERS
from hy3d_rocm.bench.terminal import count, deliver

if TYPE_CHECKING:
    from hy3d_rocm.bench.raster_turns import RasterSettings

RASTER_BENCHES = ("raster",)
_TEXT = """\
Draws a made-up scene (a bumpy sphere in a ring) with the C rasteriser and with whatever else is
there that can say face index and barycentrics of every pixel on a CPU: Mesa's llvmpipe by moderngl,
Open3D's ray caster (embree). Then interpolates three channels over the picture, beside torch and
NumPy. All in one run, each in a process of its own, on as many threads, in turns. Close other
programs first. tests/bench/raster_peers.py in the source tree adds embree itself.
"""


def add_raster_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `raster` to `bench`."""
    raster = kinds.add_parser(
        "raster",
        help="the CPU rasteriser beside software OpenGL and ray casters",
        description=_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_raster_options(raster)
    names = [peer.name for peer in PEERS]
    raster.add_argument("--peers", nargs="*", choices=names, metavar="NAME",
                        help=f"of {', '.join(names)} (default: all)")  # fmt: skip


def add_raster_options(parser: argparse.ArgumentParser) -> None:
    """Those that tests/bench/raster_peers.py has too."""
    add = parser.add_argument
    add("--faces", type=count, metavar="N", help="draw one picture of N faces (with --size)")
    add("--size", type=count, metavar="PIXELS",
        help="a side of it (default: 1024, 100,000 faces; then 2048, 1,000,000)")  # fmt: skip
    add("--threads", type=count, default=2, metavar="N", help="of each (default 2)")
    add("--repeats", type=count, default=15, metavar="N", help="turns (default 15)")
    add("--python", action="append", default=[], metavar="PATH",
        help="a Python that has peers which this one lacks; may be given again")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="every figure, as JSON")


def pictures_of(arguments: argparse.Namespace) -> Sequence[tuple[int, int]]:
    """(faces, pixels a side) of each."""
    if arguments.faces is None and arguments.size is None:
        return ((100_000, 1024), (1_000_000, 2048))
    return ((arguments.faces or 100_000, arguments.size or 1024),)


def run_raster_command(arguments: argparse.Namespace) -> int:
    """Exit code: 0, 1 if nothing could be measured, 130 after Ctrl-C."""
    from hy3d_rocm.bench.raster_turns import RasterSettings, contenders_of

    chosen = [peer for peer in PEERS if arguments.peers is None or peer.name in arguments.peers]
    try:
        contenders = contenders_of([[python] for python in arguments.python], chosen)
        return report_raster(
            RasterSettings(contenders, pictures_of(arguments), 0, arguments.threads,
                           arguments.repeats, _say), arguments.json
        )  # fmt: skip
    except BenchError as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        _say("interrupted before anything was measured")
        return 130


def report_raster(settings: RasterSettings, path: Path | None) -> int:
    """Measures, prints, writes; the exit code."""
    from hy3d_rocm.bench.raster_text import raster_dict, raster_text
    from hy3d_rocm.bench.raster_turns import run_raster

    report = run_raster(settings)
    return deliver(
        raster_text(report),
        raster_dict(report),
        path,
        settings.say,
        measured=report.measured,
        interrupted=report.interrupted,
    )


def _say(text: str) -> None:
    sys.stderr.write(f"hy3d-rocm bench: {text}\n")
    sys.stderr.flush()
