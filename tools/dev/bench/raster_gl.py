"""Mesa's llvmpipe (OpenGL on the CPU) in `bench raster`, by moderngl and EGL without a window.

Vertices are uploaded before. The face's number goes to an R32I picture, barycentrics to an RGB32F
one, with a depth test of 24 bits and no multisampling. Barycentrics are got in the two ways that
need no extension: as a varying of vertices that faces do not share, and by a second pass over the
picture that computes them from the face's number.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tools.dev.bench.raster_jobs import BOTH, INDEX, VALUES, Given, Job, MissingError, milliseconds
from tools.dev.bench.raster_scene import Scene

_VERTEX = "#version 430\nin vec4 p; void main() { gl_Position = p; }"
_NUMBER = "#version 430\nlayout(location=0) out int f; void main() { f = gl_PrimitiveID + 1; }"
_VERTEX_CORNER = """#version 430
in vec4 p; out vec3 b;
void main() { gl_Position = p; int k = gl_VertexID % 3; b = vec3(k == 0, k == 1, k == 2); }"""
_NUMBER_CORNER = """#version 430
in vec3 b; layout(location=0) out int f; layout(location=1) out vec3 o;
void main() { f = gl_PrimitiveID + 1; o = b; }"""
_WHOLE = """#version 430
void main() {
    gl_Position = vec4(gl_VertexID == 1 ? 3. : -1., gl_VertexID == 2 ? 3. : -1., 0., 1.);
}"""
_SECOND = """#version 430
uniform isampler2D faces; uniform float step;
layout(std430, binding=0) buffer V { vec4 v[]; }; layout(std430, binding=1) buffer T { int t[]; };
layout(location=0) out vec3 o;
void main() {
    int f = 3 * (texelFetch(faces, ivec2(gl_FragCoord.xy), 0).x - 1);
    if (f < 0) { o = vec3(0); return; }
    vec3 a = v[t[f]].xyw, b = v[t[f + 1]].xyw, c = v[t[f + 2]].xyw;
    vec3 p = vec3(gl_FragCoord.xy * step - 1., 1.);
    vec3 e = vec3(dot(cross(b, c), p), dot(cross(c, a), p), dot(cross(a, b), p));
    o = e / (e.x + e.y + e.z);
}"""
_VALUES = """#version 430
uniform isampler2D faces; uniform sampler2D weights;
layout(std430, binding=0) buffer V { float v[]; }; layout(std430, binding=1) buffer T { int t[]; };
layout(location=0) out vec3 o;
vec3 at(int i) { i = 3 * t[i]; return vec3(v[i], v[i + 1], v[i + 2]); }
void main() {
    int f = 3 * (texelFetch(faces, ivec2(gl_FragCoord.xy), 0).x - 1);
    if (f < 0) { o = vec3(0); return; }
    vec3 w = texelFetch(weights, ivec2(gl_FragCoord.xy), 0).xyz;
    o = w.x * at(f) + w.y * at(f + 1) + w.z * at(f + 2);
}"""


def variables(threads: int) -> dict[str, str]:
    return {
        "EGL_PLATFORM": "surfaceless",
        "LIBGL_ALWAYS_SOFTWARE": "1",
        "GALLIUM_DRIVER": "llvmpipe",
        "LP_NUM_THREADS": str(threads),
    }


def jobs(scene: Scene, given: Given | None, threads: int) -> list[Job]:
    try:
        gl: Any = importlib.import_module("moderngl")
        context = gl.create_context(standalone=True, backend="egl", require=430)
    except Exception as error:  # moderngl raises bare Exceptions
        raise MissingError(str(error)) from error
    renderer, version = context.info["GL_RENDERER"], context.info["GL_VERSION"].split()[-1]
    if "llvmpipe" not in renderer:
        raise MissingError(f"EGL gives {renderer}, which is not software")
    name = f"llvmpipe, Mesa {version}"
    painter = _Painter(gl, context, scene)
    if given is not None:
        return [painter.interpolating(name, given)]
    return [painter.varying(name), painter.two_passes(name), painter.numbers(name)]


class _Painter:
    """Owns the buffers of one scene."""

    def __init__(self, gl: Any, context: Any, scene: Scene) -> None:
        self._gl, self._context, self._scene = gl, context, scene
        shape = (scene.size, scene.size)
        self._face_index = np.zeros(shape, np.int32)
        self._three = np.zeros((*shape, 3), np.float32)
        self._faces = context.texture(shape, 1, dtype="i4")
        self._vectors = context.texture(shape, 3, dtype="f4")
        self._depth = context.depth_renderbuffer(shape)

    def varying(self, name: str) -> Job:
        """Vertices that faces do not share, so that each knows its corner."""
        scene, context = self._scene, self._context
        points, upload = milliseconds(
            lambda: context.buffer(scene.clip[scene.faces.reshape(-1)].tobytes())
        )
        program = context.program(vertex_shader=_VERTEX_CORNER, fragment_shader=_NUMBER_CORNER)
        mesh = context.vertex_array(program, [(points, "4f", "p")])
        target = context.framebuffer([self._faces, self._vectors], self._depth)
        return self._job(f"{name}, varyings", BOTH, lambda: self._draw(target, mesh), upload)

    def two_passes(self, name: str) -> Job:
        mesh, vertices, indices, upload = self._indexed()
        first = self._context.framebuffer([self._faces], self._depth)
        paint = self._second(_SECOND, [vertices, indices])
        paint.program["step"] = 2 / self._scene.size

        def draw() -> None:
            self._draw(first, mesh, finish=False)
            self._pass(paint, [vertices, indices], [self._faces])

        return self._job(f"{name}, two passes", BOTH, draw, upload)

    def numbers(self, name: str) -> Job:
        mesh, _, _, upload = self._indexed()
        target = self._context.framebuffer([self._faces], self._depth)
        return self._job(
            f"{name}, face index alone", INDEX, lambda: self._draw(target, mesh), upload
        )

    def interpolating(self, name: str, given: Given) -> Job:
        scene, context = self._scene, self._context
        self._faces.write(given.face_index.tobytes())
        shape = (scene.size, scene.size)
        weights = context.texture(shape, 3, given.barycentric.tobytes(), dtype="f4")
        buffers = [
            context.buffer(scene.attributes.tobytes()),
            context.buffer(scene.faces.tobytes()),
        ]
        paint = self._second(_VALUES, buffers)
        paint.program["faces"], paint.program["weights"] = 0, 1

        def draw() -> None:
            self._pass(paint, buffers, [self._faces, weights])

        return self._job(f"{name}, a pass over the picture", VALUES, draw, 0.0)

    def _indexed(self) -> tuple[Any, Any, Any, float]:
        scene, context = self._scene, self._context
        (vertices, indices), upload = milliseconds(
            lambda: (context.buffer(scene.clip.tobytes()), context.buffer(scene.faces.tobytes()))
        )
        program = context.program(vertex_shader=_VERTEX, fragment_shader=_NUMBER)
        mesh = context.vertex_array(
            program, [(vertices, "4f", "p")], index_buffer=indices, index_element_size=4
        )
        return mesh, vertices, indices, upload

    def _second(self, shader: str, buffers: list[Any]) -> Any:
        program = self._context.program(vertex_shader=_WHOLE, fragment_shader=shader)
        self._whole = self._context.framebuffer([self._vectors])
        return self._context.vertex_array(program, [])

    def _draw(self, target: Any, mesh: Any, finish: bool = True) -> None:
        self._context.enable_only(self._gl.DEPTH_TEST)
        target.use()
        target.clear()
        mesh.render()
        if finish:
            self._context.finish()

    def _pass(self, paint: Any, buffers: list[Any], pictures: list[Any]) -> None:
        self._context.enable_only(self._gl.NOTHING)
        self._whole.use()
        for number, buffer in enumerate(buffers):
            buffer.bind_to_storage_buffer(number)
        for number, picture in enumerate(pictures):
            picture.use(number)
        paint.render(vertices=3)
        self._context.finish()

    def _job(self, name: str, kind: str, draw: Callable[[], None], upload: float) -> Job:
        def read() -> None:
            if kind != VALUES:
                self._faces.read_into(self._face_index)
            if kind != INDEX:
                self._vectors.read_into(self._three)

        def result() -> tuple[Any, ...]:
            three = self._three if kind != INDEX else None
            return (three,) if kind == VALUES else (self._face_index, three)

        return Job(name, kind, {"draw": draw, "read-back": read}, result, {"upload": upload})
