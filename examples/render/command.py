"""`hy3d-rocm render`: a mesh to pictures and a turntable, progress on stderr."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from examples.render.meshes import Mesh
    from examples.render.run import Settings, Told

logger = logging.getLogger("hy3d_rocm")

# As in made.py, maps.py and the rasteriser, which are not loaded for --help.
_MADE = ("knot", "torus", "sphere", "cube")
_MAPS = ("shaded", "color", "normal", "position", "depth", "face", "mask")
_AXES = ("world", "camera", "stage")
_RULES = ("topleft", "compat")
_COLORS = {"white": (255, 255, 255), "black": (0, 0, 0), "grey": (128, 128, 128)}

_TEXT = """\
Draws a mesh on the CPU, from several sides and as a turning video. No GPU and no torch needed.

  hy3d-rocm render                                          a knot that it makes, to render_out/
  hy3d-rocm render MESH.glb --out DIR                       your mesh
  hy3d-rocm render MESH.glb --maps normal,depth --frames 0  two maps, no video
"""
_EPILOG = """\
maps (--maps, --turntable):
  shaded    the mesh in a studio's light, in its colours or as clay
  color     its texture and colours without light; left out where it has none
  normal    normals as colours, see --normals
  position  positions as colours, as the texture stage encodes them
  depth     16 bit, near is white
  face      each face in a colour of its own
  mask      white where the mesh is

DIR gets MAP_VIEW.png for each map and view (normal_front.png), cameras.json, turntable.mp4 and, of
up to 12 views, views.png: all pictures, small. Needs Pillow; PyAV for the video, trimesh to read a
file (pip install Pillow av trimesh). A file has its name only when it is complete; Ctrl-C keeps the
complete ones. Exit code: 0; 1 if something failed (a sentence says what); 2 for a wrong argument;
130 after Ctrl-C. "The texture stage" is Hunyuan3D's. More: docs/raster.md in the source tree.
"""


def build_parser() -> argparse.ArgumentParser:
    render = argparse.ArgumentParser(
        prog="hy3d-rocm render",
        description=_TEXT,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = render.add_argument
    add("source", type=Path, nargs="?", metavar="MESH",
        help="a .glb, .gltf, .obj, .ply, .stl or .off file (default: see --mesh)")  # fmt: skip
    add("--mesh", choices=_MADE, help="a shape to draw in place of a file (default knot)")
    add("--out", type=Path, default=Path("render_out"), metavar="DIR",
        help="folder to write to (default render_out)")  # fmt: skip
    add("--force", action="store_true", help="overwrite files that are there")
    _add_pictures(render)
    _add_camera(render)
    _add_turntable(render)
    add("--rule", choices=_RULES, default="topleft",
        help="which pixels a face covers. topleft (default): as on GPUs; compat: as in the "
        "texture stage")  # fmt: skip
    add("--threads", type=_threads, metavar="N",
        help="threads the rasteriser may use, 1 to 1024 (default: one for each CPU)")  # fmt: skip
    return render


def _add_pictures(render: argparse.ArgumentParser) -> None:
    add = render.add_argument_group("pictures").add_argument
    add("--views", type=_count, default=6, metavar="N",
        help="6 (default): the texture stage's front, right, back, left, top, bottom; another "
        "number: so many around the mesh, at --elevation")  # fmt: skip
    add("--size", type=_size, default=(1024, 1024), metavar="N|WxH",
        help="pixels, such as 1024 (default) or 1280x720")  # fmt: skip
    add("--maps", type=_maps, default=_MAPS, metavar="MAP,MAP",
        help="which maps to write, see below (default all)")  # fmt: skip
    add("--normals", choices=_AXES, default="world",
        help="red, green and blue of the normal map. world (default): the mesh's X, Y, Z; camera: "
        "right, up, towards the viewer; stage: X, -Z, Y, as in the texture stage")  # fmt: skip
    add("--crease", type=_angle, default=40.0, metavar="DEGREES",
        help="where faces meet at more than this, the surface has an edge (default 40; 180: smooth "
        "everywhere, as the texture stage; 0: faceted)")  # fmt: skip
    add("--supersample", type=_supersample, default=1, metavar="N",
        help="N x N samples a pixel, for smooth edges: 1 (default) to 8")  # fmt: skip
    add("--background", type=_background, default=_COLORS["white"], metavar="COLOR",
        help="white (default), black, grey, #rrggbb or none (transparent)")  # fmt: skip


def _add_camera(render: argparse.ArgumentParser) -> None:
    add = render.add_argument_group("camera").add_argument
    add("--elevation", type=_elevation, default=20.0, metavar="DEGREES",
        help="of the turntable and of views around the mesh, -90 to 90 (default 20)")  # fmt: skip
    add("--fov", type=_fov, metavar="DEGREES",
        help="perspective, the angle along the shorter side, 1 to 150 (default: the views are "
        "orthographic, as the texture stage's, and the turntable has 30)")  # fmt: skip
    add("--distance", type=_distance, metavar="RADII",
        help="of a perspective camera from the centre, in radii of the mesh (default: as near as "
        "shows the whole mesh)")  # fmt: skip


def _add_turntable(render: argparse.ArgumentParser) -> None:
    add = render.add_argument_group("turntable").add_argument
    add("--frames", type=_frames, default=72, metavar="N",
        help="frames of one turn (default 72); 0: no turntable")  # fmt: skip
    add("--fps", type=_fps, default=Fraction(24), metavar="RATE",
        help="frames a second, such as 24 (default) or 30000/1001")  # fmt: skip
    add("--turntable", choices=_MAPS, default="shaded", metavar="MAP",
        help="which map it shows (default shaded)")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: see the epilog."""
    arguments = build_parser().parse_args(argv)
    told: list[Told] = []
    try:
        _render(arguments, told)
    except KeyboardInterrupt:
        kept = len(told[0].files) if told else 0
        _say(f"interrupted; {kept} complete files are kept" if kept else "interrupted")
        return 130
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        logger.debug("hy3d-rocm render", exc_info=True)
        _say(str(error))
        return 1
    except MemoryError as error:
        _say(f"out of memory: give a smaller --size or --supersample ({error})")
        return 1
    sys.stdout.write("\n".join(told[0].lines()) + "\n")
    return 0


def _render(arguments: argparse.Namespace, told: list[Told]) -> None:
    from examples.render.run import Told, render_to_folder

    mesh = _mesh(arguments)
    for note in mesh.notes:
        _say(note)
    settings = _settings(arguments)
    _say(f"{mesh.name}: {len(mesh.faces):,} faces, to {arguments.out}")
    told.append(Told(mesh, settings, arguments.out))
    render_to_folder(
        mesh, arguments.out, settings, force=arguments.force, told=told[0], say=_say
    )  # fmt: skip


def _mesh(arguments: argparse.Namespace) -> Mesh:
    from examples.render.made import DEFAULT_MESH, make_mesh
    from examples.render.meshes import MeshError, read_mesh

    if arguments.source is None:
        return make_mesh(arguments.mesh or DEFAULT_MESH, crease=arguments.crease)
    if arguments.mesh is not None:
        raise MeshError(f"both {arguments.source} and --mesh {arguments.mesh}: give one of them")
    return read_mesh(arguments.source, crease=arguments.crease)


def _settings(arguments: argparse.Namespace) -> Settings:
    from examples.render.run import Settings

    return Settings(
        size=arguments.size, views=arguments.views, maps=arguments.maps,
        elevation=arguments.elevation, fov=arguments.fov, distance=arguments.distance,
        normals=arguments.normals, background=arguments.background, rule=arguments.rule,
        supersample=arguments.supersample, threads=arguments.threads, frames=arguments.frames,
        fps=arguments.fps, turntable=arguments.turntable,
    )  # fmt: skip


def _say(text: str) -> None:
    sys.stderr.write(f"hy3d-rocm render: {text}\n")
    sys.stderr.flush()


def _count(text: str) -> int:
    return _whole(text, 1, 10_000)


def _threads(text: str) -> int:
    return _whole(text, 1, 1024)  # as the C core


def _frames(text: str) -> int:
    return _whole(text, 0, 100_000)


def _supersample(text: str) -> int:
    return _whole(text, 1, 8)


def _whole(text: str, low: int, high: int) -> int:
    value = int(text) if text.isdecimal() and len(text) < 10 else -1
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {low} to {high}")
    return value


def _size(text: str) -> tuple[int, int]:
    """(height, width)."""
    found = re.fullmatch(r"([1-9]\d{0,4})(?:[xX]([1-9]\d{0,4}))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 1024 or 1280x720")
    width, height = int(found[1]), int(found[2] or found[1])
    if max(width, height) > 32768:
        raise argparse.ArgumentTypeError(f"{text!r} has more than 32768 pixels a side")
    return height, width


def _maps(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    wrong = [name for name in names if name not in _MAPS]
    if wrong or not names:
        raise argparse.ArgumentTypeError(f"{text!r}: give some of {','.join(_MAPS)}")
    return names


def _angle(text: str) -> float:
    return _number(text, 0, 180)


def _elevation(text: str) -> float:
    return _number(text, -90, 90)


def _fov(text: str) -> float:
    return _number(text, 1, 150)


def _distance(text: str) -> float:
    return _number(text, 0.02, 1e4)


def _number(text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {low:g} to {high:g}")
    return value


def _fps(text: str) -> Fraction:
    # No exponents: Fraction("1e-999999999") works for minutes.
    found = re.fullmatch(r"(?=\.?\d)\d{0,9}(?:\.\d{0,9}|/\d{1,9})?", text, re.ASCII)
    try:
        value = Fraction(text if found else 0).limit_denominator(100_000)
    except ZeroDivisionError:
        value = Fraction(0)
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no frame rate above 0 and up to 1000; give such as 24 or 30000/1001"
        )
    return value


def _background(text: str) -> Any:
    if text in ("none", "transparent"):
        return None
    found = re.fullmatch(r"#([0-9a-fA-F]{2})([0-9a-fA-F]{2})([0-9a-fA-F]{2})", text)
    if text not in _COLORS and found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no background: give white, black, grey, #rrggbb or none"
        )
    return _COLORS[text] if found is None else tuple(int(part, 16) for part in found.groups())
