"""What all families have: facts of the VAE, read off its layers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.families.fixed import FixedWeight, paired
from hy3d_rocm.decode.families.parts import StrangeModuleError, absent, conv_of
from hy3d_rocm.decode.families.survey import Size, Survey
from hy3d_rocm.decode.layers import Conv, Engine, Handle
from hy3d_rocm.decode.precision import computed_in

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.families.seen import Seen

_ROWS = 8  # a survey's latent is so high and wide


class StructuredFamily(ABC):
    """A VAE with `decoder` and, where it can encode, `encoder`; the quantising convolutions may be
    missing. Layers are made from the modules anew at each call: nothing of the VAE is kept twice.
    """

    name: str
    is_image = False
    #: hosted.Host where another program manages the weights
    host: Any = None
    #: What was found of the VAE as it is (seen.py), where somebody looked
    seen: Seen | None = None

    def __init__(self, vae: Any) -> None:
        self.vae = vae
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
        return conv_of(self.decoder.conv_in).module

    @property
    def latent_channels(self) -> int:
        """Channels of a latent."""
        return int(self.decoder_conv_in.weight.shape[1])

    @property
    def pixel_steps(self) -> tuple[int, int]:
        """(time, space): encode() takes 1 + k time frames of sides that are multiples of space, as
        the VAE's own does; (1, 1): any."""
        return 1, 1

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
            self._out_sizes[key] = self.surveyed(Survey(key[2]), Size(*key)).shape[1:]
        return batch, *self._out_sizes[key]

    def moments_shape(self, pixels: tuple[int, ...]) -> tuple[int, ...]:
        """(B, C, T, H, W) of what encode() makes of pixels (B, C, T, H, W)."""
        batch, channels, frames, height, width = pixels
        survey = Survey(height)
        return batch, *self.encode(survey, Size(channels, frames, height, width)).shape[1:]

    @cached_property
    def _facts(self) -> tuple[Size, bool, tuple[int, int]]:
        survey = Survey(_ROWS)
        sizes = [
            self.surveyed(survey, Size(self.latent_channels, t, _ROWS, _ROWS)) for t in self.lengths
        ]
        time = sizes[-1].frames - sizes[0].frames if len(sizes) > 1 else 1
        return sizes[-1], survey.global_norms, (time, sizes[0].height // _ROWS)

    #: Latent frames of two surveys; an image VAE has one only
    lengths: tuple[int, ...] = (1, 2)

    def check(self) -> None:
        """StrangeModuleError or AttributeError where the decoder is not what the family takes it
        for: a part is missing, does not fit the one before, or has parameters nothing reads."""
        survey = Survey(_ROWS)
        self.surveyed(survey, Size(self.latent_channels, 2, _ROWS, _ROWS))
        read = {id(p) for m in survey.modules.values() for p in m.parameters(recurse=False)}
        read |= {id(p) for p in self.beside_layers()}
        for name, parameter in self.decoder.named_parameters():
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

    def beside_layers(self) -> list[Tensor]:
        """Parameters of the decoder that are read otherwise than by layers."""
        return []

    def probed(self, engine: Engine, z: Handle, timestep: float) -> Handle:
        """decode(), with this timestep where the VAE takes one."""
        return self.decode(engine, z)

    def surveyed(self, survey: Survey, z: Size) -> Size:
        """decode() on sizes."""
        size: Size = self.decode(survey, z)
        return size

    @abstractmethod
    def decode(self, engine: Engine, z: Handle) -> Handle:
        """z -> frames, as the VAE's own unsplit decode of z gives them."""

    @abstractmethod
    def encode(self, engine: Engine, pixels: Handle) -> Handle:
        """pixels -> mean and log variance of the latent's distribution."""

    def whole(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, unsplit."""
        own = getattr(self.vae, "own_decode", None) or self.own_decode
        result: Tensor = own(z)
        return result

    def whole_encode(self, pixels: Tensor) -> Tensor:
        """What encode() gives by the VAE's own code, unsplit."""
        own = getattr(self.vae, "own_encode", None) or self.own_encode
        result: Tensor = own(pixels)
        return result

    @abstractmethod
    def own_decode(self, z: Tensor) -> Tensor:
        """whole(), of a VAE with diffusers' names."""

    @abstractmethod
    def own_encode(self, pixels: Tensor) -> Tensor:
        """whole_encode(), of a VAE with diffusers' names."""

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
        return self.encoder
