"""What tests/gpu/test_hunyuan3d.py stands on: its settings, pipelines in their modes, the call that
is made, and a recorder of noise. The settings are described there."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

DEVICE = torch.device(os.environ.get("HY3D_GPU_TEST_DEVICE", "cuda:0"))
ON_GPU = DEVICE.type == "cuda"
WIDTH: Any = os.environ.get("HY3D_GPU_TEST_WIDTH", "real" if ON_GPU else "tiny")
BACKEND = os.environ.get("HY3D_GPU_TEST_BACKEND", "inductor" if ON_GPU else "eager")
SIZE, STEPS, SEED = (512 if WIDTH == "real" else 64), 3, 42
CPU = torch.device("cpu")
MODES = ("plain", "model", "sequential", "compiled")


def set_mode(pipeline: Any, mode: str, device: torch.device, backend: str = "inductor") -> None:
    """Puts `pipeline` into one of MODES on `device`, whatever mode it was in."""
    for name in ("unet", "vae"):
        module = getattr(pipeline, name)
        setattr(pipeline, name, getattr(module, "_orig_mod", module))
    pipeline.remove_all_hooks()
    if mode == "model":
        pipeline.enable_model_cpu_offload(device=device)
    elif mode == "sequential":
        pipeline.to("cpu")
        _offload_sequentially(pipeline, device)
    else:
        pipeline.to(device)
    if mode == "compiled":  # as upstream's loaders do it
        pipeline.unet = torch.compile(pipeline.unet, backend=backend)
        pipeline.vae = torch.compile(pipeline.vae, backend=backend)


def _offload_sequentially(pipeline: Any, device: torch.device) -> None:
    if device.type != "cpu":
        pipeline.enable_sequential_cpu_offload(device=device)
        return
    import accelerate

    # diffusers would ask for "cpu:0", to which accelerate cannot move a Parameter.
    for module in pipeline.components.values():
        if isinstance(module, torch.nn.Module):
            accelerate.cpu_offload(module, device)


def encoding_first(pipeline: Any) -> Any:
    """The same parts in a pipeline that encodes its image as it was given, as upstream's paint
    pipeline does; diffusers' own moves the image to the execution device first."""
    from diffusers import StableDiffusionInstructPix2PixPipeline

    class EncodesItsInput(StableDiffusionInstructPix2PixPipeline):
        @torch.no_grad()
        def __call__(self, image: torch.Tensor, **options: Any) -> Any:
            batch = image if image.ndim == 4 else image[None]
            self.vae.encode(batch.to(self.vae.dtype) * 2 - 1)
            return super().__call__(image=image, **options)

    made = EncodesItsInput(**pipeline.components, requires_safety_checker=False)
    made.set_progress_bar_config(disable=True)
    return made


class NoiseRecorder:
    """Every draw that diffusers makes while the recorder is open, as tensors on the CPU."""

    def __init__(self) -> None:
        self.draws: list[torch.Tensor] = []

    @contextlib.contextmanager
    def open(self) -> Iterator[NoiseRecorder]:
        real = importlib.import_module("diffusers.utils.torch_utils").randn_tensor

        def recording(*args: Any, **kwargs: Any) -> torch.Tensor:
            noise = real(*args, **kwargs)
            self.draws.append(noise.detach().cpu())
            return noise

        users = [
            module
            for name, module in list(sys.modules.items())
            if name.startswith("diffusers.") and vars(module).get("randn_tensor") is real
        ]
        for module in users:
            module.randn_tensor = recording  # type: ignore[attr-defined]
        try:
            yield self
        finally:
            for module in users:
                module.randn_tensor = real  # type: ignore[attr-defined]

    def differs_from(self, generator: torch.Generator) -> str | None:
        """None if the draws are `generator`'s next ones, bit for bit; else what differs first."""
        for number, noise in enumerate(self.draws):
            expected = torch.randn(
                noise.shape, generator=generator, dtype=noise.dtype, device=generator.device
            ).cpu()
            if not torch.equal(noise, expected):
                gap = (noise.float() - expected.float()).abs().max().item()
                return f"draw {number} of {len(self.draws)} {tuple(noise.shape)}: off by {gap}"
        return None if self.draws else "nothing was drawn"


def text_of(call: Any) -> str:
    """What `call()` raises, as a text; empty if it succeeds."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def photograph(number: int = 0, device: torch.device = CPU) -> torch.Tensor:
    """(3, SIZE, SIZE) float32 in 0..1, smooth and coloured."""
    ramp = torch.linspace(0, 1, SIZE)
    rows, columns = torch.meshgrid(ramp, ramp, indexing="ij")
    waves = (7 * rows * (number + 1)).sin() * 0.5 + 0.5
    return torch.stack([rows, columns, waves]).to(device)


def delight(
    called: Any, image: torch.Tensor | None = None, seed: int = SEED, **options: Any
) -> torch.Tensor:
    """One picture (3, SIZE, SIZE) float32 on the CPU, by the call that Hy3DDelightImage makes."""
    given = {"generator": torch.Generator().manual_seed(seed), **options}
    out = called(
        prompt="",
        image=photograph() if image is None else image,
        num_inference_steps=STEPS,
        image_guidance_scale=1.5,
        guidance_scale=1.01,
        output_type="pt",
        **given,
    ).images[0]
    assert out.device.type == DEVICE.type
    return out.detach().float().cpu()


def say(text: str) -> None:
    print(f"\n[hunyuan3d] {text}")


def allocated(device: torch.device = DEVICE) -> int:
    """Bytes that live tensors hold on `device`."""
    gc.collect()
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device)
