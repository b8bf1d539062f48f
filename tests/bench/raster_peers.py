"""The rasteriser beside the fastest that PyPI and Debian have for a CPU, in one run, in turns.

    python tests/bench/raster_peers.py [--python PATH] [--also "LABEL=COMMAND"] [--json FILE]

Like `python -m tools.dev.bench raster`, and besides: lavapipe (Vulkan), and embree itself by
packets of 16 coherent rays from C (raster_peers_embree.c, compiled here) and by version 3's
streams. The peers:

    apt install libegl1 libgl1-mesa-dri mesa-vulkan-drivers libvulkan1
    apt install libembree3-3    (Debian 12; 13 has libembree4-4)
    python -m venv PEERS; PEERS/bin/pip install numpy moderngl open3d embreex wgpu

--python PEERS/bin/python finds what the Python that runs this lacks. --also measures the system's
libraries once more, of another release, under a label. A newer Debian's beside an older's:

    debootstrap --variant=minbase --include=libegl1,libegl-mesa0,libgl1-mesa-dri,libembree4-4 \\
        trixie NEW
    --also "Debian 13=NEW/lib64/ld-linux-x86-64.so.2 --library-path NEW/usr/lib/x86_64-linux-gnu \\
        PEERS/bin/python"

Not measured here: VTK and pyrender draw by the same llvmpipe; pytorch3d has no wheel for Linux on
PyPI; and what took longer when it was tried by hand on the same scene (100,000 faces, beside ours
in the same minute): Mitsuba's ray_intersect_preliminary 2.4 times as long, riley-raster, which
gives a grey picture alone, 2.5 times, DEODR (one thread) 3 times, trimesh's rays 15 times.
Ours has to be ahead of each peer's work alone: a tree built before, a picture not read back.
Exit code 2 where it is not, or where a limit of raster_text.TARGETS_MS is missed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hy3d_rocm.bench.timing import BenchError  # noqa: E402
from tools.dev.bench.raster_command import add_raster_options, pictures_of, report_raster  # noqa: E402
from tools.dev.bench.raster_jobs import PEERS, Peer  # noqa: E402
from tools.dev.bench.raster_turns import RasterSettings, contenders_of  # noqa: E402

EMBREE = Peer(
    "embree",
    "raster_peers_embree",
    "on Debian: apt install libembree3-3 or libembree4-4; or pip install embreex",
)
LAVAPIPE = Peer(
    "lavapipe",
    "raster_peers_vulkan",
    "pip install wgpu; on Debian: apt install mesa-vulkan-drivers libvulkan1",
)
OTHERS = [*PEERS, LAVAPIPE, EMBREE]
# Those that --also asks for once more: of the system's libraries, not of a wheel's.
SYSTEMS = [*(peer for peer in PEERS if peer.name == "llvmpipe"), EMBREE]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_raster_options(parser)
    parser.add_argument(
        "--also", type=labelled, action="append", default=[], metavar="LABEL=COMMAND"
    )
    arguments = parser.parse_args()
    pythons = [[python] for python in arguments.python]
    try:
        contenders = contenders_of(pythons, OTHERS)
        contenders += contenders_of([], SYSTEMS, arguments.also)[1 + len(SYSTEMS) :]
        settings = RasterSettings(contenders, pictures_of(arguments), 0, arguments.threads,
                                  arguments.repeats, say)  # fmt: skip
        return measured(settings, arguments.json)
    except BenchError as error:
        say(str(error))
        return 1


def measured(settings: RasterSettings, path: Path | None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        kept = path or Path(folder) / "figures.json"
        code = report_raster(settings, kept)
        return code or judged(json.loads(kept.read_text(encoding="utf-8")))


def judged(figures: dict) -> int:
    """0 if ours is ahead everywhere and inside the limits, else 2 and what is not on stderr."""
    faults = []
    for part in figures["parts"]:
        for other in part["fastest_others"]:
            if other["ratio"] <= 1:
                faults.append(f"{part['scene']}: behind {other['name']}: {other['ratio']:.2f}")
        for kind, limit in part["targets_ms"].items():
            ours = next(row for row in part["rows"] if row["is_ours"] and row["kind"] == kind)
            if ours["median_ms"] > limit:
                faults.append(f"{part['scene']}: {ours['name']} took {ours['median_ms']:.1f} ms")
    for fault in faults:
        say(fault)
    return 2 if faults else 0


def labelled(text: str) -> tuple[str, list[str]]:
    label, equals, command = text.partition("=")
    if not (label and equals and shlex.split(command)):
        raise argparse.ArgumentTypeError(f"{text!r} is no LABEL=COMMAND")
    return label, shlex.split(command)


def say(text: str) -> None:
    print(f"raster_peers: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
