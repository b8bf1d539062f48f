"""Latents and VAEs from files, for the command line. Nothing is fetched from a network."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.units import brief

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("hy3d_rocm")

DEMO = "demo"  # in a VAE's place

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
    """A file is not what it was taken for; the text says what to do."""


@dataclass(frozen=True)
class VaeFiles:
    """Where a VAE is: its configuration, its weights, its diffusers class and the weights' type."""

    folder: Path
    weights: tuple[Path, ...]
    class_name: str
    config: Mapping[str, Any]
    dtype: torch.dtype
    is_demo: bool = False

    @property
    def all(self) -> list[Path]:
        return [*([] if self.is_demo else [self.folder / "config.json"]), *self.weights]


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


def find_vae(path: Path) -> VaeFiles:
    """The VAE at `path`: a diffusers folder, a pipeline's folder with vae/ in it, or a safetensors
    file beside its config.json; "demo", where nothing has that name, is the demo's."""
    if str(path) == DEMO and not path.exists():
        return _demo_files()
    is_folder = os.path.isdir(path)  # False for what is no name, too
    if not is_folder:
        _check_file(path, "weights")
    folder, class_name, config = read_config(path)
    weights = _weights_in(folder) if is_folder else (path,)
    return VaeFiles(folder, weights, class_name, config, _stored_dtype(weights))


def read_config(path: Path) -> tuple[Path, str, Any]:
    """A VAE's folder, class and config.json: at `path`, in vae/ there, or beside the file that it
    is. LoadingError where there is none."""
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
    return folder, class_name, config


def _demo_files() -> VaeFiles:
    from hy3d_rocm.demo.model import DemoModelError, weights_path

    try:
        file = weights_path()
    except DemoModelError:
        raise LoadingError(
            "the demo's VAE comes with a source checkout, and this is an installed package: clone "
            "the repository and run this there, or name a VAE's folder with --vae"
        ) from None
    # Stored as halves, trained and used in float32.
    return VaeFiles(file.parent, (file,), "AutoencoderKLHunyuanVideo", {}, torch.float32, True)


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
    kind = class_of(files.class_name)
    if files.is_demo:
        from hy3d_rocm.demo.model import DemoModelError, load_demo_vae

        try:
            return torch.nn.Module.to(load_demo_vae(files.weights[0]), dtype or files.dtype)
        except DemoModelError as error:
            raise LoadingError(str(error)) from error
    try:
        config = kind.load_config(str(files.folder), local_files_only=True)
        with torch.device("cpu"):  # wherever the caller's default device is
            vae = kind.from_config(config)
        # Module.to: diffusers' own to() warns of any cast, also where a class needs none of that.
        vae = torch.nn.Module.to(vae, dtype or files.dtype)
    except Exception as error:
        raise LoadingError(
            f"{files.folder / 'config.json'} describes no {files.class_name} that can be made "
            f"({error}): take the config.json that diffusers writes"
        ) from error
    state = _state(files)
    known = vae.state_dict()
    odd = [n for n in known if n not in state] or [n for n in state if n not in known]
    if odd:
        return _from_single_file(kind, files, dtype, odd)
    unlike = [n for n in known if known[n].shape != state[n].shape]
    if unlike:
        raise LoadingError(
            f"{files.weights[0]}: {unlike[0]} is {tuple(state[unlike[0]].shape)}, but the "
            f"config.json beside it describes {tuple(known[unlike[0]].shape)}: it belongs to "
            "another VAE"
        )
    vae.load_state_dict(state)
    return vae.eval().requires_grad_(False)


def class_of(name: str) -> Any:
    """diffusers' VAE class of this name; LoadingError where there is none."""
    try:
        import diffusers
    except ImportError:
        raise LoadingError("loading a VAE needs diffusers: pip install diffusers") from None
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


def _from_single_file(kind: Any, files: VaeFiles, dtype: torch.dtype | None, odd: list[str]) -> Any:
    """Weights under other names, as a model's authors published them: diffusers translates some."""
    if len(files.weights) == 1 and hasattr(kind, "from_single_file"):
        try:
            vae = kind.from_single_file(
                str(files.weights[0]),
                config=str(files.folder),
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


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:6]) or "no tensors"
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"
