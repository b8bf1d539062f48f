from __future__ import annotations

import comfy.model_management as mm
import torch

from .diffusers_helper.memory import move_model_to_device_with_memory_preservation
from .diffusers_helper.models.hunyuan_video_packed import HunyuanVideoTransformer3DModel


def sample_hunyuan(
    transformer, generator, callback, num_inference_steps=25, frames=5, height=8, width=8, **more
):
    latents = torch.randn((1, 16, (frames + 3) // 4, height // 8, width // 8), generator=generator)
    for step in range(num_inference_steps):
        latents = transformer(latents)
        callback(step, latents[0].permute(1, 0, 2, 3), None, num_inference_steps)
    return latents


class LoadFramePackModel:
    FUNCTION = "loadmodel"

    def loadmodel(self, model, base_precision, load_device="main_device"):
        return ({"transformer": HunyuanVideoTransformer3DModel(), "dtype": load_device},)


class FramePackSampler:
    FUNCTION = "process"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"gpu_memory_preservation": ("FLOAT", {"default": 6.0})}}

    def process(
        self, model, start_latent, latent_window_size, cfg, gpu_memory_preservation, steps, seed,
        sections=2, use_teacache=True,
    ):  # fmt: skip
        transformer = model["transformer"]
        offload_device = mm.unet_offload_device()
        mm.unload_all_models()
        mm.soft_empty_cache()
        generator = torch.Generator("cpu").manual_seed(seed)
        from latent_preview import prepare_callback

        callback = prepare_callback(None, steps)
        move_model_to_device_with_memory_preservation(
            transformer,
            target_device=mm.get_torch_device(),
            preserved_memory_gb=gpu_memory_preservation,
        )
        history = torch.zeros((1, 16, 0, 1, 1))
        for _ in range(sections):
            transformer.initialize_teacache(enable_teacache=use_teacache, num_steps=steps)
            made = sample_hunyuan(
                transformer=transformer, generator=generator, callback=callback,
                num_inference_steps=steps, frames=latent_window_size * 4 - 3,
            )  # fmt: skip
            history = torch.cat([made, history], dim=2)
        transformer.to(offload_device)
        mm.soft_empty_cache()
        return ({"samples": history},)


NODE_CLASS_MAPPINGS = {
    "FramePackSampler": FramePackSampler,
    "LoadFramePackModel": LoadFramePackModel,
}
