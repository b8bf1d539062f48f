import torch


def encode_prompt_conds(prompt, text_encoder, text_encoder_2):
    return torch.zeros(1, 2, 4), torch.zeros(1, 4)


def vae_encode(image, vae):
    return torch.nn.functional.conv3d(image, vae.weight)


def vae_decode(latents, vae, image_mode=False):
    return latents[:, :3].clamp(-1, 1)
