"""A whole run: views of a mesh as pictures, a sheet of all, the cameras, a turntable."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.render import output
from examples.render.camera import View, six_views, views_around
from examples.render.drawing import Drawing, draw
from examples.render.maps import MAPS, WHITE, Color, depth_range
from examples.render.meshes import Mesh
from examples.render.sheet import Sheet

if TYPE_CHECKING:
    import numpy.typing as npt

SHEET, CAMERAS, TURNTABLE = "views.png", "cameras.json", "turntable.mp4"
# In the turntable, where no fov was asked for.
_TURNTABLE_FOV = 30.0
# Sheets of more views are too wide to be of use.
_MOST_ON_SHEET = 12


@dataclass(frozen=True)
class Settings:
    """size: (height, width) in pixels. views: 6 are the texture stage's, others go around at
    `elevation` (degrees). maps: names of MAPS. fov, distance: see View. frames: of the turntable,
    0 for none; it shows the map `turntable`."""

    size: tuple[int, int] = (1024, 1024)
    views: int = 6
    maps: tuple[str, ...] = tuple(MAPS)
    elevation: float = 20.0
    fov: float | None = None
    distance: float | None = None
    normals: str = "world"
    background: Color | None = WHITE
    rule: str = "topleft"
    supersample: int = 1
    threads: int | None = None
    frames: int = 72
    fps: Fraction = Fraction(24)
    turntable: str = "shaded"


@dataclass
class Told:
    """What a run has done so far. raster_*: seconds that each call of the rasteriser took."""

    mesh: Mesh
    settings: Settings
    folder: Path
    files: list[Path] = field(default_factory=list)
    raster_views: list[float] = field(default_factory=list)
    raster_frames: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """For the user, with the times as they were measured."""
        pictures = sum(path.suffix == ".png" for path in self.files)
        others = [path.name for path in self.files if path.suffix != ".png"]
        lines = [
            f"{self.folder}: {pictures} pictures" + (f", {', '.join(others)}" if others else ""),
            f"{self.mesh.name}: {len(self.mesh.faces):,} faces, "
            f"{len(self.mesh.positions):,} vertices; {self.seconds:.1f} s in all",
        ]
        threads = threads_at_most(self.settings.threads)
        used = f"at most {threads} threads" if threads > 1 else "1 thread"
        rule = f"rule {self.settings.rule}, {used}"
        for what, seconds in (("view", self.raster_views), ("frame", self.raster_frames)):
            if seconds:
                lines.append(
                    f"rasterising took {sum(seconds) * 1e3:.0f} ms for {len(seconds)} {what}"
                    f"{'s' if len(seconds) > 1 else ''} of {self._samples()} samples (median "
                    f"{statistics.median(seconds) * 1e3:.1f} ms, {rule})"
                )
        return lines

    def _samples(self) -> str:
        height, width = self.settings.size
        return f"{width * self.settings.supersample}x{height * self.settings.supersample}"


def planned_views(settings: Settings) -> list[View]:
    if settings.views == 6:
        return six_views(settings.fov, settings.distance)
    return views_around(settings.views, settings.elevation, settings.fov, settings.distance)


def planned_maps(mesh: Mesh, settings: Settings) -> list[str]:
    """Colour is left out where the mesh has none; ValueError if nothing is left."""
    maps = [name for name in settings.maps if name != "color" or mesh.has_color]
    if not maps:
        raise ValueError(f"{mesh.name} has neither a texture nor colours: give other --maps")
    return maps


def planned_files(mesh: Mesh, settings: Settings) -> list[str]:
    views, maps = planned_views(settings), planned_maps(mesh, settings)
    files = [_file(name, view) for view in views for name in maps]
    if len(views) <= _MOST_ON_SHEET:
        files.append(SHEET)
    files.append(CAMERAS)
    return [*files, TURNTABLE] if settings.frames else files


def render_to_folder(
    mesh: Mesh, folder: Path, settings: Settings, *, force: bool = False,
    told: Told | None = None, say: Callable[[str], None] = lambda text: None,
) -> Told:  # fmt: skip
    """Writes everything; what is complete stays if it is interrupted. told: is filled on the way.

    Raises OutputError, ValueError or MemoryError with a sentence for the user.
    """
    told = told or Told(mesh, settings, folder)
    begun = time.perf_counter()
    output.require_pillow()
    if settings.frames:
        output.require_video(folder / TURNTABLE)
    output.make_folder(folder, planned_files(mesh, settings), force=force)
    try:
        _write_views(told, say)
        if settings.frames:
            _write_turntable(told, say)
    finally:
        told.seconds = time.perf_counter() - begun
    return told


def pictures(
    drawing: Drawing, maps: list[str], settings: Settings
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """(name, picture) of each map."""
    for name in maps:
        yield name, _picture(drawing, name, settings)


def _picture(drawing: Drawing, name: str, settings: Settings) -> npt.NDArray[Any]:
    if name in ("depth", "mask"):
        return MAPS[name](drawing)
    if name == "normal":
        return MAPS[name](drawing, settings.normals, settings.background)
    return MAPS[name](drawing, background=settings.background)


def _draw(told: Told, view: View) -> Drawing:
    settings = told.settings
    return draw(
        told.mesh, view, settings.size, rule=settings.rule,
        supersample=settings.supersample, threads=settings.threads,
    )  # fmt: skip


def _write_views(told: Told, say: Callable[[str], None]) -> None:
    mesh, settings = told.mesh, told.settings
    views, maps = planned_views(settings), planned_maps(mesh, settings)
    title = f"{mesh.name}: {len(mesh.faces):,} faces"
    sheet = Sheet(title, maps, [view.name for view in views])
    cameras = []
    for number, view in enumerate(views, 1):
        drawing = _draw(told, view)
        told.raster_views.append(drawing.raster_seconds)
        for name, picture in pictures(drawing, maps, settings):
            told.files.append(output.write_png(told.folder / _file(name, view), picture))
            sheet.add(name, view.name, picture)
        near, far = depth_range(drawing)
        cameras.append({**view.as_dict(), "depth_white": near, "depth_dark": far})
        say(f"view {number} of {len(views)}: {view.name}")
    if len(views) <= _MOST_ON_SHEET:
        told.files.append(output.write_png(told.folder / SHEET, sheet.picture()))
    told.files.append(output.write_json(told.folder / CAMERAS, _cameras(told, cameras)))


def _cameras(told: Told, views: list[dict[str, Any]]) -> dict[str, Any]:
    height, width = told.settings.size
    return {
        "mesh": told.mesh.name,
        "center": list(told.mesh.center),
        "radius": told.mesh.radius,
        "width": width,
        "height": height,
        "rule": told.settings.rule,
        "normals": told.settings.normals,
        "views": views,
    }


def _write_turntable(told: Told, say: Callable[[str], None]) -> None:
    settings = told.settings
    background = settings.background or WHITE  # a video has no alpha
    opaque = Settings(**{**settings.__dict__, "background": background})
    fov = settings.fov or _TURNTABLE_FOV
    views = views_around(settings.frames, settings.elevation, fov, settings.distance)
    quarters = {settings.frames * k // 4 for k in (1, 2, 3, 4)}
    with output.Turntable(told.folder / TURNTABLE, settings.size, settings.fps) as video:
        for number, view in enumerate(views, 1):
            drawing = _draw(told, view)
            told.raster_frames.append(drawing.raster_seconds)
            video.add(_as_rgb(_picture(drawing, settings.turntable, opaque)))
            if number in quarters:
                say(f"turntable: frame {number} of {settings.frames}")
        told.files.append(video.finish())


def _as_rgb(picture: npt.NDArray[Any]) -> npt.NDArray[Any]:
    import numpy as np

    if picture.dtype == np.uint16:
        picture = (picture >> 8).astype(np.uint8)
    if picture.ndim == 2:
        picture = np.repeat(picture[..., None], 3, axis=2)
    return np.ascontiguousarray(picture)


def _file(map_name: str, view: View) -> str:
    return f"{map_name}_{view.name}.png"


def threads_at_most(asked: int | None) -> int:
    """That the rasteriser uses when it is called with threads=asked; small pictures take fewer."""
    from hy3d_rocm._native import cpu_info
    from hy3d_rocm.conv.functional import default_threads

    most = int(cpu_info()["max_threads"])
    return min(default_threads(asked) or most, most)
