"""Pipelines that draw noise as upstream's and diffusers' do."""

from types import SimpleNamespace

import torch

loaded = {}  # what the loaders find on their disk


def drawn(generator, shape, device="cpu"):
    """As diffusers' randn_tensor: a list of generators draws an image each."""
    if isinstance(generator, list):
        parts = [drawn(one, (1, *shape[1:]), device) for one in generator]
        return torch.cat(parts)
    return torch.randn(shape, generator=generator).to(device)


class Pipeline:
    """The delight pipeline's habits: image and noise in, image out, a callback each step."""

    def __init__(self, device="cpu"):
        self._execution_device = torch.device(device)
        self.device = torch.device(device)
        self.scheduler = object()
        self.seen = []
        self.freed = 0
        self.fail_at = None  # (step, exception)
        self._device_of_inputs = None

    def maybe_free_model_hooks(self):
        self.freed += 1

    def to(self, *args):
        return self

    def step(self, number, callback):
        if self.fail_at is not None and number == self.fail_at[0]:
            raise self.fail_at[1]
        if callback is not None:
            names = ("latents", "prompt_embeds", "negative_prompt_embeds")
            callback(self, number, 0, dict.fromkeys(names))

    def __call__(self, image=None, generator=None, num_inference_steps=2,
                 callback_on_step_end=None, **rest):  # fmt: skip
        self.seen.append((image, generator))
        noise = drawn(generator, (1, 3, 4, 4))
        for number in range(num_inference_steps):
            noise = noise + drawn(generator, (1, 3, 4, 4))
            self.step(number, callback_on_step_end)
        self.maybe_free_model_hooks()
        return SimpleNamespace(images=image.cpu() + noise)


class PaintPipeline(Pipeline):
    """The multiview pipeline's: reference noise from the global state, N views in one call."""

    def encode_images(self, images):
        return images.to("cuda") + torch.randn_like(images)

    def __call__(self, image, generator=None, num_in_batch=1, num_inference_steps=2,
                 callback_on_step_end=None, **rest):  # fmt: skip
        reference = self.encode_images(image).cpu()
        views = drawn(generator, (num_in_batch, 3, 4, 4))
        for number in range(num_inference_steps):
            views = views + drawn(generator, (num_in_batch, 3, 4, 4))
            self.step(number, callback_on_step_end)
        return SimpleNamespace(images=views + reference[0].mean())
