"""What the tools decode: a VAE and latents, from names, folders, files, captures or a size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.bench.models import BenchError, seeded_on
from hy3d_rocm.decode.capture import Captured, fingerprint, read_capture
from hy3d_rocm.decode.families import family_for, family_or_unknown

if TYPE_CHECKING:
    from torch import Tensor

NAMES = ("hunyuan", "wan", "demo")
# The least number of channels that HunyuanVideo's 32 groups divide, and Wan's three halvings.
_GROUPS, _WAN_STEP = 32, 8


class SubjectError(BenchError):
    """What was asked for can't be decoded here; the text says what to do."""


@dataclass
class Subject:
    """vae: on the device, in its type, or a family. latents: (B, C, T, H, W), on the host. text: a
    line on what it is. is_random: whether the weights mean nothing (time and memory do). notes:
    sentences."""

    vae: Any
    latents: Tensor
    text: str
    is_random: bool
    notes: tuple[str, ...] = ()

    @cached_property
    def family(self) -> Any:
        """As decode() takes the VAE: by its layers, or where they are not known by its own
        decode(); or what was given as a family (ComfyUI's VAEs are, with their host). TypeError (a
        sentence) where it is none of these."""
        if hasattr(self.vae, "has_global_norms"):
            return self.vae
        return family_or_unknown(self.vae, self.latents)

    @property
    def device(self) -> torch.device:
        """Where the weights are, or their host computes."""
        device: torch.device = self.family.device
        return device


def pick_device(name: str | None) -> torch.device:
    """None or "auto": the first accelerator, else the CPU. SubjectError for what is not there."""
    if name in (None, "auto"):
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name or "")
    except RuntimeError:
        raise SubjectError(f"device {name!r}: give cpu, cuda, cuda:1 or auto") from None
    if device.type not in ("cpu", "cuda"):
        raise SubjectError(f'device {name!r} is not measured here; give "cuda:0" or "cpu"')
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SubjectError(
            f"{name} is not there: torch sees {torch.cuda.device_count()} GPUs "
            "(hy3d-rocm doctor says why)"
        )
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def make_vae(
    name: str, device: torch.device, dtype: torch.dtype | None = None, scale: float = 1.0
) -> tuple[Any, str, bool]:
    """(VAE on `device`, what it is, whether its weights are random).

    name: one of NAMES, a diffusers folder, or a safetensors file beside its config.json. dtype:
    None for bf16 on a GPU and float32 on the CPU; of a folder as stored. scale: below 1 the random
    ones get fewer channels.
    """
    usual = torch.bfloat16 if device.type == "cuda" else torch.float32
    if name == "demo":
        from hy3d_rocm.demo.model import DemoModelError, load_demo_vae

        try:
            vae = load_demo_vae()
        except DemoModelError as error:
            raise SubjectError(str(error)) from error
        return _moved(vae, device, dtype), "the demo's trained HunyuanVideo VAE", False
    if name in NAMES:
        vae, text = _random_vae(name, device, scale)
        return _moved(vae, device, dtype or usual), text, True
    if not Path(name).exists():
        raise SubjectError(
            f"--vae {name}: neither {', '.join(NAMES)} nor a folder or file that exists"
        )
    from hy3d_rocm.tools import loading

    try:
        found = loading.load_vae(loading.find_vae(Path(name)), dtype)
    except loading.LoadingError as error:
        raise SubjectError(str(error)) from error
    return _moved(found, device, None), type(found).__name__, False


def _moved(vae: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    # torch's own to(): diffusers' one warns of layers to be kept in float32 even if there are none.
    vae = torch.nn.Module.to(vae, device)
    return torch.nn.Module.to(vae, dtype) if dtype is not None else vae


def _random_vae(name: str, device: torch.device, scale: float) -> tuple[Any, str]:
    """Full width (of the real models) times `scale`, without the encoder, weights by a seed."""
    diffusers = _diffusers()
    with seeded_on(device, 0):
        if name == "hunyuan":
            channels = tuple(
                max(round(c * scale / _GROUPS), 1) * _GROUPS for c in (128, 256, 512, 512)
            )
            vae = diffusers.AutoencoderKLHunyuanVideo(block_out_channels=channels)
            text = f"HunyuanVideo's VAE, random weights, {channels[0]} to {channels[-1]} channels"
        else:
            width = max(round(96 * scale / _WAN_STEP), 1) * _WAN_STEP
            vae = diffusers.AutoencoderKLWan(base_dim=width)
            text = f"Wan 2.1's VAE, random weights, {width} to {4 * width} channels"
    vae.encoder = None
    return vae.eval().requires_grad_(False), text


def _diffusers() -> Any:
    try:
        import diffusers
    except ImportError as error:
        raise SubjectError(
            f"{error.name} is missing: run this with ComfyUI's Python, where diffusers is, or pip "
            "install diffusers"
        ) from error
    return diffusers


def random_latents(vae: Any, frames: int, height: int, width: int, seed: int = 1) -> Tensor:
    """Normal latents (1, C, T, H, W) that make at least so many frames of at least that size."""
    shape = latent_shape(_asked_family(vae), frames, height, width)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu")


def latent_shape(family: Any, frames: int, height: int, width: int) -> tuple[int, ...]:
    """(1, C, T, H, W) that makes at least so many frames of at least that size."""
    time, space = family.factor
    steps = 1 if family.is_image else math.ceil((frames - 1) / time) + 1
    rows, columns = math.ceil(height / space), math.ceil(width / space)
    return 1, int(family.latent_channels), steps, rows, columns


def _asked_family(vae: Any) -> Any:
    """Of a VAE whose layers are not known too, which is asked what small latents make of it."""
    from hy3d_rocm.tools import loading

    try:
        return family_for(vae)
    except TypeError:
        pass
    try:
        channels = loading.latent_channels(vae)
    except (loading.LoadingError, AttributeError) as error:
        raise SubjectError(
            f"{type(vae).__name__} does not tell its latents' channels ({error}): give a capture "
            "in place of --size"
        ) from error
    with torch.inference_mode():
        family: Any = family_or_unknown(vae, torch.zeros(1, channels, 1, 4, 8, device="cpu"))
        if not family.facts.is_regular:
            raise SubjectError(
                f"{family.why}, and {family.facts.note}: give a capture in place of --size"
            )
    return family


def filmed_latents(vae: Any, frames: int, height: int, width: int) -> Tensor:
    """The held-out filmed clip through the VAE's own encoder, as the demo makes them."""
    from hy3d_rocm.demo.clips import ClipNotFoundError, held_out_clip

    if getattr(vae, "encoder", None) is None:
        raise SubjectError("a clip needs a VAE with an encoder: take --vae demo or a folder")
    try:
        clip = held_out_clip(frames, height, width)
    except (ClipNotFoundError, ValueError) as error:
        raise SubjectError(str(error)) from error
    family = family_for(vae)
    with torch.inference_mode():
        latents: Tensor = vae.encode(clip.to(family.device, family.dtype)).latent_dist.mode()
    return latents.to("cpu", torch.float32).clone()


def subject_from_size(
    name: str,
    device: torch.device,
    frames: int,
    height: int,
    width: int,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
) -> Subject:
    """By --vae, --size and --frames. The demo VAE gets the filmed clip, others random latents."""
    vae, text, is_random = make_vae(name, device, dtype, scale)
    if name == "demo":
        frames = math.ceil((frames - 1) / 4) * 4 + 1
        latents = filmed_latents(vae, frames, height, width)
        text += ", latents of a filmed clip it was never trained on"
    else:
        latents = random_latents(vae, frames, height, width)
        text += ", random latents"
    return Subject(vae, latents, text, is_random)


def subject_from_capture(path: Path, name: str | None, device: torch.device) -> Subject:
    """A captured decode again. Without --vae its class and configuration with random weights:
    time and memory are the same, values mean nothing."""
    found = read_capture(path)
    if found.facts["kind"] != "decode":
        raise SubjectError(f"{found.path.name} is a capture of an encode; only decodes are run")
    facts = found.facts["vae"]
    dtype = getattr(torch, str(facts["dtype"]), None)
    if name is None:
        vae, notes = _vae_of(found, device, dtype), ("the capture's VAE with random weights",)
        return Subject(vae, found.latents, f"{facts['class']} as captured", True, notes)
    vae, text, is_random = make_vae(name, device, dtype)
    same = fingerprint(vae) == facts["fingerprint"]
    said = "the same weights as captured" if same else "not the weights that were captured"
    return Subject(vae, found.latents, f"{text} with captured latents", is_random, (said,))


def _vae_of(found: Captured, device: torch.device, dtype: torch.dtype | None) -> Any:
    facts = found.facts["vae"]
    kind = getattr(_diffusers(), str(facts["class"]), None)
    if kind is None or not str(facts["class"]).startswith("Autoencoder") or not facts["config"]:
        raise SubjectError(
            f"{found.path.name}: {facts['class']} is no VAE class of diffusers, so it can't be "
            "built from the capture: name the VAE with --vae"
        )
    with seeded_on(device, 0):
        vae = kind.from_config(facts["config"])
    return _moved(vae.eval().requires_grad_(False), device, dtype)
