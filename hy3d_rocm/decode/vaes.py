"""The video VAEs that can be decoded in parts, behind one interface.

A decoder is split in two: the *trunk* (up to and with the first `depth` up-blocks), which runs on
the whole video, and the *head* (the rest), which runs on tiles of the trunk's output and is
streamed in time: every causal convolution keeps its last two input frames from one chunk to the
next, so cutting in time changes nothing and recomputes nothing. Nothing of the VAE is written to:
no flag, cache, dtype or hook, so there is nothing to restore and nothing to race for.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hy3d_rocm.decode.norms import NormPass

if TYPE_CHECKING:
    from torch import Tensor


class Carry:
    """What the head's causal layers keep between the chunks of one tile."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.first = True
        self.index = 0

    def start(self) -> None:
        self.index = 0


class VideoVae(ABC):
    """One VAE family. `depth` is the number of up-blocks that belong to the trunk."""

    name: str
    has_global_norms: bool

    def __init__(self, vae: Any, post_quant_conv: nn.Module, decoder: nn.Module) -> None:
        self.vae = vae
        self.post_quant_conv = post_quant_conv
        self.decoder: Any = decoder

    @property
    def blocks(self) -> int:
        return len(self.decoder.up_blocks)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = next(self.decoder.parameters()).dtype
        return dtype

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.decoder.parameters()).device
        return device

    @property
    @abstractmethod
    def latent_channels(self) -> int: ...

    @property
    @abstractmethod
    def out_channels(self) -> int: ...

    @abstractmethod
    def block_factors(self) -> list[tuple[int, int]]:
        """(time, space) factor of each up-block."""

    @property
    def pixel_factor(self) -> int:
        """Space factor of what comes after the decoder (unpatchify)."""
        return 1

    def scale(self, depth: int) -> tuple[int, int]:
        """(time, space) factor of the trunk's output against the latent."""
        time = space = 1
        for t, s in self.block_factors()[:depth]:
            time, space = time * t, space * s
        return time, space

    @property
    def factor(self) -> tuple[int, int]:
        """(time, space) factor of the frames against the latent."""
        time, space = self.scale(self.blocks)
        return time, space * self.pixel_factor

    def out_shape(self, latent: tuple[int, ...]) -> tuple[int, ...]:
        """(B, C, T, H, W) of the frames for a latent (B, C, T, H, W)."""
        time, space = self.factor
        b, _, t, h, w = latent
        return b, self.out_channels, (t - 1) * time + 1, h * space, w * space

    def grid(self, latent: tuple[int, ...], depth: int) -> tuple[int, int, int]:
        """(T, H, W) of the trunk's output."""
        time, space = self.scale(depth)
        return (latent[2] - 1) * time + 1, latent[3] * space, latent[4] * space

    @abstractmethod
    def reach(self, depth: int) -> int:
        """Grid units at a tile's border that a cut there can change: the head's receptive field."""

    @abstractmethod
    def whole(self, z: Tensor) -> Tensor:
        """Exactly what `vae.decode(z).sample` computes without framewise, tiling and slicing."""

    @abstractmethod
    def trunk(self, z: Tensor, depth: int) -> Tensor:
        """z (1, C, T, H, W) -> the trunk's output for the whole video."""

    @abstractmethod
    def head(self, x: Tensor, depth: int, carry: Carry, norms: NormPass, last: bool) -> Tensor:
        """A chunk of one tile of the trunk's output -> frames; chunks come in order of time. With
        `last` nothing is kept for a next chunk."""

    def head_frames(self, grid_frames: int, depth: int, first: bool) -> int:
        """How many frames `head` makes of a chunk of `grid_frames`."""
        time = self.factor[0] // self.scale(depth)[0]
        return (grid_frames - 1) * time + 1 if first else grid_frames * time

    def cast(self, dtype: torch.dtype | None = None, device: str | None = None) -> VideoVae:
        """The same decoder with parameters of another type or place; the VAE's own are untouched.

        The modules are copied, the parameters converted once: nothing has to be put back.
        """
        memo: dict[int, Any] = {}
        for module in (self.post_quant_conv, self.decoder):
            for p in (*module.parameters(), *module.buffers()):
                memo[id(p)] = _converted(p, dtype, device)
        shadow = copy.copy(self)
        shadow.post_quant_conv = copy.deepcopy(self.post_quant_conv, memo)
        shadow.decoder = copy.deepcopy(self.decoder, memo)
        return shadow


def _converted(p: Tensor, dtype: torch.dtype | None, device: str | None) -> Tensor:
    target = dtype if dtype is not None and p.is_floating_point() else p.dtype
    if device == "meta":
        new = torch.empty_strided(p.shape, p.stride(), dtype=target, device="meta")
    else:
        new = p.detach().to(dtype=target)
    return nn.Parameter(new, requires_grad=False) if isinstance(p, nn.Parameter) else new


def adapter_for(vae: Any) -> VideoVae:
    """The adapter of `vae`; TypeError (a sentence) for a class that has none."""
    from hy3d_rocm.decode.hunyuan import HunyuanVae
    from hy3d_rocm.decode.wan import WanVae

    names = {c.__name__ for c in type(vae).__mro__}
    for class_name, adapter in (
        ("AutoencoderKLHunyuanVideo", HunyuanVae),
        ("AutoencoderKLWan", WanVae),
    ):
        if class_name in names:
            missing = [a for a in ("post_quant_conv", "decoder") if not hasattr(vae, a)]
            if missing:
                raise TypeError(
                    f"the {class_name} has no {' and no '.join(missing)}: "
                    "pass the complete VAE, not a part of it"
                )
            return adapter(vae, vae.post_quant_conv, vae.decoder)
    raise TypeError(
        f"decode() knows diffusers' AutoencoderKLHunyuanVideo and AutoencoderKLWan, not "
        f"{type(vae).__name__}: pass one of these, or call the VAE's own decode under "
        "hy3d_rocm.protect()"
    )
