"""What the benches share: the settings, the pipeline under test, and one picture.

The pipeline is a diffusers folder's, or random weights of the real shapes: time and memory of a
diffusion model do not depend on the values of its weights. What depends on values (the difference
between precisions) is labelled as such.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from hy3d_rocm._rng import seeded_on
from hy3d_rocm.bench.timing import BenchError
from hy3d_rocm.conv.errors import is_out_of_memory
from hy3d_rocm.decoding.precision import name_of as dtype_name
from hy3d_rocm.diagnose.env.shown import first_line
from hy3d_rocm.memory import gpu_bytes
from hy3d_rocm.meter import give_back
from hy3d_rocm.offload import estimate
from hy3d_rocm.pipeline import PipelineProxy
from hy3d_rocm.tools.loading import SHAPES, pick_device
from hy3d_rocm.units import size_text

Width = Literal["real", "tiny"]


def random_pipeline(width: Width, device: torch.device | str, dtype: torch.dtype) -> Any:
    """StableDiffusionInstructPix2PixPipeline of random weights made by a seed on `device`.

    "real" has the shapes of Stable Diffusion 2.1 (1.3e9 parameters), "tiny" about 2e5 and a VAE
    with a spatial factor of 2 in place of 8. Global random states are kept. No download.
    """
    _need_diffusers()
    from diffusers import AutoencoderKL, StableDiffusionInstructPix2PixPipeline
    from transformers import CLIPTextConfig, CLIPTextModel

    shapes = SHAPES["pictures"][width]
    marks = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    with seeded_on(device, 0):
        modules = {
            "vae": AutoencoderKL(**shapes["vae"]).to(dtype),
            "text_encoder": CLIPTextModel(CLIPTextConfig(**shapes["text"], **marks)).to(dtype),
            "unet": random_unet(width, in_channels=8).to(dtype),
        }
    pipeline = StableDiffusionInstructPix2PixPipeline(
        **modules, tokenizer=tokenizer(width), scheduler=ancestral_scheduler(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    for module in modules.values():
        module.eval().requires_grad_(False)
    return pipeline


def load_pipeline(folder: Path, dtype: torch.dtype) -> Any:
    """The pipeline of a diffusers folder, on the CPU, in `dtype`; BenchError if it is none."""
    _need_diffusers()
    from diffusers import EulerAncestralDiscreteScheduler, StableDiffusionInstructPix2PixPipeline

    if not (folder / "model_index.json").is_file():
        raise BenchError(
            f"{folder} holds no model_index.json; give a diffusers folder such as "
            "ComfyUI/models/diffusers/hunyuan3d-delight-v2-0, or no --model for random weights"
        )
    try:
        pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(
            str(folder), torch_dtype=dtype, safety_checker=None, local_files_only=True
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{folder} cannot be loaded: {first_line(error)}") from error
    # The node's loader replaces the scheduler likewise.
    pipeline.scheduler = EulerAncestralDiscreteScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def random_unet(width: Width, in_channels: int, **config: Any) -> Any:
    from diffusers import UNet2DConditionModel

    shape = {**SHAPES["pictures"][width]["unet"], **config}
    return UNet2DConditionModel(in_channels=in_channels, out_channels=4, **shape)


def ancestral_scheduler() -> Any:
    """EulerAncestralDiscreteScheduler with Stable Diffusion's noise levels."""
    from diffusers import EulerAncestralDiscreteScheduler

    return EulerAncestralDiscreteScheduler(
        beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012
    )


def tokenizer(width: Width) -> Any:
    """A CLIPTokenizer that knows its own two marks only: the delight prompt is empty."""
    from transformers import CLIPTokenizer

    with tempfile.TemporaryDirectory() as folder:
        vocabulary = {"<|startoftext|>": 0, "<|endoftext|>": 1}
        Path(folder, "vocab.json").write_text(json.dumps(vocabulary))
        Path(folder, "merges.txt").write_text("#version: 0.2\n")
        length = SHAPES["pictures"][width]["text"]["max_position_embeddings"]
        return CLIPTokenizer.from_pretrained(folder, model_max_length=length)


def _need_diffusers() -> None:
    try:
        import diffusers  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise BenchError(
            f"{error.name} is missing; run this with ComfyUI's Python, where the Hunyuan3D nodes "
            "have installed it, or: pip install diffusers transformers accelerate"
        ) from error


SEED = 42
CPU_SIZE, CPU_STEPS = 64, 2  # of the real width on a CPU, where 512 x 512 takes minutes a step
GPU_SIZE, GPU_STEPS = 512, 20


@dataclass(frozen=True)
class Settings:
    """What the user asked for; None is "choose".

    size: pixels a side. free_bytes: free memory that advice is given for.
    """

    model: Path | None = None
    tiny: bool = False
    device: str | None = None
    size: int | None = None
    steps: int | None = None
    repeats: int = 3
    free_bytes: int | None = None
    backend: str = "inductor"
    say: Callable[[str], None] = field(default=lambda _: None)


@dataclass
class Session:
    """A pipeline on its device. Sizes are pixels a side, memory is bytes at the start."""

    settings: Settings
    pipeline: Any
    device: torch.device
    dtype: torch.dtype
    size: int
    steps: int
    free_bytes: int | None
    total_bytes: int | None

    @property
    def random_weights(self) -> bool:
        return self.settings.model is None

    @property
    def unit(self) -> int:
        """Sizes that every level of VAE and UNet can halve are multiples of this."""
        levels = len(self.pipeline.unet.config.block_out_channels) - 1
        return int(self.pipeline.vae_scale_factor) << levels

    def picture(self, size: int | None = None, **options: Any) -> torch.Tensor:
        """(3, size, size) float on the device, by the delight node's call, always the same."""
        side = size or self.size
        ramp = torch.linspace(0, 1, side, device="cpu")
        rows, columns = torch.meshgrid(ramp, ramp, indexing="ij")
        image = torch.stack([rows, columns, (7 * rows).sin() * 0.5 + 0.5])
        proxy = PipelineProxy(self.pipeline, default_device=self.device)
        made: torch.Tensor = proxy(
            prompt="", image=image, generator=torch.Generator().manual_seed(SEED),
            num_inference_steps=self.steps, image_guidance_scale=1.5, guidance_scale=1.01,
            output_type="pt", **options,
        ).images[0]  # fmt: skip
        return made

    def make_resident(self) -> None:
        self.pipeline.remove_all_hooks()
        self.pipeline.to(self.device, silence_dtype_warnings=True)

    def facts(self) -> list[str]:
        """Lines on what is measured and where."""
        weights = size_text(estimate(self.pipeline).parameter_bytes, 2)
        kind = self.settings.model or ("tiny random weights" if self.settings.tiny else _RANDOM)
        where = f"{self.device}, torch {torch.__version__}"
        memory = "not measured: a CPU has no allocator that counts"
        if self.device.type == "cuda":
            where = f"{self.device} {torch.cuda.get_device_name(self.device)}, {versions()}"
            memory = f"{size_text(self.free_bytes)} free of {size_text(self.total_bytes)}"
            memory += " (free as given)" if self.settings.free_bytes is not None else ""
        return [
            f"model     {kind}, {dtype_name(self.dtype)}, {weights} of weights",
            f"device    {where}",
            f"memory    {memory}",
            f"picture   {self.size}x{self.size}, {self.steps} steps",
        ]


_RANDOM = "random weights of Stable Diffusion 2.1's shapes"


def open_session(settings: Settings, dtype: torch.dtype | None = None) -> Session:
    """Makes or loads the pipeline; BenchError or LoadingError with a remedy where that
    cannot be.

    dtype None: float16 on a GPU, as ComfyUI's node loads it, float32 on a CPU.
    """
    device = pick_device(settings.device)
    on_gpu = device.type == "cuda"
    chosen = dtype or (torch.float16 if on_gpu else torch.float32)
    free, total = gpu_bytes(device) if on_gpu else (None, None)
    pipeline = _pipeline(settings, device, chosen)
    size, steps = (GPU_SIZE, GPU_STEPS) if on_gpu and not settings.tiny else (CPU_SIZE, CPU_STEPS)
    session = Session(
        settings, pipeline, device, chosen, settings.size or size, settings.steps or steps,
        free if settings.free_bytes is None else settings.free_bytes, total,
    )  # fmt: skip
    step = 2 * int(pipeline.vae_scale_factor)
    if session.size % step or session.size < session.unit:
        raise BenchError(
            f"size {session.size}: give a multiple of {step} that is {session.unit} or more"
        )
    return session


def _pipeline(settings: Settings, device: torch.device, dtype: torch.dtype) -> Any:
    import diffusers

    # Every component that is parked on the CPU in float16 is a warning otherwise.
    diffusers.utils.logging.set_verbosity_error()
    if settings.model is not None:
        settings.say(f"loading {settings.model}")
        return load_pipeline(settings.model, dtype)
    width: Width = "tiny" if settings.tiny else "real"
    try:
        return random_pipeline(width, device, dtype)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    settings.say("the weights do not fit at once on the device: made on the CPU, which is slower")
    give_back(device)
    return random_pipeline(width, "cpu", dtype)


def versions() -> str:
    platform = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return f"torch {torch.__version__}, {platform}"
