"""Programs on the CPU for the tests of what carries them out, and what goes wrong on the way."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from decode_doubles import TIMESTEP, tiny_latents, tiny_pixels
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from hy3d_rocm import _core
from hy3d_rocm.decoding import graph as graph_module
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend
from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.decoding.faults import ATTEMPTS
from hy3d_rocm.decoding.graph import Graph
from hy3d_rocm.decoding.layers import Conv, ModuleWeights, Norm
from hy3d_rocm.decoding.memory.steps import StepWorkspace
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace
from hy3d_rocm.decoding.report import Step
from hy3d_rocm.decoding.run import Run
from hy3d_rocm.decoding.tiled_run import TiledRun

CPU = torch.device("cpu")
ALL = 1 << 40
STREAMED, TILED = 1 << 1, 1 << 2


def torch_backend(dtype: torch.dtype = torch.float32) -> TorchBackend:
    return TorchBackend(ModuleWeights(dtype, CPU))


class OverwritingBackend(TorchBackend):
    """Makes its result in the residual's memory, as a backend may."""

    def convolve(self, layer: Any, source: Any, frames: Any, **more: Any) -> Any:
        add = more.pop("add", None)
        made, moments = super().convolve(layer, source, frames, **more)
        return (made, moments) if add is None else (add.add_(made), None)


def family_of(kind: str, vae: Any) -> Any:
    return family_for(vae, timestep=TIMESTEP.get(kind))


def source_of(family: Any, encode: bool, latents: int, rows: int = 2, columns: int = 3) -> Any:
    """Latents, or as many pixels as make them where the VAE's steps are that long."""
    if not encode:
        return tiny_latents(family.vae, latents, rows, columns, seed=latents)
    frames = 1 + (latents - 1) * family.pixel_steps[0]
    space = family.factor[1]
    return tiny_pixels(frames, rows * space, columns * space, seed=latents)


# Graphs


def graph_of(function: Callable[[Any, Any], Any], x: Any) -> Graph:
    """Of a function over an engine, for an input like x (1, C, T, H, W)."""
    return graph_module.graph_of(function, tuple(x.shape[1:]))


def by_layers(graph: Graph) -> Graph:
    """The graph with every norm over the whole video, so that the compiler goes by layers. What is
    reduced for the norms per position or frame is passed by when they are computed."""
    nodes = tuple(n._replace(norm=2) if n.norm else n for n in graph.nodes)
    return Graph(nodes, graph.layers)


def marked(channels: int) -> Callable[[Any, Any], Any]:
    """A function that gives x back, bit for bit, by a convolution with a GroupNorm that makes
    nothing of it, and x as residual: the compiler goes by layers then."""
    norm = torch.nn.GroupNorm(1, channels)
    torch.nn.init.zeros_(norm.weight)
    layer = Conv(
        torch.nn.Linear(channels, channels, bias=False), norm=Norm("group", norm, 1e-6, bias="bias")
    )
    return lambda engine, x: engine.conv(x, layer, add=x)


def parameters_of(graph: Graph) -> list[torch.Tensor]:
    """Of all modules that its layers hold."""
    parts = [part for layer in graph.layers if layer is not None for part in vars(layer).values()]
    parts += [part.module for part in parts if isinstance(part, Norm)]
    modules = [part for part in parts if isinstance(part, torch.nn.Module)]
    return [t for module in modules for t in (*module.parameters(), *module.buffers())]


def statistics_bytes(graph: Graph, program: Any) -> int:
    """What a program does not count: mean and deviations of each slice, (C,) in float64; and while
    they are combined, both stacked, a term of a sum each, and a few (C,) in float64."""
    slices = program.slices(0)
    found, most = 0, 0
    for node, entry in enumerate(graph.nodes):
        count = sum(s[0] == node and not s[1] for s in slices)
        found += 16 * entry.channels * count
        most = max(most, (6 * count + 16) * 8 * entry.channels)
    return found + most


def parameter_bytes(graph: Graph) -> int:
    """Of the norms' parameters of one layer, copied a few times while it is computed."""
    return 16 * max(node.channels for node in graph.nodes) * 8


# Programs


def rules() -> OperatorWorkspace:
    """Those of the CPU, without the code that oneDNN generates: no tensor shows that."""
    found = OperatorWorkspace(CPU)
    found.code_scale = 0.0
    return found


def compiled(graph: Graph, x: Any, **request: Any) -> Any:
    """The schedule of a graph for x (1, C, T, H, W), streamed."""
    slice_bytes, chunk = request.pop("slice_bytes", ALL), request.pop("chunk", 1)
    asked = request.pop("asked", None)
    if asked is None:
        asked = StepWorkspace(graph, torch_backend(x.dtype), rules(), x.dtype)
    machine = ((slice_bytes, 0), (chunk, 0, 0), 1e12, 1e11, 1e-5, 1.0)
    wanted: dict[str, Any] = {
        "size": tuple(x.shape[2:]), "element_bytes": x.element_size(), "is_host": 1,
        "strategies": STREAMED, "copy_bytes_per_second": 1e10, "device": machine, "host": machine,
    }  # fmt: skip
    said = {"places": ()} if "workspace" in request else asked.request
    wanted |= {"workspace": lambda *step: (0, 0, 0, 0)} | said
    return _core.compile_schedule(graph.nodes, **(wanted | request))


def programs(graph: Graph, x: Any, **request: Any) -> Iterator[Any]:
    """Of every streamed order that the compiler has for the graph, one after the other."""
    schedule = compiled(graph, x, compiles_all=1, **request)
    while True:
        program = schedule.program
        yield program
        if program.fallback(ATTEMPTS, "no kernel") != "begin again":
            return


def compiled_tiles(graph: Graph, x: Any, level: int | None = None, **request: Any) -> Any:
    """The schedule in tiles of a level, or the smallest ones there are."""
    halo, chunk = request.pop("halo", -1), request.pop("chunk", 1)
    sizes = {"halos": ((halo, request.pop("overlap", 4), request.pop("least", 8)),)}
    wanted = {"strategies": TILED, "chunk": chunk} | sizes | request
    if level is not None:
        return compiled(graph, x, only_level=level + 1, **wanted)
    least = compiled(graph, x, device_budget=1, **wanted).smallest_budget
    return compiled(graph, x, device_budget=least, **wanted)


# Runs


def never(step: int, attempts: int, error: BaseException) -> bool:
    """No step is made again."""
    return False


def carried_out(graph: Graph, x: Any, program: Any, **options: Any) -> Any:
    """The whole result; the frames must come in order and without a gap."""
    backend = options.pop("backend", None) or torch_backend(x.dtype)
    options.setdefault("recover", never)
    run = Run(graph, backend, CPU, x.dtype, **options)
    parts, at = [], 0
    for first, frames in run.section(program, 0, lambda r: x[:, :, slice(*r)]):
        assert first == at
        at += frames.shape[2]
        with _disable_current_modes():  # what is copied here is the test's
            parts.append(frames.clone())
        del frames
    assert not run._slices, "slices were left over"
    with _disable_current_modes():
        return torch.cat(parts, 2)


def in_tiles(graph: Graph, x: Any, program: Any, out: Any, **options: Any) -> TiledRun:
    """Fills `out`; the run."""
    backend = options.pop("backend", None) or torch_backend(x.dtype)
    run = TiledRun(graph, backend, CPU, x.dtype, **({"recover": never} | options))
    out.fill_(torch.nan)
    run.tiles(program, x, out)
    return run


# What goes wrong


class Counter:
    """Steps, and an error before the one whose number is asked for."""

    def __init__(
        self, stop_at: int | None = None, error: type[BaseException] | None = None
    ) -> None:
        self.stop_at = stop_at
        self.error = error
        self.steps: list[Step] = []

    def check(self) -> None:
        if self.error is not None and len(self.steps) == self.stop_at:
            raise self.error("stopped")

    def tick(self, step: Step) -> None:
        self.steps.append(step)


class FailingSteps(Counter):
    """Out of memory at the steps whose numbers are given, as often as they are given."""

    def __init__(self, failures: tuple[int, ...]) -> None:
        super().__init__()
        self.left = list(failures)

    def check(self) -> None:
        if len(self.steps) in self.left:
            self.left.remove(len(self.steps))
            raise torch.OutOfMemoryError("the test's")


class FailingOperators(TorchDispatchMode):
    """Out of memory in place of the operators whose numbers are given; counts them. activations:
    only of those that make tensors of four dimensions or more."""

    def __init__(self, failures: set[int], activations: bool = False) -> None:
        super().__init__()
        self.failures = failures
        self.activations = activations
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.activations:
            made = func(*args, **(kwargs or {}))
            small = not isinstance(made, torch.Tensor) or made.dim() < 4
            if small or func._schema.is_mutable or func.is_view:
                return made
        number = self.count
        self.count += 1
        if number in self.failures:
            raise torch.OutOfMemoryError(f"the test's, in place of {func}")
        return func(*args, **(kwargs or {}))


class LateTransfers:
    """A second device whose copies happen as late as they may: a copy reads its source and writes
    its target only when it is waited for. What is read too early is NaN; a source that is gone
    before its copy is an error. What is on the host no mode sees."""

    def __init__(self, seed: int = 0, copies_that_fail: int = 0) -> None:
        self.rng = random.Random(seed)
        self.under_way: list[_Late] = []
        self.on_host: weakref.WeakSet[_Host] = weakref.WeakSet()
        self.sent = 0
        self.failed = False
        self.copies_that_fail = copies_that_fail

    def _may_fail(self) -> None:
        """Never twice in turn: three failures of a step would be raised."""
        self.failed = self.copies_that_fail > 0 and not self.failed and self.rng.random() < 0.3
        if self.failed:
            self.copies_that_fail -= 1
            raise torch.OutOfMemoryError("the test's, in a copy")

    def store(self, tensor: Any, at: int) -> Any:
        self._may_fail()
        with _disable_current_modes():
            host = _Host(torch.full_like(tensor, float("nan")), range(at, at + tensor.nbytes))
        for other in self.on_host:
            assert max(at, other.place.start) >= min(host.place.stop, other.place.stop)
        self.on_host.add(host)
        self.sent += 1
        return host, _Late(self, weakref.ref(tensor), host.tensor, host)

    def load(self, held: Any) -> Any:
        assert not held.pending, "it was asked back before it was out"
        self._may_fail()
        tensor = torch.full_like(held.tensor, float("nan"))
        return tensor, _Late(self, lambda: held.tensor, tensor, None)


class _Host:
    def __init__(self, tensor: Any, place: range) -> None:
        self.tensor, self.place = tensor, place
        self.pending = True


class _Late:
    def __init__(
        self, transfers: LateTransfers, source: Any, target: Any, host: _Host | None
    ) -> None:
        self.transfers, self.source, self.target, self.host = transfers, source, target, host
        transfers.under_way.append(self)

    def wait(self) -> None:
        if self.source is None:
            return
        source = self.source()
        assert source is not None, "the source of a copy was let go while the copy was under way"
        with _disable_current_modes():
            self.target.copy_(source)
        self._over()

    join = wait

    def _over(self) -> None:
        self.source = None
        self.transfers.under_way.remove(self)
        if self.host is not None:
            self.host.pending = False
