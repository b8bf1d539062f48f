"""What the Capture Latent node does: a LATENT and its VAE in the files of `hy3d-rocm capture`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from hy3d_rocm import capture
from hy3d_rocm.comfy import vaes
from hy3d_rocm.comfy.decode import latents_of
from hy3d_rocm.decoding.families.proof import CALL_ERRORS
from hy3d_rocm.units import brief, size_text

__all__ = ["capture_latent", "output_folder"]


def capture_latent(samples: Any, vae: Any, frames: Any, folder: str) -> tuple[Path, str]:
    """The path of the capture's JSON, and lines for the node.

    frames: an IMAGE (N, H, W, C) that was decoded from the latents, or None; stored with 8 bits a
    channel, with counts of what is not finite. Nothing is decoded, and the VAE is not moved.
    ValueError, in a sentence, for no LATENT, a folder outside of ComfyUI's, or too much to send.
    """
    target = output_folder(folder)
    latents = latents_of(samples)
    facts = capture.facts_of(_described(vae), latents, None)
    facts["outcome"] = "captured"  # by the node: no decode was begun
    facts["comfyui"] = _of_comfyui(samples, vae)
    stored = None
    if frames is not None:
        facts["frames"] = _told(frames)
        stored = _as_bytes(frames)
    try:
        path = capture.write_capture(target, latents, facts, stored)
    except OSError as error:
        raise ValueError(
            f"folder {brief(folder)} can't be written to: {error.strerror or error}; give a name "
            'such as "hy3d_rocm"'
        ) from error
    return path, "\n".join(_lines(path, facts))


def output_folder(folder: str) -> Path:
    """`folder` in ComfyUI's output directory; ValueError, in a sentence, where it leads out."""
    root = _root()
    try:
        target = (root / folder.strip()).resolve()
        target.exists()  # a name that is too long for the drive is told here
    except (OSError, ValueError, RuntimeError) as error:  # NUL bytes, links in a circle
        raise ValueError(
            f'folder {brief(folder)} is no name of a folder ({error}); give one such as "hy3d_rocm"'
        ) from None
    if not target.is_relative_to(root):
        raise ValueError(
            f"folder {brief(folder)} leads out of ComfyUI's output directory; give a name such as "
            '"hy3d_rocm"'
        )
    return target


def _root() -> Path:
    import folder_paths

    return Path(folder_paths.get_output_directory()).resolve()


def _described(vae: Any) -> Any:
    """The VAE's family, or as much as facts_of() asks for where its layers are not known."""
    try:
        return vaes.family_of(vae)
    except CALL_ERRORS:
        inner = getattr(vae, "first_stage_model", vae)
        return SimpleNamespace(
            vae=inner,
            name=type(inner).__name__,
            dtype=getattr(vae, "vae_dtype", getattr(inner, "dtype", "")),
            device=getattr(vae, "device", getattr(inner, "device", "")),
        )


def _of_comfyui(samples: dict[str, Any], vae: Any) -> dict[str, Any]:
    """What only ComfyUI knows: its version, what else is in the LATENT, whether it manages the
    VAE, and whether patches (LoRAs) lie on the weights, which the fingerprint does not see."""
    try:
        from comfyui_version import __version__ as version
    except ImportError:
        version = ""
    patcher = getattr(vae, "patcher", None)
    return {
        "version": version,
        "latent_keys": sorted(str(key) for key in samples),
        "is_managed": vaes.is_managed(vae),
        "patched_weights": len(getattr(patcher, "patches", None) or ()),
    }


def _told(frames: torch.Tensor) -> dict[str, Any]:
    """Facts of the frames as they came, which 8 bits can't tell any more."""
    finite = frames.isfinite()
    count = int(finite.sum())
    return {
        "shape": list(frames.shape),
        "dtype": str(frames.dtype).removeprefix("torch."),
        "nan": int(frames.isnan().sum()),
        "infinite": int(frames.isinf().sum()),
        "least": float(frames[finite].min()) if count else None,
        "most": float(frames[finite].max()) if count else None,
    }


def _as_bytes(frames: torch.Tensor) -> torch.Tensor:
    """0..255, rounded, frame by frame; NaN is 0."""
    made = torch.empty(frames.shape, dtype=torch.uint8, device="cpu")
    for number, frame in enumerate(frames):
        clean = frame.detach().to("cpu", torch.float32).nan_to_num(0.0, 1.0, 0.0)
        made[number] = clean.clamp_(0.0, 1.0).mul_(255.0).round_().to(torch.uint8)
    return made


def _lines(path: Path, facts: dict[str, Any]) -> list[str]:
    root = _root()
    tensors = path.with_name(facts["file"])
    source, vae = facts["source"], facts["vae"]
    shown = [
        f"output/{path.relative_to(root).as_posix()}",
        f"output/{tensors.relative_to(root).as_posix()} ({size_text(tensors.stat().st_size, 2)})",
        f"latents {tuple(source['shape'])} {source['dtype']}",
        f"{vae['class']} ({vae['family']}) {vae['dtype']}, weights {vae['fingerprint'][:12]}...",
    ]
    frames = facts.get("frames")
    if frames is not None:
        odd = f", {frames['nan']} NaN, {frames['infinite']} infinite"
        shown.append(f"frames {tuple(frames['shape'])}{odd}")
    return [*shown, "No weights, names or paths are inside: both files can be sent."]
