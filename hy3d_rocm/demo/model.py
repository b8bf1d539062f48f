"""The demo's video VAE: diffusers' AutoencoderKLHunyuanVideo at reduced width, trained weights.

Weights and configuration are one safetensors file (`examples/data/demo_vae.safetensors`, fp16);
how they were made is in `examples/data/README.md` and `examples/train_demo_vae.py`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

WEIGHTS_NAME = "demo_vae.safetensors"
WEIGHTS_SHA256 = "6ad01b4ff2f9e1cfb8190073dc07e1e5a48a056be9d9213d1859100f3553f5e8"
CONFIG_KEY = "config"


class DemoModelError(RuntimeError):
    """The demo VAE's weights are missing or are not the published ones."""


def weights_path() -> Path:
    """Where the demo weights lie: `examples/data` of the source checkout that this package is in.

    Raises DemoModelError when the file is not there (an installed wheel does not carry it).
    """
    path = Path(__file__).resolve().parents[2] / "examples" / "data" / WEIGHTS_NAME
    if not path.is_file():
        raise DemoModelError(
            f"the demo weights are not at {path}: run the demo from a source checkout, or pass the "
            f"path of {WEIGHTS_NAME}"
        )
    return path


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, as lower-case hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build_vae(config: dict[str, Any]) -> Any:
    """An untrained AutoencoderKLHunyuanVideo of `config` that decodes and encodes unsplit.

    diffusers splits time by default; here the whole decode is the reference, so it is off.
    """
    import torch
    from diffusers import AutoencoderKLHunyuanVideo

    with torch.device("cpu"):  # wherever the caller's default device is
        vae = AutoencoderKLHunyuanVideo(**config)
    vae.use_framewise_encoding = False
    vae.use_framewise_decoding = False
    return vae


def save_vae(path: Path, config: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
    """Write weights as fp16 with the configuration in the file's metadata."""
    import torch
    from safetensors.torch import save_file

    halves = {
        name: value.detach().to("cpu", torch.float16).contiguous() for name, value in state.items()
    }
    save_file(halves, str(path), metadata={CONFIG_KEY: json.dumps(config, sort_keys=True)})


def load_demo_vae(path: Path | None = None, *, check: bool = True) -> Any:
    """The trained demo VAE on the CPU, fp32, in eval mode.

    `path` defaults to the published file; `check` compares its SHA-256 with the pinned one.
    Raises DemoModelError when the file is absent, altered, or carries no configuration.
    """
    import torch
    from safetensors import safe_open

    path = weights_path() if path is None else Path(path)
    if check and file_sha256(path) != WEIGHTS_SHA256:
        raise DemoModelError(
            f"{path} is not the published demo VAE (SHA-256 differs): restore the file, or pass "
            "check=False for weights of your own"
        )
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata() or {}
        if CONFIG_KEY not in metadata:
            raise DemoModelError(
                f"{path} has no '{CONFIG_KEY}' in its metadata: train it again "
                "with examples/train_demo_vae.py"
            )
        state = {name: file.get_tensor(name).to(torch.float32) for name in file.keys()}  # noqa: SIM118
    vae = build_vae(json.loads(metadata[CONFIG_KEY]))
    vae.load_state_dict(state)
    return vae.eval().requires_grad_(False)
