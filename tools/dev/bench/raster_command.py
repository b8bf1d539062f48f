"""`bench raster`: arguments, progress on stderr, the report on stdout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hy3d_rocm.arguments import deliver
from hy3d_rocm.bench.timing import BenchError
from tools.dev.bench.raster_jobs import PEERS

if TYPE_CHECKING:
    from tools.dev.bench.raster_turns import RasterSettings

# Pixels a side and threads: the C core's limits. NumPy takes 3 GB to make that many faces.
_MOST_FACES, _MOST_PIXELS, _MOST_THREADS, _MOST_REPEATS = 20_000_000, 32768, 1024, 10_000
_TEXT = """\
How fast is the C rasteriser on this CPU? Draws a made-up scene (a bumpy sphere in a ring) with it,
and with what else is installed that finds face and barycentrics of every pixel on a CPU: Mesa's
llvmpipe (pip install moderngl) and Open3D's ray caster (pip install open3d). Then interpolates
three channels over the picture, beside torch and NumPy. Each runs in a process of its own, all on
the same number of threads, in turns. What is not installed is left out, and said.

Without options: 1024x1024 pixels of 100,000 faces, then 2048x2048 of 1,000,000; a minute or more.
Needs torch. Close other programs first. tests/bench/raster_peers.py in the source tree adds embree
itself.
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
                        help=f"beside these only, of {', '.join(names)} (default all)")  # fmt: skip


def add_raster_options(parser: argparse.ArgumentParser) -> None:
    """Those that tests/bench/raster_peers.py has too."""
    add = parser.add_argument
    add("--faces", type=_whole(_MOST_FACES), metavar="N",
        help="draw one picture only, of about N faces (default 100,000)")  # fmt: skip
    add("--size", type=_whole(_MOST_PIXELS), metavar="PIXELS",
        help="draw one picture only, of PIXELS x PIXELS (default 1024)")  # fmt: skip
    add("--threads", type=_whole(_MOST_THREADS), default=2, metavar="N",
        help="that each may use (default 2)")  # fmt: skip
    add("--repeats", type=_whole(_MOST_REPEATS), default=15, metavar="N",
        help="how often each is timed; the median is shown (default 15)")  # fmt: skip
    add("--python", action="append", default=[], metavar="PATH",
        help="another Python, where to look for what this one lacks; may be repeated")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write every figure to FILE, as JSON")


def _whole(most: int) -> Callable[[str], int]:
    """Numbers from 1 to `most`, for argparse."""

    def number(text: str) -> int:
        value = int(text) if text.isdecimal() and len(text) < 12 else 0
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {most}")
        return value

    return number


def pictures_of(arguments: argparse.Namespace) -> Sequence[tuple[int, int]]:
    """(faces, pixels a side) of each."""
    if arguments.faces is None and arguments.size is None:
        return ((100_000, 1024), (1_000_000, 2048))
    return ((arguments.faces or 100_000, arguments.size or 1024),)


def run_raster_command(arguments: argparse.Namespace) -> int:
    """Exit code: 0, 1 if nothing could be measured, 130 after Ctrl-C."""
    from tools.dev.bench.raster_turns import RasterSettings, contenders_of

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
    try:
        from tools.dev.bench.raster_text import raster_dict, raster_text
        from tools.dev.bench.raster_turns import run_raster
    except ImportError as error:
        raise BenchError(f"this bench needs {error.name}: pip install {error.name}") from error

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
    sys.stderr.write(f"bench raster: {text}\n")
    sys.stderr.flush()
