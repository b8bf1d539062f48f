"""Mesa's lavapipe (Vulkan on the CPU) for raster_peers.py, by wgpu: the same vertices, tests and
pictures as raster_gl.py's, but barycentrics in four channels, since WebGPU has no picture of three.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tools.dev.bench.raster_jobs import BOTH, INDEX, Given, Job, MissingError, milliseconds
from tools.dev.bench.raster_scene import Scene

DRIVERS = Path("/usr/share/vulkan/icd.d")
# OpenGL's depth is -w to w, WebGPU's 0 to w; and its rows run the other way.
PLACE = "vec4f(p.x, -p.y, 0.5 * (p.z + p.w), p.w)"
NUMBERS = f"""
enable primitive_index;
@vertex fn vs(@location(0) p: vec4f) -> @builtin(position) vec4f {{ return {PLACE}; }}
@fragment fn fs(@builtin(primitive_index) f: u32) -> @location(0) i32 {{ return i32(f) + 1; }}
"""
CORNERS = f"""
enable primitive_index;
struct Out {{ @builtin(position) place: vec4f, @location(0) b: vec3f }};
struct Pixel {{ @location(0) f: i32, @location(1) b: vec4f }};
@vertex fn vs(@location(0) p: vec4f, @builtin(vertex_index) i: u32) -> Out {{
    let k = i % 3u;
    return Out({PLACE}, vec3f(f32(k == 0u), f32(k == 1u), f32(k == 2u)));
}}
@fragment fn fs(@builtin(primitive_index) f: u32, @location(0) b: vec3f) -> Pixel {{
    return Pixel(i32(f) + 1, vec4f(b, 0.0));
}}
"""


def variables(threads: int) -> dict[str, str]:
    drivers = ":".join(map(str, sorted(DRIVERS.glob("lvp_icd*.json"))))
    return {
        "LP_NUM_THREADS": str(threads),
        "VK_ICD_FILENAMES": drivers,
        "VK_DRIVER_FILES": drivers,
        "WGPU_BACKEND_TYPE": "Vulkan",
        "RUST_LOG": "off",
    }


def jobs(scene: Scene, given: Given | None, threads: int) -> list[Job]:
    """None that interpolates."""
    if given is not None:
        return []
    try:
        library: Any = importlib.import_module("wgpu")
        adapter = library.gpu.request_adapter_sync()
    except (ImportError, RuntimeError, OSError) as error:
        raise MissingError(str(error)) from error
    if "llvmpipe" not in adapter.info["device"]:
        raise MissingError(f"Vulkan gives {adapter.info['device']}, which is not software")
    needed = 64 * scene.clip.nbytes  # of one buffer; the default is 256 MB
    device = adapter.request_device_sync(
        required_features=["primitive-index"],
        required_limits={"max-buffer-size": max(needed, 1 << 28)},
    )
    name = f"lavapipe, {adapter.info['description']}"
    painter = Painter(library, device, scene)
    return [painter.varying(name), painter.numbers(name)]


class Painter:
    """Owns the pictures of one scene."""

    def __init__(self, library: Any, device: Any, scene: Scene) -> None:
        self._library, self._device, self._scene = library, device, scene
        self._depth = self._texture("depth24plus")
        self._faces, self._vectors = self._texture("r32sint"), self._texture("rgba32float")
        usage = library.BufferUsage
        self._source = device.create_buffer(size=4, usage=usage.COPY_SRC)
        self._signal = device.create_buffer(size=4, usage=usage.COPY_DST | usage.MAP_READ)
        self._read = {self._faces: self._reader(4), self._vectors: self._reader(16)}

    def varying(self, name: str) -> Job:
        scene = self._scene
        points, upload = milliseconds(lambda: self._buffer(scene.clip[scene.faces.reshape(-1)]))
        pipeline = self._pipeline(CORNERS, ["r32sint", "rgba32float"])
        pictures = [self._faces, self._vectors]
        return self._job(
            f"{name}, varyings", BOTH, pictures, pipeline, lambda render: (
                render.set_vertex_buffer(0, points), render.draw(scene.faces.size)
            ), upload
        )  # fmt: skip

    def numbers(self, name: str) -> Job:
        scene = self._scene
        (points, indices), upload = milliseconds(
            lambda: (self._buffer(scene.clip), self._buffer(scene.faces))
        )
        pipeline = self._pipeline(NUMBERS, ["r32sint"])
        return self._job(
            f"{name}, face index alone", INDEX, [self._faces], pipeline, lambda render: (
                render.set_vertex_buffer(0, points), render.set_index_buffer(indices, "uint32"),
                render.draw_indexed(scene.faces.size)
            ), upload
        )  # fmt: skip

    def _job(self, name: str, kind: str, pictures: list[Any], pipeline: Any,
             put: Callable[[Any], Any], upload: float) -> Job:  # fmt: skip
        shape = (self._scene.size, self._scene.size)
        face_index = np.zeros(shape, np.int32)
        barycentric = np.zeros((*shape, 3), np.float32) if kind == BOTH else None

        def draw() -> None:
            encoder = self._device.create_command_encoder()
            render = encoder.begin_render_pass(
                color_attachments=[{"view": picture.create_view(), "load_op": "clear",
                                    "store_op": "store"} for picture in pictures],
                depth_stencil_attachment={
                    "view": self._depth.create_view(), "depth_clear_value": 1.0,
                    "depth_load_op": "clear", "depth_store_op": "store"},
            )  # fmt: skip
            render.set_pipeline(pipeline)
            put(render)
            render.end()
            # Waits by four bytes: wgpu 0.32's on_submitted_work_done fails.
            encoder.copy_buffer_to_buffer(self._source, 0, self._signal, 0, 4)
            self._device.queue.submit([encoder.finish()])
            self._signal.map_sync("READ")
            self._signal.unmap()

        def read() -> None:
            face_index[:] = self._to_host(self._faces, np.int32)[..., 0]
            if barycentric is not None:
                barycentric[:] = self._to_host(self._vectors, np.float32)[..., :3]

        return Job(name, kind, {"draw": draw, "read-back": read},
                   lambda: (face_index, barycentric), {"upload": upload})  # fmt: skip

    def _to_host(self, picture: Any, dtype: Any) -> Any:
        size, reader = self._scene.size, self._read[picture]
        encoder = self._device.create_command_encoder()
        encoder.copy_texture_to_buffer(
            {"texture": picture},
            {"buffer": reader, "bytes_per_row": reader.size // size, "rows_per_image": size},
            (size, size, 1),
        )
        self._device.queue.submit([encoder.finish()])
        reader.map_sync("READ")
        found = np.frombuffer(reader.read_mapped(copy=True), dtype).reshape(size, size, -1)
        reader.unmap()
        return found

    def _pipeline(self, shader: str, formats: list[str]) -> Any:
        module = self._device.create_shader_module(code=shader)
        corner = {"format": "float32x4", "offset": 0, "shader_location": 0}
        return self._device.create_render_pipeline(
            layout="auto",
            vertex={"module": module, "entry_point": "vs",
                    "buffers": [{"array_stride": 16, "attributes": [corner]}]},
            primitive={"topology": "triangle-list", "cull_mode": "none"},
            depth_stencil={"format": "depth24plus", "depth_write_enabled": True,
                           "depth_compare": "less"},
            fragment={"module": module, "entry_point": "fs",
                      "targets": [{"format": name} for name in formats]},
        )  # fmt: skip

    def _texture(self, form: str) -> Any:
        usage = self._library.TextureUsage
        return self._device.create_texture(
            size=(self._scene.size, self._scene.size, 1),
            format=form,
            usage=usage.RENDER_ATTACHMENT | (0 if "depth" in form else usage.COPY_SRC),
        )

    def _reader(self, pixel_bytes: int) -> Any:
        usage = self._library.BufferUsage
        size = self._scene.size**2 * pixel_bytes
        return self._device.create_buffer(size=size, usage=usage.COPY_DST | usage.MAP_READ)

    def _buffer(self, array: Any) -> Any:
        usage = self._library.BufferUsage
        return self._device.create_buffer_with_data(data=array, usage=usage.VERTEX | usage.INDEX)
