"""The ways in which one VAE can decode (or encode) one latent, and what each takes.

run() is the only place that knows how a Way becomes engine and frames, so what is priced is what
will run: price() calls it on shapes (predict.py), the decode calls it on tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.live import modelled, on_host
from hy3d_rocm.decode.planner import Need, Way
from hy3d_rocm.decode.predict import CountingBackend, MetaWeights, Prediction, Predictor
from hy3d_rocm.decode.workspace import OperatorWorkspace
from hy3d_rocm.units import MB

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.conv.tiers.base import Tier
    from hy3d_rocm.decode.layers import Backend, Weights
    from hy3d_rocm.decode.movers import Mover, Ticket
    from hy3d_rocm.decode.runner import Counter

__all__ = ["Job", "Prices", "Tools", "WayOptions", "list_ways", "run"]

Shape = tuple[int, ...]  # (B, C, T, H, W)
MakeBackend = Callable[["Weights", torch.device], "Backend"]

# Chunks of a steady state: a longer video is priced by the line through two shorter ones.
_STEADY_CHUNKS = (8, 12)


@dataclass(frozen=True)
class WayOptions:
    """What may be chosen about ways. Sizes in bytes or latent frames.

    chunk_size: latent frames that go through all layers at a time, where norms are per position;
    None: 2 on a GPU, 1 on the CPU. slice_bytes: see LayerEngine. cpu_offload: whether activations
    may be spilled to the host. precision: a narrower type that the last resort may take, or None.
    """

    chunk_size: int | None = None
    slice_bytes: int | None = None
    cpu_offload: bool = True
    precision: torch.dtype | None = None

    def __post_init__(self) -> None:
        for name in ("chunk_size", "slice_bytes"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value < 1
            ):
                raise ValueError(
                    f'{name} is {value!r}; give a whole number of 1 or more, or "auto"'
                )


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be decoded: a latent of `shape` (B, C, T, H, W) by `family` on `device`.

    device: where it is computed unless the way says "cpu". dtype: of the computation; result_dtype:
    of the frames. encode: the other way round, `shape` is that of the pixels. keeps_result: whether
    all frames are kept in host memory (False: they go to a file as they come).
    make_backend: (weights, device) -> Backend, also for the device "meta", where it stands for
    `device`; tier: of hy3d_rocm.conv that computes what the backend leaves to F.conv3d, None for
    torch's own.
    """

    family: Any
    shape: Shape
    device: torch.device
    dtype: torch.dtype
    result_dtype: torch.dtype
    make_backend: MakeBackend
    encode: bool = False
    keeps_result: bool = True
    tier: Tier | None = None

    @property
    def out_shape(self) -> Shape:
        """Of the result of all samples."""
        family = self.family
        shape: Shape = (
            family.moments_shape(self.shape) if self.encode else family.out_shape(self.shape)
        )
        return shape

    def device_of(self, way: Way) -> torch.device:
        """Where the way computes."""
        return torch.device("cpu") if way.strategy == "cpu" else self.device

    def dtype_of(self, way: Way) -> torch.dtype:
        """The type that it computes in."""
        dtype: torch.dtype = way.parameters.get("dtype", self.dtype)
        return dtype


@dataclass
class Tools:
    """What a run is given beside the job. mover: see LayerEngine, needed where slices spill."""

    backend: Backend
    device: torch.device
    counter: Counter | None = None
    on_pressure: Callable[[], object] | None = None
    mover: Mover | None = None
    watch: Callable[..., object] | None = None

    @property
    def on_host(self) -> bool:
        """Whether frames come in host memory."""
        return modelled(self.device).type == "cpu"


def torch_backend(weights: Weights, device: torch.device) -> Backend:
    """TorchBackend; on "meta" one that counts what it would take."""
    from hy3d_rocm.decode.torch_backend import TorchBackend

    backend = TorchBackend(weights)
    return CountingBackend(backend, weights) if device.type == "meta" else backend


def default_backend(device: torch.device, dtype: torch.dtype) -> MakeBackend:
    """FusedBackend where its kernels run, else TorchBackend; for computing in `dtype` on `device`
    (on another one, the host's, always TorchBackend)."""
    from hy3d_rocm.decode.fused.backend import FusedBackend, refusal

    if device.type != "cuda" or refusal(device, dtype) is not None:
        return torch_backend

    def make(weights: Weights, where: torch.device) -> Backend:
        if where.type == "meta" and modelled(where).type == "cuda":
            return CountingBackend(FusedBackend(weights, device), weights)
        return (
            FusedBackend(weights, where) if where.type == "cuda" else torch_backend(weights, where)
        )

    return make


def list_ways(job: Job, options: WayOptions | None = None) -> Iterator[Way]:
    """The ways of a job in the order of preference."""
    options = options or WayOptions()
    yield Way("whole")
    yield from _streamed("streamed", job, job.device, options)
    yield from _streamed("cpu", job, torch.device("cpu"), options)


def _streamed(strategy: str, job: Job, device: torch.device, options: WayOptions) -> Iterator[Way]:
    """Exact in less memory: layer by layer where norms see the whole video, else in chunks."""
    on_cpu = device.type == "cpu"
    if job.family.has_global_norms:
        slice_bytes = options.slice_bytes or (32 * MB if on_cpu else 256 * MB)
        parameters = {"engine": "layers", "slice_bytes": slice_bytes}
        spills = options.cpu_offload and not on_cpu
        yield Way(strategy, "layer by layer", parameters, spills=spills)
        return
    chunk = options.chunk_size or (1 if on_cpu else 2)
    chunk = min(chunk, job.shape[2])
    sizes = [chunk] if options.chunk_size or chunk == 1 else [chunk, 1]
    for size in sizes:
        parameters = {"engine": "chunks", "chunk": size}
        yield Way(strategy, f"in chunks of {size} latent frame{'s' * (size > 1)}", parameters)


def collect(job: Job, way: Way, z: Tensor, tools: Tools, out: Tensor | None = None) -> Tensor:
    """The result of all samples of z (B, C, T, H, W), in host memory. out: where it goes."""
    single = z.shape[0] == 1
    for sample in range(z.shape[0]):
        for first, frames in run(job, way, z[sample : sample + 1], tools, sample):
            if out is None and single and way.strategy == "whole" and tools.on_host:
                return frames.to(job.result_dtype)
            if out is None:
                out = torch.empty(job.out_shape, dtype=job.result_dtype)
            out[sample : sample + 1, :, first : first + frames.shape[2]].copy_(frames)
    assert out is not None
    return out


def run(
    job: Job, way: Way, z: Tensor, tools: Tools, sample: int = 0
) -> Iterator[tuple[int, Tensor]]:
    """(first frame, frames (1, C, t, H, W)) of one sample z (1, C, T, H, W), in order, on
    tools.device. The frames are to be copied before the next are asked for."""
    function = job.family.encode if job.encode else job.family.decode
    engine = way.parameters.get("engine")
    if engine is None:
        whole = job.family.whole_encode if job.encode else job.family.whole
        with torch.no_grad():
            yield 0, whole(z.to(tools.device, job.dtype_of(way)))
    elif engine == "layers":
        yield from _by_layers(job, way, function, z, tools, sample)
    elif engine == "chunks":
        yield from _by_chunks(job, way, function, z, tools)
    else:
        raise ValueError(f"the engine {engine!r} is not known")


def _by_layers(
    job: Job, way: Way, function: Any, z: Tensor, tools: Tools, sample: int
) -> Iterator[tuple[int, Tensor]]:
    from hy3d_rocm.decode.layerwise import LayerEngine

    engine = LayerEngine(
        tools.backend,
        tools.device,
        slice_bytes=way.parameters["slice_bytes"],
        resident_bytes=way.resident_bytes,
        counter=tools.counter,
        on_pressure=tools.on_pressure,
        watch=tools.watch,
        moments=job.family.has_global_norms,
        mover=tools.mover,
        sample=sample,
    )
    with torch.no_grad():
        entered = engine.enter(z.to(tools.device, job.dtype_of(way)))
        yield from engine.leave(function(engine, entered))


def _by_chunks(
    job: Job, way: Way, function: Any, z: Tensor, tools: Tools
) -> Iterator[tuple[int, Tensor]]:
    from hy3d_rocm.decode.chunkwise import ChunkEngine

    engine = ChunkEngine(tools.backend, tools.counter, on_pressure=tools.on_pressure)
    chunk = way.parameters["chunk"]
    yield from engine.run(function, z, chunk, tools.device, job.dtype_of(way))


class Prices:
    """What the ways of a job take; called as price(way) by the planner."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, way: Way) -> Need:
        """Planned bytes, the result included. ValueError (a sentence) where they can't be told."""
        on_cpu = self.job.device_of(way).type == "cpu"
        planned = self.predicted(way).planned(on_cpu)
        if not on_cpu:
            return Need(planned.device_bytes, planned.host_bytes, planned.macs)
        if self.job.device.type == "cpu":
            return Need(planned.both_bytes, 0, planned.macs)
        return Need(0, planned.both_bytes, planned.macs)

    def predicted(self, way: Way) -> Prediction:
        """The peaks before any allowance."""
        job = self.job
        frames, chunk = job.shape[2], way.parameters.get("chunk")
        if chunk is None or frames <= chunk * _STEADY_CHUNKS[1]:
            return self._of(way, frames)
        short, long = (chunk * n for n in _STEADY_CHUNKS)
        a, b = self._of(way, short), self._of(way, long)
        return _line(a, b, (frames - short) / (long - short))

    def _of(self, way: Way, frames: int) -> Prediction:
        job = replace(self.job, shape=(*self.job.shape[:2], frames, *self.job.shape[3:]))
        predictor = Predictor(job.family.decoder, self._workspace(way))
        key = (
            type(job.family).__name__, job.encode, job.shape, str(job.dtype_of(way)),
            str(job.result_dtype), job.keeps_result, way.strategy, way.resident_bytes,
            tuple(sorted((k, str(v)) for k, v in way.parameters.items())),
        )  # fmt: skip
        known: list[Tensor] = []
        if way.strategy == "whole":
            ghost = meta_family(job.family, job.dtype_of(way))
            known = [*ghost.vae.parameters(), *ghost.vae.buffers()]
            job = replace(job, family=ghost)
        found = predictor.of(key, lambda: _ghost_run(job, way), known)
        return found if way.strategy != "whole" else _with(found, self._converted_bytes(way))

    def _converted_bytes(self, way: Way) -> int:
        """Of the copy of the parameters that a whole decode in another type works on."""
        dtype = self.job.dtype_of(way)
        return sum(
            p.numel() * dtype.itemsize
            for p in self.job.family.vae.parameters()
            if p.is_floating_point() and p.dtype != dtype
        )

    def _workspace(self, way: Way) -> OperatorWorkspace:
        job, device = self.job, self.job.device_of(way)
        if way.strategy == "cpu":
            from hy3d_rocm.conv.tiers import make_tier

            return OperatorWorkspace(device, make_tier("cpu"))
        return OperatorWorkspace(device, job.tier)


def _line(a: Prediction, b: Prediction, x: float) -> Prediction:
    """a at 0, b at 1, and on."""

    def at(p: int, q: int) -> int:
        return round(p + max(q - p, 0) * x)

    return Prediction(
        at(a.device_bytes, b.device_bytes),
        at(a.host_bytes, b.host_bytes),
        at(a.both_bytes, b.both_bytes),
        at(a.macs, b.macs),
    )


def _with(found: Prediction, more: int) -> Prediction:
    """With `more` bytes on the device throughout."""
    return replace(
        found, device_bytes=found.device_bytes + more, both_bytes=found.both_bytes + more
    )


def _ghost_run(job: Job, way: Way) -> object:
    """The way on shapes, as the executor runs it: each piece of frames is copied into the result,
    which is on the host."""
    meta = torch.device("meta")
    weights = MetaWeights(job.dtype_of(way), job.device_of(way))
    z = torch.empty((1, *job.shape[1:]), dtype=job.dtype_of(way), device=meta)
    tools = Tools(job.make_backend(weights, meta), meta, mover=_CountedMover())
    if not job.keeps_result:
        for _, frames in run(job, way, z, tools):
            del frames
        return None
    out = None
    if job.shape[0] > 1 or way.strategy != "whole" or not tools.on_host:
        out = on_host(torch.empty(job.out_shape, dtype=job.result_dtype, device=meta))
    return collect(job, way, z, tools, out)


class _CountedMover:
    """For slices that spill in a prediction: as StreamMover takes memory, which rounds up."""

    overlaps = True

    def send(self, tensor: Tensor) -> tuple[Any, Ticket]:
        from hy3d_rocm.decode.movers import Done

        like = torch.empty_like(tensor)
        host = torch.empty(self.host_bytes(tensor.nbytes), dtype=torch.uint8, device="meta")
        return (on_host(host), like.size(), like.stride(), tensor.dtype), Done()

    def bring(self, parked: Any) -> tuple[Tensor, Ticket]:
        from hy3d_rocm.decode.movers import Done

        _, size, stride, dtype = parked
        return torch.empty_strided(size, stride, dtype=dtype, device="meta"), Done()

    def free(self, parked: Any) -> None:
        """Its memory goes with it."""

    def host_bytes(self, nbytes: int) -> int:
        return 1 << max(nbytes - 1, 0).bit_length()


def meta_family(family: Any, dtype: torch.dtype | None = None) -> Any:
    """The family over a copy of its VAE with parameters on "meta" (of type `dtype` where given).

    ValueError (a sentence) where the VAE can't be copied.
    """
    vae = family.vae
    memo: dict[int, Any] = {}
    for parameter in (*vae.parameters(), *vae.buffers()):
        target = dtype if dtype is not None and parameter.is_floating_point() else parameter.dtype
        like = torch.empty_strided(parameter.shape, parameter.stride(), dtype=target, device="meta")
        is_parameter = isinstance(parameter, torch.nn.Parameter)
        memo[id(parameter)] = (
            torch.nn.Parameter(like, requires_grad=False) if is_parameter else like
        )
    try:
        ghost = copy.deepcopy(vae, memo)
        return type(family)(ghost)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        raise ValueError(
            f"what its own code takes can't be told beforehand ({type(vae).__name__} can't be "
            f"copied: {error})"
        ) from error
