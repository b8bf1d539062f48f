"""Layers and initial weights of the demo VAE's training (examples/train_demo_vae.py).

The fast layers change the training's speed, not its values; the model itself stays diffusers'
own class, and nothing here is needed to run the trained weights.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

# The constant that two channels of a group carry; the others start at about 1.
ANCHOR = 10.0


class _FastReplicatePad(torch.autograd.Function):
    """Replicate padding whose backward adds slices; the library's adds element by element."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pads: tuple[int, ...]) -> torch.Tensor:
        ctx.pads = pads
        return F.pad(x, pads, mode="replicate")

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (grad,) = grads
        grad = grad.clone()
        for axis in range(3):
            before, after = ctx.pads[2 * axis : 2 * axis + 2]
            dim = 4 - axis
            size = grad.shape[dim] - before - after
            inner = grad.narrow(dim, before, size)
            if before:
                inner.narrow(dim, 0, 1).add_(grad.narrow(dim, 0, before).sum(dim, keepdim=True))
            if after:
                edge = grad.narrow(dim, before + size, after).sum(dim, keepdim=True)
                inner.narrow(dim, size - 1, 1).add_(edge)
            grad = inner
        return grad, None


class _FastGroupNorm(torch.autograd.Function):
    """GroupNorm as whole-tensor reductions.

    The library's CUDA kernel takes one block for each sample and group, which is a handful here
    for millions of values; these reductions take the whole card.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, norm: Any
    ) -> torch.Tensor:
        n, c, groups = x.shape[0], x.shape[1], norm.num_groups
        flat, ones = x.reshape(n, groups, -1), (1,) * (x.dim() - 2)
        count = flat.shape[2]
        with torch.autocast(x.device.type, enabled=False):
            mean = flat.sum(2, dtype=torch.float32) / count
            power = torch.linalg.vector_norm(flat, dim=2, dtype=torch.float32).square() / count
            inverse = (power - mean.square()).clamp_min(0).add(norm.eps).rsqrt()
            mean, inverse = (v.repeat_interleave(c // groups, 1) for v in (mean, inverse))
            scale = inverse * weight
            shift = bias - mean * scale
            shape = (n, c, *ones)
            y = torch.empty_like(x)
            torch.addcmul(shift.view(shape), x, scale.view(shape), out=y)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.groups, ctx.count = groups, count
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        (grad,), n, c = grads, x.shape[0], x.shape[1]
        with torch.autocast(x.device.type, enabled=False):
            plain = grad.reshape(n, c, -1).sum(2, dtype=torch.float32)
            by_x = (grad * x).reshape(n, c, -1).sum(2, dtype=torch.float32)
            normed = (by_x - mean * plain) * inverse  # sum of grad times the normalised x

            def group_mean(value: torch.Tensor) -> torch.Tensor:
                total = (value * weight).view(n, ctx.groups, -1).sum(2) / ctx.count
                return total.repeat_interleave(c // ctx.groups, 1)

            slope = -inverse.square() * group_mean(normed)
            offset = -inverse * group_mean(plain) - slope * mean
            shape = (n, c, *((1,) * (x.dim() - 2)))
            partial = torch.addcmul(offset.view(shape), x, slope.view(shape))
            result = torch.empty_like(x)
            torch.addcmul(partial, grad, (inverse * weight).view(shape), out=result)
        return result, normed.sum(0), plain.sum(0), None


def use_fast_layers(vae: torch.nn.Module) -> None:
    """Give `vae` the fast padding and GroupNorm for training; the values stay the same."""
    for module in vae.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.forward = lambda x, m=module: _FastGroupNorm.apply(x, m.weight, m.bias, m)
        if hasattr(module, "time_causal_padding"):
            conv, pads = module.conv, module.time_causal_padding
            if any(pads):
                module.forward = lambda x, c=conv, p=pads: c(_FastReplicatePad.apply(x, p))
            else:
                module.forward = conv.forward


@torch.no_grad()
def anchor_norms(vae: Any, groups: int, latent_channels: int) -> None:
    """Initialise so that every GroupNorm starts as a fixed scale.

    Two channels of each group are given the constants +ANCHOR and -ANCHOR, far above the rest, so
    the group's mean and variance hardly depend on what is in the picture, nor therefore on which
    tile of it is seen, and absolute brightness passes. Residual branches start small. All of it is
    trained, but for the weights by which a resampling or shortcut convolution would read the
    anchors (they would move its output by hundreds of times the learning rate): those stay zero.
    """
    for name, module in vae.named_modules():
        if isinstance(module, torch.nn.Conv3d):
            module.weight.mul_(math.sqrt(3) * (0.1 if ".conv2.conv" in name else 1.0))
            torch.nn.init.zeros_(module.bias)
            if "sampler" in name or "shortcut" in name:  # these read the anchors themselves
                mask = torch.ones_like(module.weight)
                in_size = module.in_channels // groups
                mask.view(module.out_channels, groups, in_size, -1)[:, :, :2] = 0.0
                module.weight.mul_(mask)
                module.weight.register_hook(lambda grad, keep=mask: grad * keep)
            if name.endswith(("conv_out.conv", "quant_conv")):
                continue
            stays = ".conv2.conv" in name  # its anchors come in by the residual
            set_anchors(module, groups, 0.0 if stays else ANCHOR)
        elif isinstance(module, torch.nn.GroupNorm):
            size = module.num_channels // groups
            module.weight.fill_(math.sqrt(2 * ANCHOR**2 / size + 1))
            module.weight.view(groups, size)[:, :2] = 0.0
        elif name.endswith("to_out.0"):
            module.weight.mul_(0.1)
            set_anchors(module, groups, 0.0)
    vae.encoder.conv_out.conv.weight.mul_(4.0)
    vae.quant_conv.weight.mul_(2.0)
    vae.quant_conv.bias[latent_channels :] = -4.0


def set_anchors(layer: Any, groups: int, value: float) -> None:
    """Make the first two output channels of each group the constants `value` and `-value`."""
    size = layer.weight.shape[0] // groups
    for start in range(0, groups * size, size):
        layer.weight[start : start + 2] = 0.0
        layer.bias[start] = value
        layer.bias[start + 1] = -value
