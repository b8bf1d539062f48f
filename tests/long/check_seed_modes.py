"""Do the seed modes keep their promises on the real classes, for a thousand seeds?

    python tests/long/check_seed_modes.py --wrapper DIR [--seeds 1000] [--first 0]

Delight is diffusers' StableDiffusionInstructPix2PixPipeline with an Euler ancestral scheduler,
multiview is HunyuanPaintPipeline with UNet2p5DConditionModel, imported from DIR, an unmodified
checkout of ComfyUI-Hunyuan3DWrapper; both with the smallest networks that they accept and random
weights. Upstream's side runs without the proxy: the loop of Hy3DDelightImage and the call of
Hy3DSampleMultiView, the word "cuda" sent to the CPU. Each seed is checked on both, by torch.equal:

    legacy      upstream's pictures
    stream      delight: the first picture is upstream's, the others are their own, all different;
                multiview: upstream's views, all different
    per_image   a batch in one piece and in two gives the same pictures, all different; delight's
                first is upstream's. Multiview splits by views through `encode_images` and the
                noise that the networks get: its views attend to each other, so pictures of a split
                call cannot be equal, with one seed per view or without.

Prints one line a claim with the number of seeds that held, then the seconds; exit code 1 and the
numbers of the first seeds that failed if one did not (`--first NUMBER --seeds 1` replays one).
Ctrl-C ends it with what is known by then. One thread, about 0.6 s of it a seed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from hy3d_rocm.seed import SeedMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(1, str(Path(__file__).resolve().parents[2]))

COUNT, SPLIT, VIEWS = 2, 1, 2
SIZE = 8  # pixels, the smallest that the paint pipeline takes
STEPS = 1


class Noise(Exception):  # noqa: N818 - no error, a way out
    """Ends a paint call where its network would run for the first time; carries what it got."""

    def __init__(self, reference: torch.Tensor, views: list[torch.Tensor]) -> None:
        super().__init__("the noise is known")
        self.reference = reference
        self.views = views


def tiny_delight() -> Any:
    """The demo's pipeline with a UNet and a VAE of one block; the VAE keeps the size."""
    from diffusers import AutoencoderKL, UNet2DConditionModel

    from examples.demo.delight import tiny_pipeline

    pipeline = tiny_pipeline()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(2)
        vae = AutoencoderKL(block_out_channels=(4,), norm_num_groups=1, layers_per_block=1)
        unet = UNet2DConditionModel(
            sample_size=2, in_channels=8, out_channels=4, layers_per_block=1, norm_num_groups=1,
            block_out_channels=(4,), cross_attention_dim=16, attention_head_dim=4,
            down_block_types=("CrossAttnDownBlock2D",), up_block_types=("CrossAttnUpBlock2D",),
        )  # fmt: skip
    pipeline.register_modules(vae=vae.eval(), unet=unet.eval())
    pipeline.vae_scale_factor = 1
    pipeline.image_processor = type(pipeline.image_processor)(vae_scale_factor=1)
    return pipeline


def tiny_paint() -> Any:
    """Upstream's pipeline and UNet class; prompt width and time embedding are fixed in its code."""
    from diffusers import UNet2DConditionModel
    from wrapper_pipelines import paint_module

    module, parts = paint_module(), tiny_delight()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        unet = module.UNet2p5DConditionModel(
            UNet2DConditionModel(
                sample_size=2,
                in_channels=4,
                out_channels=4,
                layers_per_block=1,
                block_out_channels=(4,),
                norm_num_groups=1,
                cross_attention_dim=1024,
                attention_head_dim=4,
                time_embedding_dim=1280,
                down_block_types=("CrossAttnDownBlock2D",),
                up_block_types=("CrossAttnUpBlock2D",),
                mid_block_type=None,
            )
        )
    half = torch.float16
    pipeline = module.HunyuanPaintPipeline(
        vae=parts.vae.to(half), text_encoder=parts.text_encoder.to(half), tokenizer=parts.tokenizer,
        unet=unet.eval().to(half), scheduler=parts.scheduler, feature_extractor=None,
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def all_differ(pictures: torch.Tensor) -> bool:
    return len({picture.numpy().tobytes() for picture in pictures}) == len(pictures)


class Delight:
    """The claims about delight."""

    def __init__(self) -> None:
        self.pipeline = tiny_delight()

    def pictures(self, called: Any, seed: int, count: int = COUNT) -> torch.Tensor:
        from wrapper_pipelines import delight

        return delight(called, count, seed, SIZE, STEPS)  # type: ignore[no-any-return]

    def part(self, seed: int, first: int, count: int) -> torch.Tensor:
        from hy3d_rocm.pipeline import PipelineProxy

        proxy = PipelineProxy(self.pipeline, seed_mode="per_image", first_index=first)
        return self.pictures(proxy, seed, count)

    def claims(self, seed: int) -> dict[str, bool]:
        from hy3d_rocm.pipeline import PipelineProxy

        upstream = self.pictures(self.pipeline, seed)
        stream = self.pictures(PipelineProxy(self.pipeline), seed)
        legacy = self.pictures(PipelineProxy(self.pipeline, seed_mode="legacy"), seed)
        whole = self.part(seed, 0, COUNT)
        split = [self.part(seed, 0, SPLIT), self.part(seed, SPLIT, COUNT - SPLIT)]
        return {
            "delight, legacy: all images are upstream's": torch.equal(legacy, upstream),
            "delight, stream: the first image is upstream's": torch.equal(stream[0], upstream[0]),
            "delight, stream: the images differ": all_differ(stream),
            "delight, per_image: the same however split": torch.equal(torch.cat(split), whole),
            "delight, per_image: the first image is upstream's": torch.equal(whole[0], upstream[0]),
            "delight, per_image: the images differ": all_differ(whole),
        }


class Multiview:
    """The claims about multiview."""

    def __init__(self) -> None:
        self.pipeline = tiny_paint()

    def pictures(self, called: Any, seed: int, views: int = VIEWS) -> torch.Tensor:
        """The call of Hy3DSampleMultiView, its seeding included, on maps that are all alike."""
        from PIL import Image

        maps = [[Image.new("RGB", (SIZE, SIZE), (90, 140, 200))] * views]
        torch.manual_seed(seed)
        generator = torch.Generator(device=called.device).manual_seed(seed)
        made: torch.Tensor = called(
            torch.full((1, 1, 3, SIZE, SIZE), 0.4), width=SIZE, height=SIZE, generator=generator,
            latents=None, num_in_batch=views, camera_info_gen=[[0] * views], camera_info_ref=[[0]],
            normal_imgs=maps, position_imgs=maps, num_inference_steps=STEPS, output_type="pt",
            denoise_strength=1.0,
        ).images.float()  # fmt: skip
        return made

    def noise(self, seed: int, first: int, views: int) -> Noise:
        """What the network gets of a call in "per_image": all that depends on the seed."""
        from hy3d_rocm.pipeline import PipelineProxy

        def look(_module: Any, args: Any, kwargs: dict[str, Any]) -> None:
            maps = [kwargs[name][-1] for name in ("normal_imgs", "position_imgs")]
            raise Noise(kwargs["ref_latents"], [args[0][-1], *maps])

        proxy = PipelineProxy(self.pipeline, seed_mode="per_image", first_index=first)
        handle = self.pipeline.unet.register_forward_pre_hook(look, with_kwargs=True)
        try:
            self.pictures(proxy, seed, views)
        except Noise as found:
            return found
        finally:
            handle.remove()
        raise AssertionError("the network did not run")

    def splits(self, seed: int) -> bool:
        whole = self.noise(seed, 0, VIEWS)
        parts = [self.noise(seed, 0, SPLIT), self.noise(seed, SPLIT, VIEWS - SPLIT)]
        rows = [torch.cat(pair) for pair in zip(*(part.views for part in parts), strict=True)]
        return all(torch.equal(*pair) for pair in zip(rows, whole.views, strict=True)) and all(
            torch.equal(part.reference, whole.reference) for part in parts
        )

    def claims(self, seed: int) -> dict[str, bool]:
        from hy3d_rocm.pipeline import PipelineProxy
        from hy3d_rocm.scopes import cuda_literals

        with cuda_literals("cpu"):
            upstream = self.pictures(self.pipeline, seed)
            modes: tuple[SeedMode, ...] = ("stream", "legacy", "per_image")
            made = {
                mode: self.pictures(PipelineProxy(self.pipeline, seed_mode=mode), seed)
                for mode in modes
            }
            return {
                "multiview, legacy: upstream's views": torch.equal(made["legacy"], upstream),
                "multiview, stream: upstream's views": torch.equal(made["stream"], upstream),
                "multiview, stream: the views differ": all_differ(made["stream"]),
                "multiview, per_image: the views differ": all_differ(made["per_image"]),
                "multiview, per_image: the same noise however split": self.splits(seed),
            }


def seed_number(number: int) -> int:
    """Both ends, then seeds of 64, 32 and 6 bits in turns; the same one for a number always."""
    if number < 2:
        return (0, 2**64 - 1)[number]
    return random.Random(number).getrandbits((64, 32, 6)[number % 3])


def tally(numbers: range) -> tuple[int, dict[str, list[int]]]:
    """How many seeds were tried, and the numbers of those that failed, by claim."""
    failed: dict[str, list[int]] = {}
    stages = (Delight(), Multiview())
    done = 0
    try:
        for number in numbers:
            for stage in stages:
                for claim, held in stage.claims(seed_number(number)).items():
                    failed.setdefault(claim, []).extend([] if held else [number])
            done += 1
            if done % 50 == 0:
                print(f"{done} of {len(numbers)} seeds", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    return done, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wrapper", type=Path, default=os.environ.get("HY3D_WRAPPER"))
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first seed")
    options = parser.parse_args()
    if options.wrapper is None:
        parser.error("--wrapper names no checkout of ComfyUI-Hunyuan3DWrapper")
    os.environ["HY3D_WRAPPER"] = str(options.wrapper)
    torch.set_num_threads(1)
    for name in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
        signal.signal(name, signal.default_int_handler)
    began = time.perf_counter()
    done, failed = tally(range(options.first, options.first + options.seeds))
    for claim, wrong in failed.items():
        print(
            f"{'FAILED' if wrong else 'ok    '} {claim}: {done - len(wrong)} of {done}", *wrong[:5]
        )
    print(f"{time.perf_counter() - began:.0f} s")
    return 1 if any(failed.values()) or done < options.seeds else 0


if __name__ == "__main__":
    raise SystemExit(main())
