"""Programs for small VAEs on the CPU, for the tests of what carries them out."""

from __future__ import annotations

from typing import Any

import torch
from decode_doubles import TIMESTEP, tiny_latents, tiny_pixels

from hy3d_rocm import _core
from hy3d_rocm.decode.families import family_for
from hy3d_rocm.decode.graph import Graph
from hy3d_rocm.decode.memory.steps import StepWorkspace
from hy3d_rocm.decode.memory.workspace import OperatorWorkspace
from hy3d_rocm.decode.run import Run
from hy3d_rocm.decode.torch_backend import TorchBackend
from hy3d_rocm.decode.weights import ModuleWeights

CPU = torch.device("cpu")
ALL = 1 << 40
STREAMED = 1 << 1


def torch_backend(dtype: torch.dtype = torch.float32) -> TorchBackend:
    return TorchBackend(ModuleWeights(dtype, CPU))


def family_of(kind: str, vae: Any) -> Any:
    return family_for(vae, timestep=TIMESTEP.get(kind))


def source_of(family: Any, encode: bool, latents: int, rows: int = 2, columns: int = 3) -> Any:
    """Latents, or as many pixels as make them where the VAE's steps are that long."""
    if not encode:
        return tiny_latents(family.vae, latents, rows, columns, seed=latents)
    frames = 1 + (latents - 1) * family.pixel_steps[0]
    space = family.factor[1]
    return tiny_pixels(frames, rows * space, columns * space, seed=latents)


def by_layers(graph: Graph) -> Graph:
    """The graph with every norm over the whole video, so that the compiler goes by layers. What is
    reduced for the norms per position is passed by when they are computed."""
    nodes = tuple(n._replace(norm=2) if n.norm == 1 else n for n in graph.nodes)
    return Graph(nodes, graph.layers)


def rules() -> OperatorWorkspace:
    """Those of the CPU, without the code that oneDNN generates: no tensor shows that."""
    found = OperatorWorkspace(CPU)
    found.code_scale = 0.0
    return found


def compiled(graph: Graph, x: Any, **request: Any) -> Any:
    """The schedule of a graph for x (1, C, T, H, W), streamed."""
    slice_bytes, chunk = request.pop("slice_bytes", ALL), request.pop("chunk", 1)
    workspace = request.pop("workspace", None)
    if workspace is None:
        workspace = StepWorkspace(graph, torch_backend(x.dtype), rules(), x.dtype)
    machine = ((slice_bytes, 0), (chunk, 0, 0), 1e12, 1e11, 1e-5, 1.0)
    wanted: dict[str, Any] = {
        "size": tuple(x.shape[2:]), "element_bytes": x.element_size(), "is_host": 1,
        "strategies": STREAMED, "copy_bytes_per_second": 1e10, "device": machine, "host": machine,
    }  # fmt: skip
    return _core.compile_schedule(graph.nodes, workspace=workspace, **(wanted | request))


def carried_out(graph: Graph, x: Any, program: Any, **options: Any) -> Any:
    """The whole result; the frames must come in order and without a gap."""
    backend = options.pop("backend", None) or torch_backend(x.dtype)
    options.setdefault("recover", lambda step, attempts, error: False)
    run = Run(graph, backend, CPU, x.dtype, **options)
    parts, at = [], 0
    for first, frames in run.section(program, 0, lambda r: x[:, :, slice(*r)]):
        assert first == at
        at += frames.shape[2]
        parts.append(frames.clone())
        del frames
    assert not run._slices, "slices were left over"
    return torch.cat(parts, 2)
