"""A stand-in for FramePack's program: its calls in its order, without its user interface."""

import os
import sys

os.environ["HF_HOME"] = os.path.abspath("hf_download")

import torch
from diffusers_helper.hunyuan import encode_prompt_conds, vae_decode, vae_encode
from diffusers_helper.memory import (
    fake_diffusers_current_device,
    get_cuda_free_memory_gb,
    gpu,
    load_model_as_complete,
    move_model_to_device_with_memory_preservation,
    offload_model_from_device_for_memory_preservation,
    unload_complete_models,
)
from diffusers_helper.models.hunyuan_video_packed import HunyuanVideoTransformer3DModelPacked
from diffusers_helper.pipelines.k_diffusion_hunyuan import sample_hunyuan

LlamaModel = type("LlamaModel", (torch.nn.Linear,), {})
CLIPTextModel = type("CLIPTextModel", (torch.nn.Linear,), {})
SiglipVisionModel = type("SiglipVisionModel", (torch.nn.Linear,), {})
AutoencoderKLHunyuanVideo = type("AutoencoderKLHunyuanVideo", (torch.nn.Conv3d,), {})


def main(sections, steps=3, preserved=6):
    torch.manual_seed(0)
    llama, clip, siglip = LlamaModel(4, 4), CLIPTextModel(4, 4), SiglipVisionModel(4, 4)
    vae = AutoencoderKLHunyuanVideo(3, 16, 1)
    transformer = HunyuanVideoTransformer3DModelPacked()
    if len(sys.argv) > 2:
        transformer.out_of_memory_at = {int(sys.argv[2])}
    unload_complete_models(llama, clip, siglip, vae, transformer)
    fake_diffusers_current_device(llama, gpu)
    load_model_as_complete(clip, target_device=gpu)
    encode_prompt_conds("a prompt", llama, clip)
    load_model_as_complete(vae, target_device=gpu)
    with torch.no_grad():
        vae_encode(torch.zeros(1, 3, 1, 8, 8), vae)
    load_model_as_complete(siglip, target_device=gpu)
    generator = torch.Generator("cpu").manual_seed(31337)
    pixels = []
    for _ in range(sections):
        unload_complete_models()
        move_model_to_device_with_memory_preservation(
            transformer, target_device=gpu, preserved_memory_gb=preserved
        )
        made = sample_hunyuan(
            transformer=transformer, generator=generator, num_inference_steps=steps,
            width=64, height=64, frames=5, real_guidance_scale=1.0,
        )  # fmt: skip
        offload_model_from_device_for_memory_preservation(
            transformer, target_device=gpu, preserved_memory_gb=8
        )
        load_model_as_complete(vae, target_device=gpu)
        pixels.append(vae_decode(made, vae).cpu())
        unload_complete_models()
    print("free", get_cuda_free_memory_gb(gpu) > 0)
    return torch.cat(pixels, dim=2)


if __name__ == "__main__":
    print("sum", main(int(sys.argv[1])).double().sum().item())
