"""What all families have: facts of the VAE, read off its layers by running them on shapes alone."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.families.fixed import FixedWeight, paired
from hy3d_rocm.decode.families.parts import StrangeModuleError, absent, conv_of
from hy3d_rocm.decode.layers import Attention, Conv, Engine, Handle, Local, Norm, out_frames
from hy3d_rocm.decode.plain import OwnWeights, kernel_of
from hy3d_rocm.decode.precision import computed_in

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.families.changes import Seen
    from hy3d_rocm.decode.layers import Weights

_ROWS = 8  # a survey's latent is so high and wide


class StructuredFamily(ABC):
    """A VAE with `decoder` and, where it can encode, `encoder`; the quantising convolutions may be
    missing. Layers are made from the modules anew at each call: nothing of the VAE is kept twice.
    """

    name: str
    is_image = False
    #: hosted.Host where another program manages the weights
    host: Any = None
    #: hosted.Surroundings of a VAE under its authors' names
    around: Any = None
    #: What was found of the VAE as it is (changes.py), where somebody looked
    seen: Seen | None = None
    #: The timestep that a decoder which is conditioned on one takes
    timestep: float | None = None
    #: Latent frames of two surveys; an image VAE has one only
    lengths: tuple[int, ...] = (1, 2)

    def __init__(self, vae: Any) -> None:
        #: The VAE, and the same under diffusers' names where its own are others (original.py)
        self.vae = self.view = vae
        self.decoder: Any = vae.decoder
        self.encoder: Any = getattr(vae, "encoder", None)
        self.post_quant_conv: Any = getattr(vae, "post_quant_conv", None)
        self.quant_conv: Any = getattr(vae, "quant_conv", None)
        #: What the attention of the middle block sees, where the kind of VAE leaves it open
        self.span: str = getattr(vae, "attention_span", "causal")
        self._pairs: dict[tuple[Any, ...], FixedWeight] = {}
        self._out_sizes: dict[tuple[int, ...], tuple[int, ...]] = {}

    @classmethod
    @abstractmethod
    def recognises(cls, vae: Any) -> bool:
        """Whether `vae.decoder` has what tells this family from all others."""

    @abstractmethod
    def decode(self, engine: Engine, z: Handle) -> Handle:
        """z -> frames, as the VAE's own unsplit decode of z gives them."""

    @abstractmethod
    def encode(self, engine: Engine, pixels: Handle) -> Handle:
        """pixels -> mean and log variance of the latent's distribution."""

    def own_decode(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, unsplit."""
        x = z[:, :, 0] if self.is_image else z
        if not absent(self.post_quant_conv):
            x = self.post_quant_conv(x)
        made: Tensor = self.view.decoder(x)
        return made.unsqueeze(2) if self.is_image else made

    def own_encode(self, pixels: Tensor) -> Tensor:
        """Mean and log variance by the VAE's own code, unsplit."""
        made: Tensor = self.needed_encoder()(pixels[:, :, 0] if self.is_image else pixels)
        if not absent(self.quant_conv):
            made = self.quant_conv(made)
        return made.unsqueeze(2) if self.is_image else made

    def whole(self, z: Tensor) -> Tensor:
        """own_decode(), or what a view has in its place."""
        made: Tensor = getattr(self.view, "own_decode", self.own_decode)(z)
        return made

    def whole_encode(self, pixels: Tensor) -> Tensor:
        """own_encode(), or what a view has in its place."""
        made: Tensor = getattr(self.view, "own_encode", self.own_encode)(pixels)
        return made

    def beside_layers(self) -> list[Tensor]:
        """Parameters of the decoder that are read otherwise than by layers."""
        return []

    @property
    def conditioned(self) -> bool:
        """Whether decoding takes a timestep."""
        return False

    @property
    def pixel_steps(self) -> tuple[int, int]:
        """(time, space): encode() takes 1 + k time frames of sides that are multiples of space, as
        the VAE's own does; (1, 1): any."""
        return 1, 1

    # Read off the layers

    @property
    def dtype(self) -> torch.dtype:
        """Type of the decoder's weights; of float8 ones the type that they are computed in."""
        return computed_in(self.vae, self.decoder_conv_in.weight.dtype)

    @property
    def device(self) -> torch.device:
        """Where the decoder's weights are."""
        device: torch.device = self.decoder_conv_in.weight.device
        return device

    @property
    def decoder_conv_in(self) -> Any:
        """The module with the weights of the decoder's first convolution."""
        return conv_of(self.view.decoder.conv_in).module

    @property
    def latent_channels(self) -> int:
        """Channels of a latent."""
        return int(self.decoder_conv_in.weight.shape[1])

    @property
    def out_channels(self) -> int:
        """Channels of the frames."""
        return self._facts[0].channels

    @property
    def has_global_norms(self) -> bool:
        """Whether the decoder takes moments over the whole video."""
        return self._facts[1]

    @property
    def factor(self) -> tuple[int, int]:
        """(time, space) of frames against latents: T latents make (T - 1) * time + 1 frames."""
        return self._facts[2]

    def reach(self) -> int:
        """Latent rows at a tile's border that a cut there can change, attention left aside."""
        return math.ceil(self._facts[0].reach)

    def out_shape(self, latent: tuple[int, ...]) -> tuple[int, ...]:
        """(B, C, T, H, W) of the frames for a latent (B, C, T, H, W)."""
        batch, *size = latent
        key = tuple(size)
        if key not in self._out_sizes:
            self._out_sizes[key] = self.decode(Survey(key[2]), Size(*key)).shape[1:]
        return batch, *self._out_sizes[key]

    def moments_shape(self, pixels: tuple[int, ...]) -> tuple[int, ...]:
        """(B, C, T, H, W) of what encode() makes of pixels (B, C, T, H, W)."""
        return pixels[0], *self.encode(Survey(pixels[3]), Size(*pixels[1:])).shape[1:]

    @cached_property
    def _facts(self) -> tuple[Size, bool, tuple[int, int]]:
        survey = Survey(_ROWS)
        sizes = [self._surveyed(survey, frames) for frames in self.lengths]
        time = sizes[-1].frames - sizes[0].frames if len(sizes) > 1 else 1
        return sizes[-1], survey.global_norms, (time, sizes[0].height // _ROWS)

    def _surveyed(self, survey: Survey, frames: int) -> Size:
        size: Size = self.decode(survey, Size(self.latent_channels, frames, _ROWS, _ROWS))
        return size

    def check(self) -> None:
        """StrangeModuleError or AttributeError where the decoder is not what the family takes it
        for: a part is missing, does not fit the one before, or has parameters nothing reads."""
        survey = Survey(_ROWS)
        self._surveyed(survey, 2)
        read = {id(p) for m in survey.modules.values() for p in m.parameters(recurse=False)}
        read |= {id(p) for p in self.beside_layers()}
        for name, parameter in self.view.decoder.named_parameters():
            if id(parameter) not in read:
                raise StrangeModuleError(f"decoder.{name} has no place in it")

    def check_pixels(self, shape: tuple[int, ...]) -> None:
        """ValueError (a sentence) where pixels (B, C, T, H, W) are of no size the VAE encodes."""
        time, space = self.pixel_steps
        frames, height, width = shape[2:]
        if (frames - 1) % time:
            near = 1 + (frames - 1) // time * time
            raise ValueError(
                f"{frames} frames are given, but this {self.name} VAE encodes 1 + {time} k: "
                f"cut to {near} or repeat the last to {near + time}"
            )
        if height % space or width % space:
            raise ValueError(
                f"frames are {width}x{height}, but this {self.name} VAE encodes sides that are "
                f"multiples of {space}: scale or crop them to "
                f"{max(width // space, 1) * space}x{max(height // space, 1) * space}"
            )

    # For decode() and encode()

    def weights(self) -> Weights:
        """The weights as the VAE itself computes with them."""
        return OwnWeights()

    def quantised(self, engine: Engine, x: Handle, module: Any) -> Handle:
        """x through quant_conv or post_quant_conv, where the VAE has it."""
        return x if absent(module) else engine.conv(x, conv_of(module))

    def pairs(
        self, channels: int, *, mean_of: int = 1, order: str = "channel first", squares: int = 4
    ) -> Conv:
        """Two frames of `channels` channels, 0 and 1, 2 and 3 and so on, to one (fixed.paired)."""
        key = (channels, mean_of, order, squares, self.dtype, self.device)
        if key not in self._pairs:
            self._pairs[key] = paired(*key)
        return Conv(self._pairs[key], stride=(2, 1, 1))

    def needed_encoder(self) -> Any:
        """The encoder; TypeError where the VAE has none."""
        if self.encoder is None:
            raise TypeError(
                f"this {self.name} VAE has no encoder: load one that was not saved for decoding "
                "only"
            )
        return self.view.encoder


@dataclass(frozen=True)
class Size:
    """An activation (1, channels, frames, height, width) and how far in, in rows of the video the
    survey began with, a cut at its border has changed it."""

    channels: int
    frames: int
    height: int
    width: int
    reach: float = 0.0

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        return 1, self.channels, self.frames, self.height, self.width


class Survey:
    """Engine over sizes; computes nothing.

    modules: every module whose parameters a layer reads, by id. global_norms: whether one of them
    takes moments over the whole video.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.modules: dict[int, Any] = {}
        self.global_norms = False

    def _read(self, norm: Norm | None, *modules: Any) -> None:
        if norm is not None:
            modules += (norm.module,)
            self.global_norms |= norm.kind == "group"
        self.modules.update((id(m), m) for m in modules if m is not None)

    def conv(self, x: Size, layer: Conv, *, add: Size | None = None) -> Size:
        """Size of the output; StrangeModuleError where channels or a residual do not fit."""
        self._read(layer.norm, layer.module)
        weight = layer.module.weight
        kernel = kernel_of(weight)
        if int(weight.shape[1]) != x.channels:
            raise StrangeModuleError(
                f"a convolution takes {int(weight.shape[1])} channels where {x.channels} come"
            )
        factor = (1, 1, 1) if layer.shuffle is None else layer.shuffle.factor
        sides = []
        for axis, side in ((1, x.height), (2, x.width)):
            padded = side * layer.up[axis] + layer.before[axis] + layer.after[axis]
            sides.append((padded - kernel[axis]) // layer.stride[axis] + 1)
        scale = x.height * layer.up[1] / self.rows
        size = Size(
            int(weight.shape[0]) // math.prod(factor),
            out_frames(layer, x.frames, kernel[0]),
            sides[0] * factor[1],
            sides[1] * factor[2],
            x.reach + max(layer.before[1], kernel[1] - 1 - layer.before[1]) / scale,
        )
        return size if add is None else self.add(size, add)

    def attention(self, x: Size, layer: Attention) -> Size:
        """x; attention reaches everywhere and is left aside."""
        self._read(layer.norm, layer.q, layer.k, layer.v, layer.out)
        return x

    def local(self, x: Size, layer: Local) -> Size:
        """The size of what the function makes of frames on "meta"."""
        made = layer.run(torch.empty(x.shape, device="meta"), 0)
        if made.shape[2] != layer.frames_of(x.frames):
            raise AssertionError("a Local makes another number of frames than it says")
        _, channels, frames, height, width = (int(n) for n in made.shape)
        return Size(channels, frames, height, width, x.reach)

    def add(self, x: Size, y: Size) -> Size:
        """The size of both."""
        if x.shape != y.shape:
            raise StrangeModuleError(f"a sum has sides of {x.shape} and {y.shape}")
        return replace(x, reach=max(x.reach, y.reach))
