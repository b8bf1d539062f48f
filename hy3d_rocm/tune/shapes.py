"""The convolutions of one video decode, read from its decoder run on shapes alone: of the VAE's own
decode(), or of the plan that decode() would take.

Nothing is computed and no weights are needed: the model is made on the "meta" device, and every
convolution that its decode calls is noted with its layout, in the order and number of a real one.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hy3d_rocm import _native
from hy3d_rocm.conv.call import ConvSpec, dtype_name, make_spec, size_text
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend
from hy3d_rocm.decoding.compile_ahead import OnShapes
from hy3d_rocm.decoding.graph import record
from hy3d_rocm.decoding.layers import ModuleWeights
from hy3d_rocm.decoding.memory.dry_run import predict
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace
from hy3d_rocm.decoding.planning.compiled import Compiled
from hy3d_rocm.decoding.planning.jobs import Job
from hy3d_rocm.decoding.planning.planner import Plan, Variant
from hy3d_rocm.decoding.run import at_once
from hy3d_rocm.tools import loading

logger = logging.getLogger("hy3d_rocm")

_OWN_DECODES = ("AutoencoderKLHunyuanVideo", "AutoencoderKLWan")


@dataclass(frozen=True)
class Shape:
    """A convolution, and how often the decode runs it."""

    spec: ConvSpec
    count: int

    @property
    def weight(self) -> int:
        """Floating-point operations of all its runs."""
        return self.spec.flops * self.count

    def line(self) -> str:
        """'10 x conv3d 1x128x19x642x610 -> 128 k3x3x3, bf16'."""
        spec = self.spec
        layout = ", channels-last" if spec.channels_last else ""
        return (
            f"{self.count} x {spec.op} {size_text(spec.x_size)} -> {spec.weight_size[0]}"
            f" k{size_text(spec.kernel)}, {dtype_name(spec.dtype)}{layout}"
        )


def load_vae(name: str, dtype: torch.dtype) -> Any:
    """The VAE on "meta": "wan", a kind that loading.bare_vae() knows, or a diffusers folder's
    config. LoadingError for what is none."""
    vae = loading.bare_vae("wan21" if name == "wan" else name)
    # torch's own to(): diffusers' one warns of layers to be kept in float32 even if there are none.
    return torch.nn.Module.to(vae, dtype)


def is_as_diffusers(vae: Any) -> bool:
    """Whether collect() is for it: video VAEs whose own decode() users run under protect()."""
    return type(vae).__name__ in _OWN_DECODES


def collect(vae: Any, latent: tuple[int, ...], dtype: torch.dtype, device: str) -> list[Shape]:
    """The convolutions that vae.decode(latents) runs, as they would be on `device`; the most work
    first. The VAE lies on "meta"."""
    z = torch.empty(latent, dtype=dtype, device="meta")
    return _of_call(lambda: vae.decode(z), torch.device(device))


def _of_call(call: Callable[[], object], device: torch.device) -> list[Shape]:
    def noted() -> Counter[ConvSpec]:
        with torch.no_grad(), Notes(device) as notes:
            call()
        specs: Counter[ConvSpec] = notes.specs
        return specs

    # protect() and autocast of the caller belong to its thread: here the shapes meet neither.
    with ThreadPoolExecutor(1, thread_name_prefix="hy3d-tune-shapes") as worker:
        return _sorted(worker.submit(noted).result())


def _sorted(specs: Counter[ConvSpec]) -> list[Shape]:
    """The most work first."""
    shapes = [Shape(spec, count) for spec, count in specs.items()]
    return sorted(shapes, key=lambda shape: -shape.weight)


class Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the convolutions in its scope."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.specs: Counter[ConvSpec] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            spec = _spec(args, self._device)
            if spec is not None:
                self.specs[spec] += 1
        return func(*args, **(kwargs or {}))


def _spec(args: tuple[Any, ...], device: torch.device) -> ConvSpec | None:
    """Of aten.convolution's arguments; None for what the router leaves alone."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = args
    ndim = weight.dim() - 2
    if transposed or ndim not in (2, 3):
        return None
    # A meta tensor is none that is computed: one element stands for each, without its strides.
    stand_ins = [
        None if t is None else torch.empty((), dtype=t.dtype, device="cpu").expand(t.shape)
        for t in (x, weight, bias)
    ]
    spec = make_spec((*stand_ins, stride, padding, dilation, groups), ndim)
    last = torch.channels_last_3d if ndim == 3 else torch.channels_last
    is_last = any(
        t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in (x, weight)
    )
    return spec and dataclasses.replace(spec, device=device, channels_last=is_last)


def collect_decode(job: Job, plan: Plan | None) -> tuple[list[Shape], str]:
    """The convolutions, the most work first, and in words whose they are.

    job: of a family over "meta" parameters. plan: that would be taken; None, and where its layers
    are computed by fused kernels (which call no convolution), or it is no program: the decode of
    all frames at once, as the VAE's own code does it under protect().
    """
    if plan is not None and plan.strategy != "whole" and plan.compiled and not job.is_fused:
        try:
            found = _of_program(job, plan.variant, plan.compiled)
            return found, f"of the decode {plan.variant.name}"
        except (RuntimeError, ValueError, NotImplementedError) as error:
            logger.debug("hy3d_rocm: %s on shapes: %s", plan.variant.name, error)
    return _of_whole(job), "of the decode of all frames at once"


def _of_program(job: Job, way: Variant, compiled: Compiled) -> list[Shape]:
    """As its steps run, with torch's operators for the layers."""
    device, program = job.device_of(way), compiled.program
    found: Counter[ConvSpec] = Counter()

    def run() -> None:
        backend = TorchBackend(ModuleWeights(job.dtype, "meta"))
        on_shapes = OnShapes(compiled.graph, backend, job.dtype)
        seen: dict[Any, Counter[ConvSpec]] = {}
        for number, section in enumerate(program.sections):
            key = section["kind"], section["size"], program.steps(number)
            if key not in seen:
                with torch.no_grad(), Notes(device) as notes:
                    on_shapes.through(program, number, section)
                seen[key] = notes.specs
            found.update(seen[key])

    predict(run, workspace=OperatorWorkspace(device))
    if not found:
        raise ValueError("no convolution was seen")
    return _sorted(found)


def _of_whole(job: Job) -> list[Shape]:
    z = torch.empty((1, *job.shape[1:]), dtype=job.dtype, device="meta")
    if not _native.available:  # its layers are not run then, in tune as in decode()
        return _of_call(lambda: job.family.whole(z), job.device)
    backend = TorchBackend(ModuleWeights(job.dtype, "meta"))
    return _of_call(lambda: at_once(record(job.family), backend, z), job.device)
