import torch


def sample_hunyuan(transformer, generator, num_inference_steps, width, height, frames, **more):
    size = (1, 16, (frames + 3) // 4, height // 8, width // 8)
    latents = torch.randn(size, generator=generator)
    for _ in range(num_inference_steps):
        latents = transformer(latents)
    return latents
