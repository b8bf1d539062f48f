"""embree itself, as fast as it goes, for raster_peers.py: packets of 16 coherent rays from C, and
version 3's streams from NumPy arrays. The tree is built before."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tools.dev.bench.raster_jobs import BOTH, Given, Job, MissingError, milliseconds
from tools.dev.bench.raster_scene import Scene

HERE = Path(__file__).resolve().parent
SYSTEM = ("libembree4.so.4", "libembree3.so.3")
QUALITIES = {"medium": 1, "high": 2}
PACKET_SIDE = 4
CHUNKS = 32
NONE = 0xFFFFFFFF
POINTER = ctypes.c_void_p
SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    "rtcNewDevice": ([ctypes.c_char_p], POINTER),
    "rtcGetDeviceProperty": ([POINTER, ctypes.c_int], ctypes.c_ssize_t),
    "rtcGetDeviceError": ([POINTER], ctypes.c_int),
    "rtcNewScene": ([POINTER], POINTER),
    "rtcSetSceneBuildQuality": ([POINTER, ctypes.c_int], None),
    "rtcNewGeometry": ([POINTER, ctypes.c_int], POINTER),
    "rtcSetSharedGeometryBuffer": (
        [POINTER, ctypes.c_int, ctypes.c_uint, ctypes.c_int, POINTER] + [ctypes.c_size_t] * 3,
        None,
    ),
    "rtcCommitGeometry": ([POINTER], None),
    "rtcAttachGeometry": ([POINTER, POINTER], ctypes.c_uint),
    "rtcCommitScene": ([POINTER], None),
}
# Of a ray and its hit, as struct of arrays, in embree's order.
FLOATS = ("ox", "oy", "oz", "near", "dx", "dy", "dz", "time", "far")
WHOLE = ("mask", "id", "flags")
HIT_FLOATS = ("nx", "ny", "nz", "u", "v")
HIT_WHOLE = ("face", "geometry", "instance")
FIELDS = (*FLOATS, *WHOLE, *HIT_FLOATS, *HIT_WHOLE)


class View(ctypes.Structure):
    _fields_ = [
        ("scene", POINTER),
        ("size", ctypes.c_int64),
        ("eye", ctypes.c_float * 3),
        ("slope", ctypes.c_float),
    ]


class Context3(ctypes.Structure):
    _fields_ = [
        ("flags", ctypes.c_uint),
        ("filter", POINTER),
        ("instance", ctypes.c_uint * 2),
    ]


def variables(threads: int) -> dict[str, str]:
    return {}


def jobs(scene: Scene, given: Given | None, threads: int) -> list[Job]:
    """Of each embree that is there. None that interpolates."""
    if given is not None:
        return []
    found = [library for name in _libraries() if (library := _load(name)) is not None]
    if not found:
        raise MissingError("no libembree4.so.4, libembree3.so.3 or embreex is there")
    if scene.size % PACKET_SIDE:
        raise MissingError(f"{scene.size} pixels are no multiple of {PACKET_SIDE}")
    shooter, pool = _compiled(), ThreadPoolExecutor(threads)
    made = []
    for library in found:
        for quality, number in QUALITIES.items():
            tree = Tree(library, scene, threads, number)
            label = f"embree {tree.version}"
            if shooter is not None:
                made.append(_packets(f"{label} packets, {quality} tree", tree, shooter, pool))
            if hasattr(library, "rtcIntersectNp") and quality == "medium":
                made.append(_streams(f"{label} streams, {quality} tree", tree, pool))
    return made


class Tree:
    """A scene of embree over `scene`; lives as long as the process."""

    def __init__(self, library: Any, scene: Scene, threads: int, quality: int) -> None:
        self.library, self.scene = library, scene
        device = library.rtcNewDevice(f"threads={threads}".encode())
        numbers = [library.rtcGetDeviceProperty(device, which) for which in (1, 2, 3)]
        self.version, self.major = ".".join(map(str, numbers)), numbers[0]
        self._points = np.zeros(scene.positions.size + 4, np.float32)  # read 16 bytes at a time
        self._points[:-4] = scene.positions.reshape(-1)
        self._faces = scene.faces.astype(np.uint32)
        self.handle, self.built_ms = milliseconds(lambda: self._build(device, quality))
        error = library.rtcGetDeviceError(device)
        if error:
            raise RuntimeError(f"embree {self.version} says error {error}")

    def _build(self, device: Any, quality: int) -> Any:
        library, (faces, points) = self.library, (self._faces, self._points)
        handle = library.rtcNewScene(device)
        library.rtcSetSceneBuildQuality(handle, quality)
        mesh = library.rtcNewGeometry(device, 0)
        put = library.rtcSetSharedGeometryBuffer
        put(mesh, 1, 0, 0x9003, points.ctypes.data, 0, 12, len(self.scene.positions))
        put(mesh, 0, 0, 0x5003, faces.ctypes.data, 0, 12, len(faces))
        library.rtcCommitGeometry(mesh)
        library.rtcAttachGeometry(handle, mesh)
        library.rtcCommitScene(handle)
        return handle


def _packets(name: str, tree: Tree, shooter: Any, pool: ThreadPoolExecutor) -> Job:
    scene, size = tree.scene, tree.scene.size
    face_index = np.zeros((size, size), np.int32)
    barycentric = np.zeros((size, size, 3), np.float32)
    view = View(tree.handle, size, (ctypes.c_float * 3)(*scene.eye), scene.slope)
    intersect = ctypes.cast(tree.library.rtcIntersect16, POINTER)

    def rows(bounds: tuple[int, int]) -> None:
        shooter.draw(ctypes.byref(view), intersect, tree.major, *bounds, face_index.ctypes.data,
                     barycentric.ctypes.data)  # fmt: skip

    chunks = list(_chunks(size // PACKET_SIDE, PACKET_SIDE))
    stages = {"rays, trace, store": lambda: list(pool.map(rows, chunks))}
    return Job(name, BOTH, stages, lambda: (face_index, barycentric), {"tree": tree.built_ms})


def _streams(name: str, tree: Tree, pool: ThreadPoolExecutor) -> Job:
    """Rays are made and put into the order of packets before; the picture's order is a stage."""
    size = tree.scene.size
    rays = _stream_rays(tree.scene)
    face_index = np.zeros((size, size), np.int32)
    barycentric = np.zeros((size, size, 3), np.float32)

    def some(bounds: tuple[int, int]) -> None:
        first, end = bounds
        rays["far"][first:end], rays["geometry"][first:end] = 1e30, NONE
        context = Context3(1, None, (ctypes.c_uint * 2)(NONE, NONE))
        pointers = (POINTER * len(FIELDS))(*[rays[f].ctypes.data + 4 * first for f in FIELDS])
        tree.library.rtcIntersectNp(
            POINTER(tree.handle), ctypes.byref(context), pointers, ctypes.c_uint(end - first)
        )

    def picture() -> None:
        hit = rays["geometry"] == 0
        face_index[:] = _picture_order(np.where(hit, rays["face"] + 1, 0), size)
        u, v = (np.where(hit, rays[name], 0) for name in "uv")
        barycentric[..., 0] = _picture_order(np.where(hit, 1 - u - v, 0), size)
        barycentric[..., 1], barycentric[..., 2] = _picture_order(u, size), _picture_order(v, size)

    chunks = list(_chunks(size * size // 16, 16))
    stages: dict[str, Callable[[], Any]] = {
        "trace": lambda: list(pool.map(some, chunks)),
        "picture": picture,
    }
    return Job(name, BOTH, stages, lambda: (face_index, barycentric), {"tree": tree.built_ms})


def _stream_rays(scene: Scene) -> dict[str, Any]:
    pixels = scene.size * scene.size
    rays = {name: np.zeros(pixels, np.float32) for name in (*FLOATS, *HIT_FLOATS)}
    rays |= {name: np.zeros(pixels, np.uint32) for name in (*WHOLE, *HIT_WHOLE)}
    centres = ((2 * np.arange(scene.size) + 1) / scene.size - 1) * scene.slope
    across, down = np.meshgrid(centres, centres)
    for name, value in zip(("ox", "oy", "oz"), scene.eye, strict=True):
        rays[name][:] = value
    rays["dx"][:], rays["dy"][:] = _packet_order(across), _packet_order(down)
    rays["dz"][:], rays["mask"][:] = -1, NONE
    return rays


def _packet_order(picture: Any) -> Any:
    side = len(picture) // PACKET_SIDE
    blocks = picture.reshape(side, PACKET_SIDE, side, PACKET_SIDE)
    return blocks.transpose(0, 2, 1, 3).reshape(-1)


def _picture_order(flat: Any, size: int) -> Any:
    side = size // PACKET_SIDE
    blocks = flat.reshape(side, side, PACKET_SIDE, PACKET_SIDE)
    return blocks.transpose(0, 2, 1, 3).reshape(size, size)


def _chunks(units: int, unit: int) -> Iterator[tuple[int, int]]:
    bounds = [units * number // CHUNKS * unit for number in range(CHUNKS + 1)]
    return ((first, end) for first, end in itertools.pairwise(bounds) if end > first)


def _libraries() -> list[str]:
    """Debian's, and the one in embreex's wheel."""
    names = list(SYSTEM)
    embreex = importlib.util.find_spec("embreex")
    if embreex is not None and embreex.origin is not None:
        folder = Path(embreex.origin).parent.parent / "embreex.libs"
        names += sorted(map(str, folder.glob("libembree4-*")))
    return names


def _load(name: str) -> Any | None:
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return None
    for function, (arguments, result) in SIGNATURES.items():
        getattr(library, function).argtypes = arguments
        getattr(library, function).restype = result
    return library


def _compiled() -> Any | None:
    """raster_peers_embree.c; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "draw.so"
        source = str(HERE / "raster_peers_embree.c")
        flags = ["-std=c11", "-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, source, "-o", str(target)], check=True)
        library = ctypes.CDLL(str(target))
    library.draw.argtypes = [POINTER, POINTER, ctypes.c_int] + [ctypes.c_int64] * 2 + [POINTER] * 2
    library.draw.restype = None
    return library
