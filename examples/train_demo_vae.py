#!/usr/bin/env python3
"""Train the demo's video VAE (examples/data/demo_vae.safetensors) on one GPU.

    python examples/train_demo_vae.py --clips DIR [DIR ...] --out demo_vae_run

DIR are folders searched recursively for the files in CLIPS and STILLS; examples/data/README.md
says which packages carry them. `bikes.mp4` is the held-out clip and is never read here.

The model is diffusers' AutoencoderKLHunyuanVideo at reduced width. Beside reconstruction it is
trained to be consistent: a window of the latents, decoded alone, must give the pixels of the whole
decode, because GroupNorm and attention otherwise make a tile depend on what surrounds it.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from demo_vae import build_vae, read_frames, save_vae
from demo_vae_layers import anchor_norms, use_fast_layers
from PIL import Image
from safetensors.torch import load_file

log = logging.getLogger("hy3d_rocm")

CONFIG: dict[str, Any] = {
    "block_out_channels": [32, 48, 64, 64],
    "layers_per_block": 1,
    "latent_channels": 16,
    "norm_num_groups": 2,
    "scaling_factor": 1.0,
}
# File name -> share of the samples. Filmed, but for the animated bigbuckbunny.mp4.
CLIPS = {"vtest.avi": 0.18, "box.mp4": 0.16, "cup.mp4": 0.06, "tree.avi": 0.1,
         "carphone_pristine.mp4": 0.12, "bigbuckbunny.mp4": 0.18}  # fmt: skip
STILLS_SHARE = 0.2
STILLS = (
    "aloeL.jpg", "building.jpg", "butterfly.jpg", "fruits.jpg", "graf1.png", "home.jpg",
    "leuvenA.jpg", "rubberwhale1.png", "stuff.jpg", "squirrel_cls.jpg",
    "astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png",
)  # fmt: skip
WARM_UP = 2  # latent frames and latent pixels of a window that its neighbours would overwrite


@dataclass(frozen=True)
class Shape:
    """A batch: frames, height, width (pixels), samples; and window (t, h, w) in latents."""

    frames: int
    height: int
    width: int
    batch: int
    window: tuple[int, int, int]
    share: float


SHAPES = (
    Shape(1, 256, 256, 6, (1, 20, 20), 0.07),
    Shape(5, 192, 192, 4, (2, 16, 16), 0.13),
    Shape(9, 160, 160, 4, (3, 13, 13), 0.2),
    Shape(17, 128, 160, 3, (4, 12, 12), 0.2),
    Shape(17, 192, 192, 2, (5, 15, 15), 0.2),
    Shape(33, 192, 256, 1, (5, 16, 19), 0.2),
)
# Refinement: larger batches of fewer shapes, no window loss.
REFINE_SHAPES = (
    Shape(5, 192, 192, 6, (2, 16, 16), 0.25),
    Shape(9, 160, 160, 6, (3, 13, 13), 0.3),
    Shape(17, 160, 160, 4, (4, 12, 12), 0.45),
)
TINY_SHAPES = (Shape(5, 64, 64, 1, (2, 6, 6), 0.5), Shape(9, 64, 96, 1, (3, 6, 8), 0.5))


def find_sources(folders: list[Path]) -> dict[str, Path]:
    """Path of every named source that lies under `folders`; a missing one is logged."""
    wanted = (*CLIPS, *STILLS)
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.name in wanted:
                found.setdefault(path.name, path)
    for name in wanted:
        if name not in found:
            log.warning("%s was not found; training goes on without it", name)
    if not found:
        raise SystemExit(f"none of {wanted} lies under {folders}: see examples/data/README.md")
    return found


class Dataset:
    """All clips and stills as uint8 (T, 3, H, W) on the device, and random crops of them."""

    def __init__(self, folders: list[Path], device: torch.device, max_frames: int | None) -> None:
        found = find_sources(folders)
        self.device = device
        self.clips: list[torch.Tensor] = []
        self.shares: list[float] = []
        for name, share in CLIPS.items():
            if name in found:
                self._add(read_frames(found[name])[:max_frames], share)
        stills = [name for name in STILLS if name in found]
        for name in stills:
            image = np.asarray(Image.open(found[name]).convert("RGB"))
            self._add(image[None], STILLS_SHARE / len(stills))

    def _add(self, frames: np.ndarray[Any, Any], share: float) -> None:
        tensor = torch.from_numpy(np.array(frames)).to(self.device)
        self.clips.append(tensor.permute(0, 3, 1, 2).contiguous())
        self.shares.append(share)

    def batch(self, shape: Shape, rng: random.Random) -> torch.Tensor:
        """Random samples, float32 (B, 3, T, H, W) in [-1, 1]."""
        samples = []
        for _ in range(shape.batch):
            clip = rng.choices(self.clips, self.shares)[0]
            crop = moving_still if clip.shape[0] < shape.frames or rng.random() < 0.05 else cut
            samples.append(jitter(crop(clip, shape, rng), rng))
        return torch.stack(samples).permute(0, 2, 1, 3, 4).mul(2).sub(1)


def cut(clip: torch.Tensor, shape: Shape, rng: random.Random) -> torch.Tensor:
    """A window of a clip at a random place, scale and frame step; (T, 3, H, W) in 0..1."""
    count, _, rows, columns = clip.shape
    top_step = max(1, min(3, (count - 1) // max(1, shape.frames - 1)))
    step = rng.randint(1, top_step)
    start = rng.randint(0, count - 1 - (shape.frames - 1) * step)
    fit = min(rows / shape.height, columns / shape.width)
    scale = 1.0 if rng.random() < 0.4 else math.exp(rng.uniform(math.log(0.7), math.log(2.5)))
    scale = min(scale, fit)
    height, width = int(shape.height * scale), int(shape.width * scale)
    top, left = rng.randint(0, rows - height), rng.randint(0, columns - width)
    last = start + (shape.frames - 1) * step
    window = clip[start : last + 1 : step, :, top : top + height, left : left + width].float()
    if (height, width) != (shape.height, shape.width):
        size = (shape.height, shape.width)
        window = F.interpolate(window, size, mode="bilinear", antialias=True)
    return window.div(255.0)


def moving_still(clip: torch.Tensor, shape: Shape, rng: random.Random) -> torch.Tensor:
    """One frame seen by a camera that pans, zooms and turns; (T, 3, H, W) in 0..1."""
    image = clip[rng.randrange(clip.shape[0])][None].float().div(255.0)
    rows, columns = image.shape[2:]
    fit = min(rows / shape.height, columns / shape.width)
    scale = min(math.exp(rng.uniform(math.log(0.7), math.log(2.0))), fit) * 0.9
    half_y, half_x = shape.height * scale / rows, shape.width * scale / columns
    speed = rng.choice((0.0, 2.0, 8.0)) * scale * (shape.frames - 1)
    time_line = torch.linspace(-0.5, 0.5, shape.frames, device=clip.device)
    angle = rng.uniform(-0.02, 0.02) + rng.uniform(-0.1, 0.1) * time_line
    zoom = 1 + rng.uniform(-0.15, 0.15) * time_line
    centre_x = rng.uniform(half_x - 1, 1 - half_x) if half_x < 1 else 0.0
    centre_y = rng.uniform(half_y - 1, 1 - half_y) if half_y < 1 else 0.0
    theta = torch.zeros(shape.frames, 2, 3, device=clip.device)
    theta[:, 0, 0] = theta[:, 1, 1] = zoom * angle.cos()
    theta[:, 0, 0] *= half_x
    theta[:, 1, 1] *= half_y
    theta[:, 0, 1] = -angle.sin() * half_y * rows / columns
    theta[:, 1, 0] = angle.sin() * half_x * columns / rows
    theta[:, 0, 2] = centre_x + rng.uniform(-1, 1) * speed / columns * time_line
    theta[:, 1, 2] = centre_y + rng.uniform(-1, 1) * speed / rows * time_line
    grid = F.affine_grid(theta, [shape.frames, 3, shape.height, shape.width], align_corners=False)
    if scale > 1.2:
        image = F.avg_pool2d(F.pad(image, (1, 1, 1, 1), mode="replicate"), 3, 1)
    image = image.expand(shape.frames, -1, -1, -1)
    return F.grid_sample(image, grid, padding_mode="reflection", align_corners=False)


def jitter(video: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Random flips, time reversal, gain, offset and channel order of (T, 3, H, W) in 0..1."""
    if rng.random() < 0.5:
        video = video.flip(3)
    if rng.random() < 0.3:
        video = video.flip(0)
    if rng.random() < 0.15:
        video = video[:, rng.sample(range(3), 3)]
    if rng.random() < 0.15:
        video = video.mean(1, keepdim=True).expand_as(video).lerp(video, rng.uniform(0, 0.5))
    if rng.random() < 0.6:
        video = video * rng.uniform(0.5, 1.15) + rng.uniform(-0.08, 0.12)
    return video.clamp(0, 1)


def pixel_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """L1, squared error and L1 of the gradients in x, y and t."""
    error = output - target
    loss = error.abs().mean() + 4.0 * error.square().mean()
    for dim in (2, 3, 4):
        if error.shape[dim] > 1:
            loss = loss + 0.3 * error.diff(dim=dim).abs().mean()
    return loss


def window_loss(
    vae: Any, latents: torch.Tensor, decoded: torch.Tensor, shape: Shape, rng: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    """Difference between a window of the latents decoded alone and the same pixels of the whole.

    Sides that lie inside the clip lose WARM_UP latents, as a tiled decode discards its halo.
    """
    starts, cuts_latent, cuts_whole = [], [], []
    for axis, (size, total) in enumerate(zip(shape.window, latents.shape[2:], strict=True)):
        start = rng.randint(0, total - size)
        keep = (start + WARM_UP * (start > 0), start + size - WARM_UP * (start + size < total))
        if axis == 0:
            # Latent 0 is one frame, latent j > 0 is frames 4 j - 3 .. 4 j; a causal decoder
            # needs no halo after.
            keep = (min(keep[0], start + size - 1), start + size)
            first, last = max(0, 4 * keep[0] - 3), 4 * keep[1] - 3
            cuts_latent.append(slice(first - 4 * start, last - 4 * start))
            cuts_whole.append(slice(first, last))
        else:
            cuts_latent.append(slice(8 * (keep[0] - start), 8 * (keep[1] - start)))
            cuts_whole.append(slice(8 * keep[0], 8 * keep[1]))
        starts.append(slice(start, start + size))
    alone = vae.decode(latents[:, :, starts[0], starts[1], starts[2]]).sample
    inner = alone[:, :, cuts_latent[0], cuts_latent[1], cuts_latent[2]]
    error = inner - decoded[:, :, cuts_whole[0], cuts_whole[1], cuts_whole[2]]
    mse = error.float().square().mean()
    return error.float().abs().mean() + 20.0 * mse, mse.detach() / 4


def training_loss(
    vae: Any, video: torch.Tensor, shape: Shape, rng: random.Random, window_weight: float
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The whole loss of one batch, and its parts, to log."""
    posterior = vae.encode(video).latent_dist
    latents = posterior.sample()
    decoded = vae.decode(latents).sample
    pixels = pixel_loss(decoded.float(), video)
    window = window_mse = decoded.new_zeros(())
    if window_weight > 0:
        window, window_mse = window_loss(vae, latents, decoded, shape, rng)
    mean, logvar = posterior.mean.float(), posterior.logvar.float()
    kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
    loss = pixels + window_weight * window + 1e-4 * kl
    mse = (decoded.detach().float() - video).square().mean() / 4
    parts = {"mse": mse, "window": window_mse, "kl": kl.detach()}
    return loss, parts


def learning_rate(step: int, progress: float, peak: float) -> float:
    """Linear warm-up over 150 steps, then a cosine to 2 % of the peak at `progress` 1."""
    if step < 150:
        return peak * (step + 1) / 150
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


class Trainer:
    """Model, optimiser and running average; one call of `step` is one batch."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self.rng = random.Random(arguments.seed)
        self.rate, self.window_weight = arguments.rate, arguments.window_weight
        usual = SHAPES if arguments.window_weight > 0 else REFINE_SHAPES
        self.shapes = TINY_SHAPES if arguments.tiny else usual
        self.cuda = device.type == "cuda"
        self.autocast = torch.autocast(device.type, torch.bfloat16, self.cuda)
        self.data = Dataset(arguments.clips, device, 40 if arguments.tiny else None)
        self.vae = build_vae(CONFIG).to(device).train()
        anchor_norms(self.vae, CONFIG["norm_num_groups"], CONFIG["latent_channels"])
        if arguments.resume:
            state = load_file(str(arguments.resume))
            self.vae.load_state_dict({name: value.float() for name, value in state.items()})
        use_fast_layers(self.vae)
        self.average = {name: value.clone() for name, value in self.vae.state_dict().items()}
        self.optimiser = torch.optim.AdamW(
            self.vae.parameters(), lr=self.rate, betas=(0.9, 0.99), weight_decay=1e-4,
            fused=self.cuda,
        )  # fmt: skip

    def step(self, number: int, progress: float) -> dict[str, torch.Tensor]:
        """Train on one batch and return the parts of its loss, still on the device."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(number, progress, self.rate)
        shape = self.rng.choices(self.shapes, [s.share for s in self.shapes])[0]
        window_weight = self.window_weight * min(1.0, 0.1 + number / 1000)
        with self.autocast:
            video = self.data.batch(shape, self.rng)
            loss, parts = training_loss(self.vae, video, shape, self.rng, window_weight)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.vae.parameters(), 1.0)
        if self.cuda:
            # The fused step skips itself where this is 1: a test here would wait for the GPU.
            self.optimiser.found_inf = norm.isfinite().logical_not().float()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.update_average(number)
        return parts

    @torch.no_grad()
    def update_average(self, number: int) -> None:
        """Exponential moving average of the weights, faster at the start."""
        decay = min(0.9985, (1 + number) / (10 + number))
        state = self.vae.state_dict()
        averages = list(self.average.values())
        torch._foreach_lerp_(averages, [state[name] for name in self.average], 1 - decay)

    @torch.no_grad()
    def latent_deviation(self) -> float:
        """Standard deviation of the averaged model's latents over some training samples."""
        self.vae.load_state_dict(self.average)
        values = []
        with self.autocast:
            for _ in range(8):
                video = self.data.batch(self.shapes[-1], self.rng)
                values.append(self.vae.encode(video).latent_dist.mean.float().flatten())
        return float(torch.cat(values).std())

    def save(self, path: Path, config: dict[str, Any]) -> None:
        save_vae(path, config, self.average)
        log.info("wrote %s", path)


def decibels(mse: float) -> float:
    return -10 * math.log10(mse + 1e-12)


def train(arguments: argparse.Namespace) -> None:
    """The training loop; writes checkpoints and demo_vae.safetensors into `arguments.out`."""
    torch.manual_seed(arguments.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 5
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    started = time.monotonic()
    trainer = Trainer(arguments, device)
    since_log: list[dict[str, torch.Tensor]] = []
    for number in range(arguments.steps):
        elapsed = time.monotonic() - started
        if elapsed > arguments.seconds:
            log.warning("stopped after %d of %d steps: the time is over", number, arguments.steps)
            break
        progress = max(number / arguments.steps, elapsed / arguments.seconds)
        since_log.append(trainer.step(number, progress))
        if number % arguments.log_every == 0:
            mean = {key: float(torch.stack([parts[key] for parts in since_log]).mean())
                    for key in since_log[0]}  # fmt: skip
            log.info(
                "%5d %5.0fs psnr %.2f window %.2f kl %.2f",
                number,
                elapsed,
                decibels(mean["mse"]),
                decibels(mean["window"]),
                mean["kl"],
            )
            since_log = []
        if (number + 1) % 1000 == 0:
            trainer.save(arguments.out / "checkpoint.safetensors", CONFIG)
    config = {**CONFIG, "scaling_factor": round(1.0 / trainer.latent_deviation(), 6)}
    trainer.save(arguments.out / "demo_vae.safetensors", config)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clips", type=Path, nargs="+", required=True, help="folders of sources")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this long")
    parser.add_argument("--rate", type=float, default=8e-4, help="peak learning rate")
    parser.add_argument(
        "--window-weight", type=float, default=1.0, help="0: refinement, on REFINE_SHAPES"
    )
    parser.add_argument("--seed", type=int, default=20240613)
    parser.add_argument("--resume", type=Path, help="weights to start from")
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: a test of the script")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    train(arguments)


if __name__ == "__main__":
    main()
