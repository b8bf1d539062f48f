"""VAEs and latents, from files or by a name. Nothing is fetched from a network."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm import checkout
from hy3d_rocm._rng import seeded_on
from hy3d_rocm.decoding.families import family_for, family_or_unknown
from hy3d_rocm.decoding.families.proof import CannotTellError
from hy3d_rocm.units import brief

logger = logging.getLogger("hy3d_rocm")

DEMO = "demo"  # in a VAE's place
# What make_vae() fills with random weights: its text, its kind, the widths that are set, what they
# are multiples of (32 groups; what three halvings divide), the widest of all over the last of them.
RANDOM = {
    "hunyuan": ("HunyuanVideo", "hunyuan", (128, 256, 512, 512), 32, 1),
    "wan": ("Wan 2.1", "wan21", (96,), 8, 4),
}
_SEEDVR2 = "seedvr2"  # in no package: see BareSeedVr2
SHAPES: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("models.toml").read_text(encoding="utf-8")
)
_KINDS = SHAPES["vaes"]
KINDS = (*_KINDS, _SEEDVR2)  # what bare_vae() knows by name

# Names under which programs store a latent; ComfyUI's SaveLatent writes the last one.
LATENT_NAMES = ("latents", "latent", "samples", "latent_tensor")
# ComfyUI's own mark of files whose latents are as the VAE takes them; older ones are to be
# divided by Stable Diffusion's scaling factor, as its LoadLatent does.
_COMFY_MARK = "latent_format_version_0"
_OLD_COMFY_FACTOR = 0.18215

# A safetensors file's names for types that weights come in.
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SHARD = re.compile(r".*-\d{5}-of-\d{5}")


class LoadingError(ValueError):
    """What was named can't be loaded or decoded here; the text says what to do."""


@dataclass(frozen=True)
class VaeFiles:
    """Where a VAE is: its config.json (None of the demo's, which has its own in the weights' file),
    its weights, its diffusers class and the weights' type."""

    config_file: Path | None
    weights: tuple[Path, ...]
    class_name: str
    config: Mapping[str, Any]
    dtype: torch.dtype

    @property
    def all(self) -> list[Path]:
        return [*([self.config_file] if self.config_file else []), *self.weights]


def find_vae(path: Path) -> VaeFiles:
    """The VAE at `path`: a diffusers folder, a pipeline's folder with vae/ in it, or a safetensors
    file beside its config.json; "demo", where nothing has that name, is the demo's."""
    if str(path) == DEMO and not path.exists():
        file = _demo().weights_path()  # stored as halves, trained and used in float32
        return VaeFiles(None, (file,), "AutoencoderKLHunyuanVideo", {}, torch.float32)
    is_folder = os.path.isdir(path)  # False for what is no name, too
    if not is_folder:
        _check_file(path, "weights")
    file, class_name, config = _read_config(path)
    weights = _weights_in(file.parent) if is_folder else (path,)
    return VaeFiles(file, weights, class_name, config, _stored_dtype(weights))


def _read_config(path: Path) -> tuple[Path, str, Any]:
    """A VAE's config.json, its class and what it says: at `path`, in vae/ there, or beside the file
    that it is."""
    folder = path if path.is_dir() else path.parent
    if path.is_dir() and not (folder / "config.json").is_file():
        folder = folder / "vae"
    config_file = folder / "config.json"
    if not config_file.is_file():
        where = f"{path} has no" if path.is_dir() else f"beside {path} is no"
        raise LoadingError(
            f"{where} config.json: name a VAE's folder as diffusers saves it, a pipeline's folder "
            "with vae/ in it, or put the VAE's config.json beside its weights"
        )
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
        class_name = str(config["_class_name"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise LoadingError(
            f'{config_file} does not tell the VAE\'s class (no "_class_name"): take the '
            "config.json that diffusers writes"
        ) from error
    return config_file, class_name, config


def _weights_in(folder: Path) -> tuple[Path, ...]:
    files = sorted(folder.glob("*.safetensors"))
    shards = [f for f in files if _SHARD.fullmatch(f.stem)]
    if len(shards) == len(files) and shards:
        return tuple(shards)
    plain = [f for f in files if f.name == "diffusion_pytorch_model.safetensors"] or files
    if len(plain) != 1:
        what = f"several ({_listed([f.name for f in files])})" if plain else "no"
        raise LoadingError(f"{folder} has {what} safetensors files: name the one that is meant")
    return tuple(plain)


def _stored_dtype(files: tuple[Path, ...]) -> torch.dtype:
    """The type that most of the weights' bytes are in, off the headers."""
    from safetensors import SafetensorError, safe_open

    sizes: Counter[torch.dtype] = Counter()
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for part in map(opened.get_slice, opened.keys()):
                    dtype = _DTYPES.get(part.get_dtype())
                    if dtype is not None:
                        sizes[dtype] += math.prod(part.get_shape()) * dtype.itemsize
        except (SafetensorError, OSError) as error:
            raise LoadingError(
                f"{file} is no safetensors file: {error}; fetch the file again"
            ) from error
    if not sizes:
        raise LoadingError(f"{files[0]} holds no floating point weights")
    return sizes.most_common(1)[0][0]


def load_vae(files: VaeFiles, dtype: torch.dtype | None = None) -> Any:
    """The VAE with its weights on the CPU, in eval mode. dtype: None as stored."""
    if files.config_file is None:
        return _cast(_demo_vae(), dtype or files.dtype)
    vae = _built(files.class_name, files.config, files.config_file)
    vae = _cast(vae, dtype or files.dtype)
    state = _state(files)
    known = vae.state_dict()
    odd = [n for n in known if n not in state] or [n for n in state if n not in known]
    if odd:
        return _from_single_file(files, dtype, odd)
    unlike = [n for n in known if known[n].shape != state[n].shape]
    if unlike:
        raise LoadingError(
            f"{files.weights[0]}: {unlike[0]} is {tuple(state[unlike[0]].shape)}, but the "
            f"config.json beside it describes {tuple(known[unlike[0]].shape)}: it belongs to "
            "another VAE"
        )
    vae.load_state_dict(state)
    return vae


def _demo_vae() -> Any:
    demo = _demo()
    try:
        return demo.load_demo_vae()
    except demo.DemoModelError as error:
        raise LoadingError(str(error)) from error


def _demo() -> Any:
    """The module that has the demo's VAE and its clip."""
    found = checkout.module("examples.demo_vae")
    if found is None:
        raise LoadingError(
            "the demo's VAE is missing from this installation: install hy3d-rocm again, or name a "
            "VAE's folder with --vae"
        )
    return found


def _cast(vae: Any, *to: Any) -> Any:
    """Module.to: diffusers' own to() warns of any cast, also where a class needs none of that."""
    return torch.nn.Module.to(vae, *to)


def _built(class_name: str, config: Mapping[str, Any], file: Path, device: str = "cpu") -> Any:
    """The VAE that `file`, a config.json, describes, without its weights."""
    kind = class_of(class_name)
    try:
        with torch.device(device):  # wherever the caller's default device is
            return kind.from_config(config).eval().requires_grad_(False)
    except Exception as error:
        raise LoadingError(
            f"{file} describes no {class_name} that can be made ({error}): take the config.json "
            "that diffusers writes"
        ) from error


def class_of(name: str) -> Any:
    """diffusers' VAE class of this name; LoadingError where there is none."""
    try:
        import diffusers
    except ImportError as error:
        raise LoadingError(
            f"{error.name} is missing: run this with ComfyUI's Python, where diffusers is, or pip "
            "install diffusers"
        ) from None
    kind = getattr(diffusers, name, None) if name.startswith("Autoencoder") else None
    if kind is None:
        raise LoadingError(
            f"diffusers {diffusers.__version__} has no VAE class {name!r}: update diffusers, or "
            "name another VAE"
        )
    return kind


def _state(files: VaeFiles) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    state: dict[str, Tensor] = {}
    for file in files.weights:
        try:
            state.update(load_file(file))
        except (SafetensorError, OSError) as error:
            raise LoadingError(f"{file} cannot be read: {error}") from error
    return state


def _from_single_file(files: VaeFiles, dtype: torch.dtype | None, odd: list[str]) -> Any:
    """Weights under other names, as a model's authors published them: diffusers translates some."""
    kind, config_file = class_of(files.class_name), files.config_file
    assert config_file is not None
    if len(files.weights) == 1 and hasattr(kind, "from_single_file"):
        try:
            vae = kind.from_single_file(
                str(files.weights[0]),
                config=str(config_file.parent),
                local_files_only=True,
                torch_dtype=dtype or files.dtype,
            )
        except Exception as error:  # noqa: BLE001  whatever its translation runs into
            logger.debug("from_single_file: %s", error)
        else:
            return vae.eval().requires_grad_(False)
    raise LoadingError(
        f"{files.weights[0]} does not hold the weights of the {files.class_name} that config.json "
        f"describes ({len(odd)} names do not match, {odd[0]} among them): take both from one place"
    )


def make_vae(
    name: str, device: torch.device, dtype: torch.dtype | None = None, scale: float = 1.0
) -> tuple[Any, str, bool]:
    """(VAE on `device`, what it is, whether its weights are random).

    name: one of RANDOM, of the real models' shapes; demo; a diffusers folder, or a safetensors file
    beside its config.json. dtype: None for bf16 on a GPU and float32 on the CPU; of files as
    stored. scale: below 1 the random ones get fewer channels.
    """
    if name in RANDOM:
        text, kind, full, unit, more = RANDOM[name]
        widths = tuple(max(round(width * scale / unit), 1) * unit for width in full)
        changes = {"block_out_channels": widths} if name == "hunyuan" else {"base_dim": widths[0]}
        usual = torch.bfloat16 if device.type == "cuda" else torch.float32
        vae = vae_like(_KINDS[kind]["class"], changes, device)
        vae.encoder = None
        text += f"'s VAE, random weights, {widths[0]} to {more * widths[-1]} channels"
        return _cast(vae, device, dtype or usual), text, True
    if name == DEMO:
        text = "the demo's trained HunyuanVideo VAE"
        return _cast(_demo_vae(), device, dtype or torch.float32), text, False
    if not Path(name).exists():
        raise LoadingError(
            f"--vae {name}: neither {', '.join(RANDOM)}, {DEMO} nor a folder or file that exists"
        )
    vae = load_vae(find_vae(Path(name)), dtype)
    return _cast(vae, device), type(vae).__name__, False


def vae_like(
    class_name: str, config: Mapping[str, Any], device: torch.device, dtype: Any = None
) -> Any:
    """Of diffusers' class and configuration, with random weights by a seed; dtype: None as made."""
    if not config:
        raise LoadingError(f"{class_name} without a configuration is no VAE of diffusers")
    with seeded_on(device, 0):
        vae = class_of(class_name).from_config(config)
    return _cast(vae.eval().requires_grad_(False), device, dtype)


def bare_vae(name: str) -> Any:
    """The VAE with parameters on "meta", by its kind, its folder or its config.json; demo, where
    nothing has that name, is the demo's. LoadingError for a name that is none."""
    path = Path(name)
    if name == _SEEDVR2:
        with torch.device("meta"):
            return BareSeedVr2().eval().requires_grad_(False)
    if name in _KINDS:
        known = _KINDS[name]
        return _built(known["class"], known.get("config", {}), path, "meta")
    if name == DEMO and not path.exists():
        return _demo_vae().to("meta")
    if path.is_dir() or path.name == "config.json":
        file, class_name, config = _read_config(path)
        return _built(class_name, config, file, "meta")
    raise LoadingError(
        f"--vae {brief(name)}: give {', '.join(KINDS)}, {DEMO}, or a folder with a config.json"
    )


class BareSeedVr2(torch.nn.Module):
    """SeedVR2's video VAE in structure only; without a forward() of any.

    Its classes are the upscaler's own and no package has them. They are built on diffusers' image
    VAE, and so is this: the same tree with convolutions of three axes.
    """

    def __init__(self, widths: tuple[int, ...] = (128, 256, 512, 512), **changes: Any) -> None:
        super().__init__()
        count, halvings = len(widths), 2  # of time
        shape: dict[str, Any] = {
            "block_out_channels": widths, "layers_per_block": 2, "latent_channels": 16,
            "down_block_types": ("DownEncoderBlock2D",) * count,
            "up_block_types": ("UpDecoderBlock2D",) * count,
            "use_quant_conv": False, "use_post_quant_conv": False,
        }  # fmt: skip
        image = class_of("AutoencoderKL")(**(shape | changes))
        self.encoder, self.decoder = image.encoder, image.decoder
        for coder in (self.encoder, self.decoder):
            for module in list(coder.modules()):
                for name, part in list(module.named_children()):
                    if isinstance(part, torch.nn.Conv2d):
                        size = 1 if part.kernel_size == (1, 1) else 3
                        setattr(module, name, _causal(part, (size,) * 3))
        for i, block in enumerate(self.encoder.down_blocks[:-1]):
            time = 2 if i >= count - 1 - halvings else 1
            down = block.downsamplers[0]
            down.conv = _causal(down.conv, (2 * time - 1, 3, 3), (time, 2, 2), (time - 1, 0, 0))
        for i, block in enumerate(self.decoder.up_blocks[:-1]):
            up, time = block.upsamplers[0], 2 if i < halvings else 1
            up.temporal_ratio, up.spatial_ratio, up.norm = time, 2, None
            up.upscale_conv = torch.nn.Conv3d(up.channels, 4 * time * up.channels, 1)

    def _decode(self, z: Tensor) -> Tensor:
        raise CannotTellError("SeedVR2's own code is not here to be asked")

    _encode = _decode


def _causal(like: Any, kernel: Any, stride: Any = 1, padding: Any = None) -> torch.nn.Conv3d:
    """A convolution between as many channels, padded in time by whoever calls it."""
    around = tuple(n // 2 for n in kernel) if padding is None else padding
    made = torch.nn.Conv3d(like.in_channels, like.out_channels, kernel, stride, (0, *around[1:]))
    made.temporal_padding = around[0]
    return made


def load_latents(path: Path, name: str | None = None) -> Tensor:
    """The latent of a safetensors file as it is stored; `name`: which of several tensors."""
    latents, name, is_old_comfy = _read_tensor(path, name)
    if not latents.is_floating_point():
        raise LoadingError(f"{path}: {name!r} is {latents.dtype}; a latent is floating point")
    if latents.element_size() == 1:  # fp8: nothing computes in it, and all of it is in float32
        latents = latents.float()
    if latents.ndim not in (4, 5):
        raise LoadingError(
            f"{path}: {name!r} has shape {tuple(latents.shape)}; a latent is (B, C, T, H, W), "
            "(C, T, H, W) or, of images, (B, C, H, W)"
        )
    if is_old_comfy:
        logger.info("%s: an old ComfyUI latent, divided by %s", path, _OLD_COMFY_FACTOR)
        latents = _wide(latents) / _OLD_COMFY_FACTOR
    return latents


def _read_tensor(path: Path, name: str | None) -> tuple[Tensor, str, bool]:
    """The tensor that is meant, its name, and whether a ComfyUI without its mark wrote it."""
    from safetensors import SafetensorError, safe_open

    _check_file(path, "latents")
    try:
        with safe_open(path, framework="pt") as opened:
            names = list(opened.keys())
            if name is None:
                name = _latent_name(path, [n for n in names if n != _COMFY_MARK])
            elif name not in names:
                raise LoadingError(f"{path} has no tensor {name!r}; it has {_listed(names)}")
            is_old_comfy = name == "latent_tensor" and _COMFY_MARK not in names
            return opened.get_tensor(name), name, is_old_comfy
    except SafetensorError as error:
        raise LoadingError(
            f"{path} is no safetensors file ({error}): save the latent with "
            'safetensors.torch.save_file({"latents": latents}, path)'
        ) from error


def _latent_name(path: Path, names: list[str]) -> str:
    found = [n for n in LATENT_NAMES if n in names] or names
    if len(names) == 1 or found is not names:
        return found[0]
    raise LoadingError(
        f"{path} has {_listed(names)}, none of which is called {', '.join(LATENT_NAMES)}: say "
        "which with --tensor"
    )


def as_video(latents: Tensor, channels: int) -> Tensor:
    """(B, C, T, H, W) of what a file held for a VAE of `channels` latent channels."""
    if latents.ndim == 5:
        return latents
    if latents.shape[0] == latents.shape[1] == channels:
        raise LoadingError(
            f"a latent of shape {tuple(latents.shape)} is a video or {channels} images: save it "
            "with five axes, (B, C, T, H, W)"
        )
    return latents.unsqueeze(0 if latents.shape[0] == channels else 2)


def latent_channels(vae: Any) -> int:
    """Channels of the latents that a diffusers VAE takes."""
    for name in ("latent_channels", "z_dim"):
        value = getattr(vae.config, name, None)
        if isinstance(value, int):
            return value
    raise LoadingError(f"the configuration of {type(vae).__name__} tells no latent channels")


def unscaled(latents: Tensor, vae: Any) -> Tensor:
    """Latents as a model makes them (--scaled) to those that the VAE takes: x * std / factor +
    mean, as diffusers' pipelines do it; a factor alone, or mean and std alone, where the VAE has
    only that."""
    factor = getattr(vae.config, "scaling_factor", None)
    shift = getattr(vae.config, "shift_factor", None)
    mean, std = (_per_channel(vae, f"latents_{n}", latents) for n in ("mean", "std"))
    if factor is None and mean is None and std is None:
        raise LoadingError(
            f"--scaled: the configuration of {type(vae).__name__} has no scaling_factor and no "
            "latents_mean and latents_std: scale the latents before saving them"
        )
    values = _wide(latents) / (1.0 if factor is None else float(factor))
    if mean is not None and std is not None:
        return values * std + mean
    return values + (float(shift) if shift is not None else 0.0)


def _wide(latents: Tensor) -> Tensor:
    """In float32, float64 as it is."""
    return latents.to(torch.promote_types(latents.dtype, torch.float32))


def _per_channel(vae: Any, name: str, latents: Tensor) -> Tensor | None:
    """A mean or deviation per channel: from the configuration, or LTX's buffers."""
    value = getattr(vae.config, name, None)
    value = getattr(vae, name, None) if value is None else value
    if value is None:
        return None
    try:
        tensor = torch.as_tensor(value, dtype=_wide(latents).dtype, device="cpu").reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LoadingError(
            f"{name} of the VAE's config.json is {brief(value)}, which is no list of numbers"
        ) from error
    if tensor.numel() != latents.shape[1]:
        raise LoadingError(
            f"{name} has {tensor.numel()} channels, the latent {latents.shape[1]}: they do not "
            "belong together"
        )
    return tensor.view(1, -1, 1, 1, 1)


def random_latents(vae: Any, frames: int, height: int, width: int, seed: int = 1) -> Tensor:
    """Normal latents (1, C, T, H, W) that make at least so many frames of at least that size."""
    shape = latent_shape(_asked_family(vae), frames, height, width)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu")


def latent_shape(family: Any, frames: int, height: int, width: int) -> tuple[int, ...]:
    """(1, C, T, H, W), the least that makes so many frames of that size."""
    time, space = family.factor
    shape = 1, int(family.latent_channels), 1, math.ceil(height / space), math.ceil(width / space)
    more = 0 if family.is_image else max(frames - int(family.out_shape(shape)[2]), 0)
    return *shape[:2], 1 + math.ceil(more / time), *shape[3:]


def _asked_family(vae: Any) -> Any:
    """Of a VAE whose layers are not known too, which is asked what small latents make of it."""
    try:
        return family_for(vae)
    except TypeError:
        pass
    try:
        channels = latent_channels(vae)
    except (LoadingError, AttributeError) as error:
        raise LoadingError(
            f"{type(vae).__name__} does not tell its latents' channels ({error}): give a capture "
            "in place of --size"
        ) from error
    with torch.inference_mode():
        family: Any = family_or_unknown(vae, torch.zeros(1, channels, 1, 4, 8, device="cpu"))
        if not family.facts.is_regular:
            raise LoadingError(
                f"{family.why}, and {family.facts.note}: give a capture in place of --size"
            )
    return family


def filmed_latents(vae: Any, frames: int, height: int, width: int) -> Tensor:
    """The held-out filmed clip through the VAE's own encoder, as the demo makes them."""
    if getattr(vae, "encoder", None) is None:
        raise LoadingError("a clip needs a VAE with an encoder: take --vae demo or a folder")
    demo = _demo()
    try:
        clip = demo.held_out_clip(frames, height, width)
    except (demo.ClipNotFoundError, ValueError) as error:
        raise LoadingError(str(error)) from error
    family = family_for(vae)
    with torch.inference_mode():
        latents: Tensor = vae.encode(clip.to(family.device, family.dtype)).latent_dist.mode()
    return latents.to("cpu", torch.float32).clone()


def pick_device(name: str | None) -> torch.device:
    """None or "auto": the first accelerator, else the CPU. LoadingError for what is not there."""
    if name in (None, "auto"):
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name or "")
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise LoadingError(f"--device {brief(name)}: give cpu, cuda, cuda:1 or auto")
    if device.type == "cpu":
        return device
    if (device.index or 0) >= torch.cuda.device_count():
        raise LoadingError(
            f"--device {name}: torch sees {torch.cuda.device_count()} GPUs here (hy3d-rocm doctor "
            "says why)"
        )
    return torch.device("cuda", device.index or 0)


def _check_file(path: Path, what: str) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise LoadingError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:  # too long, a NUL byte, a link in a circle
        reason = getattr(error, "strerror", None) or error
        raise LoadingError(f"{brief(str(path))} is no file of the {what}: {reason}") from None
    if stat.S_ISDIR(mode):
        raise LoadingError(f"{path} is a folder; name the file of the {what}")
    if not stat.S_ISREG(mode):
        raise LoadingError(f"{path} is a device or a pipe; name the file of the {what}")
    if path.suffix.lower() in (".pt", ".pth", ".ckpt", ".bin", ".pkl"):
        raise LoadingError(
            f"{path} is a pickle, which can run any code when it is read: convert it to safetensors"
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:6]) or "no tensors"
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"
