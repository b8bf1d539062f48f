"""FramePack's sections on a GPU with too little memory: the same bits as with enough.

    python tests/long/check_framepack_gpu.py FRAMEPACK [--double 2] [--single 4] [--size 640x608]

FRAMEPACK: a checkout of kijai's ComfyUI-FramePackWrapper, whose transformer (random weights, the
real widths, fewer blocks) and sampler are used; ComfyUI is not needed. The latents of three
sections with all weights on the card are compared, bit for bit, with those

- begun with as good as nothing preserved, under a cap on torch's memory: a section runs out and is
  made again;
- begun with the share that is computed: it shrinks to what the first section took.

Exit status 1 if a bit differs, if nothing ran out under the cap, or if the value swings.
--device cpu --tiny: the same steps on a stand-in for a card, which tries this script.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from hy3d_rocm.framepack.importing import answered
from hy3d_rocm.framepack.preservation import Preservation, begin
from hy3d_rocm.framepack.sections import Card, SectionRunner, move, parts_of, restorer
from hy3d_rocm.units import GB, MB, size_text

SECTIONS, WINDOW = 3, 9
TINY = {"num_attention_heads": 2, "attention_head_dim": 16, "rope_axes_dim": [4, 6, 6],
        "text_embed_dim": 32, "pooled_projection_dim": 16, "image_proj_dim": 32}  # fmt: skip
REAL = {"num_attention_heads": 24, "attention_head_dim": 128, "rope_axes_dim": [16, 56, 56],
        "text_embed_dim": 4096, "pooled_projection_dim": 768, "image_proj_dim": 1152}  # fmt: skip


class HostCard:
    """Stands for a card of 1 GB: the first section runs out, each takes 100 MB."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def free(self) -> int:
        return GB

    def empty(self) -> None:
        pass

    def start(self) -> None:
        pass

    def need(self) -> int:
        return 100 * MB

    def retries(self) -> int:
        return 0


def upstream(folder: Path) -> dict[str, Any]:
    """The wrapper's transformer, sampler and DynamicSwap. Its progress bar is ComfyUI's: a stand-in
    is put in its place."""
    bar = type("ProgressBar", (), {"__init__": lambda s, n: None, "update": lambda s, n: None})
    for name, parts in {"comfy": {}, "comfy.utils": {"ProgressBar": bar}}.items():
        made = ModuleType(name)
        made.__dict__.update(parts)
        sys.modules.setdefault(name, made)
    around = ModuleType("framepack_wrapper")
    around.__path__ = [str(folder)]
    sys.modules[around.__name__] = around
    home = f"{around.__name__}.diffusers_helper"
    with answered(f"{home}.memory"):
        memory = importlib.import_module(f"{home}.memory")
    model = importlib.import_module(f"{home}.models.hunyuan_video_packed")
    pipeline = importlib.import_module(f"{home}.pipelines.k_diffusion_hunyuan")
    return {
        "model": model.HunyuanVideoTransformer3DModel,
        "sample": pipeline.sample_hunyuan,
        "swap": memory.DynamicSwapInstaller,
    }


def made_transformer(found: dict[str, Any], given: argparse.Namespace) -> Any:
    torch.manual_seed(1)
    widths = TINY if given.tiny else REAL
    model = found["model"](
        in_channels=16, out_channels=16, num_layers=given.double, num_single_layers=given.single,
        num_refiner_layers=1, mlp_ratio=4.0, patch_size=2, patch_size_t=1, qk_norm="rms_norm",
        guidance_embeds=True, rope_theta=256.0, has_image_proj=True, has_clean_x_embedder=True,
        attention_mode="sdpa", **widths,
    )  # fmt: skip
    model = model.to(given.dtype).eval().requires_grad_(False)
    found["swap"].install_model(model, device=given.device)
    return model


def section(
    found: dict[str, Any], model: Any, given: argparse.Namespace, generator: Any, history: Any
) -> dict[str, Any]:
    """The arguments of one section, as FramePackSampler gives them."""
    width, height = given.width, given.height
    widths = TINY if given.tiny else REAL
    of = torch.Generator().manual_seed(5)
    draw = lambda *size: torch.randn(size, generator=of).to(given.device, given.dtype)  # noqa: E731
    indices = torch.arange(0, sum([1, WINDOW, 1, 2, 16])).unsqueeze(0)
    pre, latent, post, twice, four = indices.split([1, WINDOW, 1, 2, 16], dim=1)
    clean_post, clean_2x, clean_4x = history[:, :, : 1 + 2 + 16].split([1, 2, 16], dim=2)
    clean = torch.cat([torch.zeros_like(clean_post), clean_post], dim=2)
    text, pooled = draw(1, 512, widths["text_embed_dim"]), draw(1, widths["pooled_projection_dim"])
    mask = torch.ones((1, 512), dtype=torch.bool, device=given.device)
    return dict(  # noqa: C408  (as the call is written)
        transformer=model, sampler="unipc_bh1", width=width, height=height, frames=WINDOW * 4 - 3,
        real_guidance_scale=1.0, distilled_guidance_scale=10.0, guidance_rescale=0, shift=None,
        num_inference_steps=given.steps, generator=generator, prompt_embeds=text,
        prompt_embeds_mask=mask, prompt_poolers=pooled, negative_prompt_embeds=text,
        negative_prompt_embeds_mask=mask, negative_prompt_poolers=pooled, device=given.device,
        dtype=given.dtype, image_embeddings=draw(1, 729, widths["image_proj_dim"]),
        latent_indices=latent, clean_latents=clean,
        clean_latent_indices=torch.cat([pre, post], dim=1), clean_latents_2x=clean_2x,
        clean_latent_2x_indices=twice, clean_latents_4x=clean_4x, clean_latent_4x_indices=four,
        callback=None,
    )  # fmt: skip


def video(
    found: dict[str, Any], model: Any, given: argparse.Namespace, runner: SectionRunner | None
) -> tuple[torch.Tensor, list[int]]:
    """The latents of three sections, and what was preserved in each."""
    size = (1, 16, 1 + 2 + 16, given.height // 8, given.width // 8)
    history, kept = torch.zeros(size), []
    generator = torch.Generator("cpu").manual_seed(31337)
    for number in range(SECTIONS):
        model.initialize_teacache(enable_teacache=True, num_steps=given.steps, rel_l1_thresh=0.15)
        arguments = section(found, model, given, generator, history)
        began = time.perf_counter()
        if runner is None:
            made = found["sample"](**arguments)
        else:
            made = runner.run(lambda a=arguments: found["sample"](**a), restorer(arguments))
            kept.append(runner.state.preserved_bytes)
        seconds = time.perf_counter() - began
        peak = size_text(torch.cuda.max_memory_allocated()) if given.device != "cpu" else "-"
        print(f"  section {number + 1}: {seconds:.1f} s, peak {peak}")
        history = torch.cat([made.to(history), history], dim=2)
    return history, kept


def card_of(given: argparse.Namespace, limit: int | None) -> Any:
    if given.device == "cpu":
        return HostCard()
    device = torch.device(given.device)
    if limit is None:
        return Card(device)

    def free() -> int:
        return limit - int(torch.cuda.memory_allocated(device))

    return Card(device, free)


def tried(
    name: str, found: dict[str, Any], model: Any, given: argparse.Namespace, limit: int | None,
    state: Preservation,
) -> tuple[torch.Tensor, SectionRunner, list[int]]:  # fmt: skip
    card = card_of(given, limit)
    parts = parts_of(model)
    for part in parts:
        move(part, torch.device("cpu"))
    card.empty()
    if limit is not None and given.device != "cpu":
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(limit / total)
    print(f"{name}: {state.line()}")
    device = torch.device(given.device)
    runner = SectionRunner(parts, device, torch.device("cpu"), card, state)
    made, kept = video(found, model, given, runner)
    values = [state.preserved_bytes, *kept]
    print(f"  kept free: {', '.join(map(size_text, values))}; made again: {runner.repeats}")
    return made, runner, values


def is_steady(values: list[int]) -> bool:
    """All the shrinking before all the growing."""
    ups = [b > a for a, b in pairwise(values) if a != b]
    return ups == sorted(ups)


def compare(found: dict[str, Any], given: argparse.Namespace) -> int:
    model = made_transformer(found, given)
    weights = sum(part.size_bytes for part in parts_of(model))
    print(f"{size_text(weights)} of weights; all of them on {given.device}:")
    for part in parts_of(model):
        move(part, torch.device(given.device))
    if given.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    expected, _ = video(found, model, given, None)
    need = 0 if given.device == "cpu" else torch.cuda.max_memory_allocated() - weights
    print(f"  beside the weights: {size_text(need)}")
    limit = weights // 2 + need + need // 4  # half of the weights, and a section with some room
    failed = []
    made, runner, values = tried(
        "under a cap", found, model, given, limit, begin(limit, wanted_bytes=0)
    )
    if not torch.equal(made, expected):
        failed.append(f"under a cap: differs by {float((made - expected).abs().max()):.3g}")
    if given.device != "cpu" and not runner.repeats:
        failed.append("under a cap: nothing ran out of memory, so nothing was tried")
    failed += [] if is_steady(values) else [f"under a cap: it swings: {values}"]
    free = GB if given.device == "cpu" else limit
    made, runner, values = tried("computed", found, model, given, limit, begin(free))
    if not torch.equal(made, expected):
        failed.append(f"computed: differs by {float((made - expected).abs().max()):.3g}")
    failed += [] if is_steady(values) else [f"computed: it swings: {values}"]
    print("\n".join(f"FAILED {line}" for line in failed) or "ok: all bits the same")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--double", type=int, default=2, help="dual-stream blocks")
    parser.add_argument("--single", type=int, default=4, help="single-stream blocks")
    parser.add_argument("--size", default="640x608")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true", help="small widths")
    given = parser.parse_args()
    given.width, given.height = map(int, given.size.split("x"))
    given.dtype = torch.bfloat16
    if not (given.folder / "diffusers_helper" / "memory.py").is_file():
        parser.error(f"{given.folder} has no diffusers_helper/memory.py; give a checkout")
    kind = torch.device(given.device).type
    with torch.inference_mode(), torch.autocast(kind, given.dtype):  # as the sampler's node
        return compare(upstream(given.folder), given)


if __name__ == "__main__":
    sys.exit(main())
