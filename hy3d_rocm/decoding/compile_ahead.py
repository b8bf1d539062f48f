"""The kernels of a program, found by a dry run of it and compiled before its first time."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm._native import Program
from hy3d_rocm.conv.triton import ahead
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend
from hy3d_rocm.decoding.backends.triton import backend as fused
from hy3d_rocm.decoding.backends.triton.launches import KERNELS
from hy3d_rocm.decoding.graph import GROUP, Graph
from hy3d_rocm.decoding.layers import ModuleWeights, Moments
from hy3d_rocm.decoding.memory.dry_run import apart, standing_for
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace
from hy3d_rocm.decoding.planning.compiled import Compiled
from hy3d_rocm.decoding.planning.jobs import Job
from hy3d_rocm.decoding.run import ProgramStep, Run

logger = logging.getLogger("hy3d_rocm")
_META = torch.device("meta")
# Of a candidate: what its launches depend on.
_DECIDES = ("order", "chunk", "slice_bytes", "tile", "halo_row", "level")


def compile_ahead(job: Job, compiled: Compiled) -> list[str]:
    """Has the kernels that the program will launch compiled by other processes (ahead.py), if it is
    not known that they are there; their names. It foretells: what it misses is compiled when it is
    wanted."""
    index, graph, program = job.device.index, compiled.graph, compiled.program
    index = torch.cuda.current_device() if index is None else index
    rules, new = OperatorWorkspace(job.device), list[str]()
    with standing_for(rules), torch.cuda.device(index):
        backend: Any = job.make_backend(ModuleWeights(job.dtype, "meta"), _META)
    candidate = program.candidate
    taken = tuple(candidate[field] for field in _DECIDES)
    asked = job.shape, job.dtype, graph.nodes, taken, backend.target()
    name = ahead.name_of_all(KERNELS, index, *asked)
    if not ahead.is_new(name):
        return []

    def wanted(kernel: ahead.Wanted) -> None:
        if one := ahead.want(kernel, index):
            new.append(one)

    try:
        dry_run(graph, program, backend, job.dtype, rules, each_kernel(wanted))
    except Exception as error:  # noqa: BLE001 - a VAE's own functions may want real values
        logger.debug("not all kernels are foreseen: %s: %s", type(error).__name__, error)
    if not new:
        ahead.note(name, on_disk=True)
    return new


Launched = Callable[[int, fused.Part, "Sequence[Tensor | None]"], object]


def each_kernel(wanted: Callable[[ahead.Wanted], object]) -> Launched:
    """For dry_run(): each kernel once to `wanted`, when it is first launched."""
    seen: set[Any] = set()

    def launched(_: int, part: fused.Part, operands: Sequence[Tensor | None]) -> None:
        if part not in seen:
            seen.add(part)
            for kernel in fused.wanted(part, operands):
                key = kernel.item.compiled_for, kernel.facts
                if key not in seen:
                    seen.add(key)
                    wanted(kernel)

    return launched


def dry_run(
    graph: Graph, program: Program, backend: fused.TritonBackend, dtype: torch.dtype,
    rules: OperatorWorkspace, launched: Launched,
) -> None:  # fmt: skip
    """Carries the program out on shapes. What is launched goes to `launched`: the number of
    sections like the one it is in (of those of one kind and size the first stands for all), the
    part and its operands. backend: of the GPU, but on shapes. rules: of what operators take there.
    """

    def kind_of(section: dict[str, Any]) -> tuple[Any, ...]:
        return section["kind"], section["pass"], section["size"]

    def carry_out() -> None:
        on_shapes, left = OnShapes(graph, backend, dtype), Counter(map(kind_of, program.sections))
        with standing_for(rules):
            for number, section in enumerate(program.sections):
                if alike := left.pop(kind_of(section), 0):
                    backend.on_launch = partial(launched, alike)
                    on_shapes.through(program, number, section)

    apart(carry_out)


class OnShapes(Run):
    """Carries sections out on shapes. What calls no convolution and makes nothing is left out: what
    leaves for the host and comes back, GroupNorms' moments, attention's products."""

    def __init__(self, graph: Graph, backend: TorchBackend, dtype: torch.dtype) -> None:
        super().__init__(graph, backend, _META, dtype)

    def through(self, program: Program, number: int, section: dict[str, Any]) -> None:
        for n, node in enumerate(self.graph.nodes):
            if node.norm == GROUP and n not in self.affines:
                size = 2, self.graph.nodes[node.source].channels
                rows = torch.empty(size, dtype=torch.float64, device=_META)
                self.affines[n] = self._affine(n, node.source, [Moments(1, rows)])
        first = ProgramStep._make(program.step(number, 0))
        size = 1, self.graph.nodes[first.node].channels, *section["size"]
        x = torch.empty(size, dtype=self.dtype, device=_META)
        for _ in self.section(program, number, lambda r: x[:, :, slice(*r)], section):
            pass

    def _nothing(self, *_: Any) -> None:
        pass

    _store = _drop = _load = _reduce = _send = _recv = _nothing  # type: ignore[assignment]
