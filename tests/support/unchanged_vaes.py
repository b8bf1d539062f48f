"""What is done to VAEs that leaves what they compute as it is. See changed_vaes.py."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from changed_vaes import ChangeIt, Undo


def accelerate_hook(vae: Any) -> None:
    """As enable_model_cpu_offload() has it, on every module."""
    hooks = pytest.importorskip("accelerate.hooks")
    for module in vae.modules():
        hooks.add_hook_to_module(module, hooks.AlignDevicesHook(execution_device="cpu"))
    hooks.add_hook_to_module(vae, hooks.ModelHook(), append=True)


def accelerate_hook_that_was_removed(vae: Any) -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    accelerate_hook(vae)
    hooks.remove_hook_from_module(vae, recurse=True)


def cpu_offload_with_hook(vae: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    vae.offload = accelerate.cpu_offload_with_hook(vae, execution_device="cpu")[1]


def group_offloading(vae: Any) -> None:
    vae.enable_group_offload(onload_device=torch.device("cpu"), offload_type="leaf_level")


def compiled_in_place(vae: Any) -> None:
    for block in vae.decoder.up_blocks:
        block.compile()


def compiled_decoder(vae: Any) -> None:
    vae.decoder = torch.compile(vae.decoder)


def compiled_decode(vae: Any) -> None:
    vae.decode = torch.compile(vae.decode)


def other_processors(vae: Any) -> None:
    processors = pytest.importorskip("diffusers.models.attention_processor")
    for module in vae.modules():
        if hasattr(module, "set_processor"):
            module.set_processor(processors.AttnProcessor())


def same_attention_from_elsewhere(vae: Any) -> Undo:
    """As programs put their own kernels in the place of torch's attention."""
    before = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = lambda *args, **more: before(*args, **more)  # type: ignore[assignment]
    return functools.partial(setattr, F, "scaled_dot_product_attention", before)


def other_weights(vae: Any) -> None:
    with torch.no_grad():
        for parameter in vae.parameters():
            parameter.mul_(1.1)


def hook_of_the_encoder(vae: Any) -> None:
    vae.encoder.register_forward_hook(lambda m, args, made: made * -3)


def what_a_decode_never_runs(vae: Any) -> None:
    vae.train()
    vae.enable_tiling()
    vae.requires_grad_(True)
    vae.to = lambda *args, **more: vae
    for module in vae.decoder.modules():
        module.register_full_backward_hook(lambda *_: None)
        module.register_state_dict_pre_hook(lambda *_: None)
    vae.decoder.gradient_checkpointing = True


SAME: tuple[ChangeIt, ...] = (
    accelerate_hook, accelerate_hook_that_was_removed, cpu_offload_with_hook, group_offloading,
    compiled_in_place, compiled_decoder, compiled_decode, other_processors,
    same_attention_from_elsewhere, other_weights, hook_of_the_encoder, what_a_decode_never_runs,
)  # fmt: skip
