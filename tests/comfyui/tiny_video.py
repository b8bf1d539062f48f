"""Tiny random-weight models of video workflows, as files that the real loaders read.

    python tests/comfyui/tiny_video.py MODELS COMFYUI [FRAMEPACK]

writes MODELS/vae/tiny_*.safetensors, VAEs of the classes of COMFYUI (a checkout of ComfyUI),
MODELS/upscale_models/tiny_esrgan.safetensors, and, with FRAMEPACK (a checkout of
ComfyUI-FramePackWrapper), MODELS/diffusers/lllyasviel/FramePackI2V_HY and
MODELS/diffusion_models/tiny_framepack.safetensors, the wrapper's own transformer. Seeds are fixed,
nothing is downloaded, all together is under 50 MB. Latents have as many channels as the real
models'; widths are as small as the classes allow, and a VAE file needs nodes/narrow.py to be read,
since the core's loader fixes most widths.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
# Named as in the wrapper's transformer_config.json; what is missing there is missing here.
FRAMEPACK_CONFIG: dict[str, Any] = {
    "attention_head_dim": 16,
    "guidance_embeds": True,
    "has_clean_x_embedder": True,
    "has_image_proj": True,
    "image_proj_dim": 32,
    "in_channels": 16,
    "mlp_ratio": 2.0,
    "num_attention_heads": 2,
    "num_layers": 1,
    "num_refiner_layers": 1,
    "num_single_layers": 2,
    "out_channels": 16,
    "patch_size": 2,
    "patch_size_t": 1,
    "pooled_projection_dim": 16,
    "qk_norm": "rms_norm",
    "rope_axes_dim": [4, 6, 6],
    "rope_theta": 256.0,
    "text_embed_dim": 32,
}
FRAMEPACK_FOLDER = "diffusers/lllyasviel/FramePackI2V_HY"
FRAMEPACK_FILE = "diffusion_models/tiny_framepack.safetensors"


def write_framepack(models: Path, wrapper: Path) -> None:
    """The transformer twice: a folder for from_pretrained, a file for LoadFramePackModel."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(4)
    kind = framepack_class(wrapper)
    transformer = kind(**FRAMEPACK_CONFIG).requires_grad_(False)
    transformer.save_pretrained(models / FRAMEPACK_FOLDER)
    file = models / FRAMEPACK_FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: t.contiguous() for name, t in transformer.state_dict().items()}, file)


def framepack_class(wrapper: Path) -> Any:
    """HunyuanVideoTransformer3DModel from its own file; the pack's nodes.py needs ComfyUI."""
    source = wrapper / "diffusers_helper/models/hunyuan_video_packed.py"
    if not source.is_file():
        raise SystemExit(f"{source} is not there; give a checkout of ComfyUI-FramePackWrapper")
    around = ModuleType("framepack_wrapper")
    around.__path__ = [str(wrapper)]
    sys.modules[around.__name__] = around
    name = f"{around.__name__}.diffusers_helper.models.hunyuan_video_packed"
    return importlib.import_module(name).HunyuanVideoTransformer3DModel


def small_config(wrapper: Path, copy: Path) -> None:
    """Writes FRAMEPACK_CONFIG into a copy of the wrapper, where LoadFramePackModel reads it."""
    original = json.loads((wrapper / "transformer_config.json").read_text())
    assert set(FRAMEPACK_CONFIG) <= set(original), "upstream's config has other names"
    (copy / "transformer_config.json").write_text(json.dumps({**original, **FRAMEPACK_CONFIG}))


def write_vaes(folder: Path) -> None:
    """tiny_NAME.safetensors for each VAE of narrow.py; ComfyUI must be on sys.path."""
    import torch
    from nodes.narrow import VAES, randomize
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, make) in enumerate(VAES.items()):
        torch.manual_seed(seed)
        model = make().requires_grad_(False)
        randomize(model)
        weights = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
        save_file(weights, folder / f"tiny_{name}.safetensors")


def write_upscaler(folder: Path) -> None:
    """An ESRGAN of 8 channels, as the core's UpscaleModelLoader reads it."""
    import torch
    from nodes.narrow import randomize
    from safetensors.torch import save_file
    from spandrel.architectures.ESRGAN import ESRGAN

    torch.manual_seed(7)
    model = ESRGAN(num_filters=8, num_blocks=1, scale=2).requires_grad_(False)
    randomize(model)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "tiny_esrgan.safetensors")


def use_core(core: Path) -> None:
    """Makes ComfyUI's modules importable, on the CPU."""
    sys.argv = [sys.argv[0], "--cpu"]
    sys.path.insert(0, str(core))
    options = importlib.import_module("comfy.options")
    options.enable_args_parsing()


def main(models: Path, core: Path, framepack: Path | None) -> None:
    if framepack is not None:
        write_framepack(models, framepack)
    use_core(core)
    # The package of the test nodes imports ComfyUI's `nodes`; narrow.py alone does not.
    around = ModuleType("nodes")
    around.__path__ = [str(HERE / "nodes")]
    sys.modules["nodes"] = around
    write_vaes(models / "vae")
    write_upscaler(models / "upscale_models")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    paths = [Path(text).resolve() for text in sys.argv[1:]]
    main(paths[0], paths[1], paths[2] if len(paths) == 3 else None)
