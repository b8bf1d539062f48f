"""Ten lines: decode HunyuanVideo latents under 6 GB, whatever the convolution back-ends do.

python examples/protected_decode.py VAE_FOLDER LATENTS.safetensors
"""

import sys

import torch
from diffusers import AutoencoderKLHunyuanVideo
from safetensors.torch import load_file

import hy3d_rocm

device = "cuda" if torch.cuda.is_available() else "cpu"
vae = AutoencoderKLHunyuanVideo.from_pretrained(sys.argv[1], torch_dtype=torch.bfloat16).to(device)
latents = load_file(sys.argv[2])["latents"].to(device) / vae.config.scaling_factor

with hy3d_rocm.protect() as guard:
    frames = hy3d_rocm.decode(vae, latents, budget="6GB")  # (B, 3, T, H, W) on the CPU, -1..1
sys.stdout.write(f"{tuple(frames.shape)}\n{guard.stats.table()}\n")
