"""Pipelines that answer strangely about their device, fail half-way, or execute elsewhere.

The real classes stay what they are: an odd one is an instance whose class is a subclass with one
property or method replaced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .probes import parts

SLOW_STEP_S = 0.05
BALLAST_BYTES = 4 << 30
CUDA_WORDS = ("cuda", torch.device("cuda"))


class CudaMeansCpu(TorchFunctionMode):
    """Only for the unpatched baseline: the literal "cuda" is the CPU in every torch call.

    It gives upstream's own pictures on a machine without CUDA, to compare ours with.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args = tuple("cpu" if type(a) is str and a == "cuda" else a for a in args)
        return function(*args, **(kwargs or {}))


def target() -> torch.device:
    """Where the pipelines compute: --device of the harness, whatever ComfyUI computes on."""
    return torch.device(os.environ.get("HY3D_HARNESS_DEVICE", "cpu"))


def _plain(pipeline: Any) -> dict[str, Any]:
    pipeline.to(target())
    return {}


def _cuda_means_cpu(pipeline: Any) -> dict[str, Any]:
    kind = type(pipeline)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with CudaMeansCpu():
            return kind.__call__(self, *args, **kwargs)

    return {"__call__": call}


def _device_says(device: str | None) -> Callable[[Any], dict[str, Any]]:
    """Executes on `target()` and says another device, as under offload; None: raises."""

    def said(self: Any) -> torch.device:
        if device is None:
            raise RuntimeError("this pipeline does not say its device")
        return torch.device(device)

    def odd(pipeline: Any) -> dict[str, Any]:
        _plain(pipeline)
        executes = property(lambda self: target())
        return {"device": property(said), "_execution_device": executes}

    return odd


def _sequential(pipeline: Any) -> dict[str, Any]:
    """enable_sequential_cpu_offload; on a CPU what it does, as diffusers refuses it there."""
    from accelerate import cpu_offload

    if target().type != "cpu":
        pipeline.enable_sequential_cpu_offload(device=target())
        return {}
    for _name, part in parts(pipeline):
        cpu_offload(part, torch.device("cpu"), offload_buffers=len(part._parameters) > 0)
    return {}


def _model_hooks(pipeline: Any) -> dict[str, Any]:
    """enable_model_cpu_offload; on a CPU what it does, as diffusers refuses it there."""
    from accelerate import cpu_offload_with_hook

    if target().type != "cpu":
        pipeline.enable_model_cpu_offload(device=target())
        return {}
    # After each call diffusers hooks the parts anew, for this device. Up to 0.40 it takes "cuda"
    # where none is known.
    pipeline._offload_device = torch.device("cpu")
    pipeline._all_hooks, hook = [], None
    for _name, part in parts(pipeline):
        _part, hook = cpu_offload_with_hook(part, torch.device("cpu"), prev_module_hook=hook)
        pipeline._all_hooks.append(hook)
    return {}


def _compiled(pipeline: Any) -> dict[str, Any]:
    """torch.compile without a compiler: the module in the pipeline is an OptimizedModule."""
    _plain(pipeline)
    pipeline.vae = torch.compile(pipeline.vae, backend="eager")
    return {}


def _heavy(pipeline: Any) -> dict[str, Any]:
    """BALLAST_BYTES more weights in the network, so that a transfer takes long enough to see."""
    piece = 128 << 20
    for number in range(BALLAST_BYTES // piece):
        ballast = torch.zeros(piece, dtype=torch.uint8)
        pipeline.unet.register_buffer(f"ballast_{number}", ballast, persistent=False)
    return {}


def _float32_offloaded(pipeline: Any) -> dict[str, Any]:
    """Model offload in float32, and a call that encodes its image where it was given.

    Upstream's paint pipeline does that itself; diffusers' delight pipeline moves the image first.
    """
    pipeline.to(torch.float32)
    _model_hooks(pipeline)
    kind = type(pipeline)
    if not hasattr(pipeline, "prepare_image_latents"):
        return {}

    def call(self: Any, *args: Any, image: torch.Tensor, **kwargs: Any) -> Any:
        batch = image if image.ndim == 4 else image[None]
        with torch.no_grad():
            self.vae.encode(batch.to(self.vae.dtype) * 2 - 1)
        return kind.__call__(self, *args, image=image, **kwargs)

    return {"__call__": call}


def _float32_slow_convolution(pipeline: Any) -> dict[str, Any]:
    """The same where neither cuDNN (MIOpen) nor oneDNN convolves, as in ComfyUI on RDNA3."""
    inner = _float32_offloaded(pipeline).get("__call__", type(pipeline).__call__)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        mkldnn, cudnn = torch.backends.mkldnn, torch.backends.cudnn
        with mkldnn.flags(enabled=False), cudnn.flags(enabled=False):
            return inner(self, *args, **kwargs)

    return {"__call__": call}


KINDS = {
    "plain": _plain,
    "cuda means cpu": _cuda_means_cpu,
    "device says cpu": _device_says("cpu"),
    "device says cuda": _device_says("cuda:0"),
    "device says meta": _device_says("meta"),
    "device raises": _device_says(None),
    "sequential offload": _sequential,
    "model offload": _model_hooks,
    "compiled": _compiled,
    "heavy": _heavy,
    "float32 offload": _float32_offloaded,
    "float32 offload, slow convolution": _float32_slow_convolution,
}


def disguised(pipeline: Any, kind: str) -> Any:
    """`pipeline` itself, made odd as `kind` says."""
    namespace = KINDS[kind](pipeline)
    if namespace:
        parent = type(pipeline)
        pipeline.__class__ = type(parent.__name__, (parent,), namespace)
    return pipeline


def watched(pipeline: Any) -> Any:
    """`pipeline` whose every network step looks at the harness's signals: "slow" and "fail".

    A file "fail" raises at the second step of a call and is removed by that.
    """
    signals = Path(os.environ["HY3D_HARNESS_SIGNALS"])

    def step(module: Any, args: Any) -> None:
        if (signals / "slow").exists():
            time.sleep(SLOW_STEP_S)
        if (signals / "fail").exists():
            if (signals / "fail").read_text():
                (signals / "fail").unlink()
                raise RuntimeError("the harness wanted this step to fail")
            (signals / "fail").write_text("once")

    pipeline.unet.register_forward_pre_hook(step)
    return pipeline


class Elsewhere:
    """Executes on torch's "lazy" device, the second one that every CPU build has, and says "cpu".

    That is what an offloaded pipeline looks like from outside. An input that lies elsewhere than
    the weights gets torch's own error text. Its pictures are noise drawn with the generator that
    it is given.
    """

    device = torch.device("cpu")

    def __init__(self) -> None:
        import torch._lazy
        import torch._lazy.ts_backend

        torch._lazy.ts_backend.init()
        self._execution_device = torch.device("lazy", 0)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        image = kwargs["image"] if "image" in kwargs else args[0]
        weight = torch.ones(1, image.shape[-3], 3, 3).to(self._execution_device)
        seen = torch.nn.functional.conv2d(image.reshape(-1, *image.shape[-3:]), weight)
        if not torch.isfinite(seen.cpu()).all():
            raise RuntimeError("the input's numbers did not survive the move")
        return _pictures(kwargs)


class AllPropertiesRaise:
    """Has no device that can be asked for; computes on the CPU."""

    @property
    def device(self) -> torch.device:
        raise RuntimeError("no .device here")

    @property
    def _execution_device(self) -> torch.device:
        raise RuntimeError("no ._execution_device here")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _pictures(kwargs)


def _pictures(inputs: dict[str, Any]) -> Any:
    shape = (inputs.get("num_in_batch", 1), 3, inputs["height"], inputs["width"])
    return SimpleNamespace(images=_noise(shape, inputs["generator"]))


def _noise(shape: tuple[int, ...], generator: Any) -> torch.Tensor:
    if isinstance(generator, list):
        return torch.cat([torch.rand((1, *shape[1:]), generator=one) for one in generator])
    return torch.rand(shape, generator=generator)


STAND_INS = {"executes elsewhere": Elsewhere, "all properties raise": AllPropertiesRaise}


class HarnessStandIn:
    """A pipeline without networks."""

    RETURN_TYPES = ("HY3DDIFFUSERSPIPE",)
    FUNCTION = "make"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"kind": (list(STAND_INS),)}}

    def make(self, kind: str) -> tuple[Any]:
        return (STAND_INS[kind](),)
