"""What all families have: facts of the VAE, read off its layers by running them on shapes alone."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hy3d_rocm.decode.families.fixed import (
    FixedWeight,
    packed_in_space,
    packed_with_first_twice,
    paired,
)
from hy3d_rocm.decode.families.parts import StrangeModuleError, absent, conv_of
from hy3d_rocm.decode.graph import ATTENTION, Node, Recorder, Value, graph_of
from hy3d_rocm.decode.layers import Attention, Conv, Engine, Handle, Local
from hy3d_rocm.decode.precision import computed_in
from hy3d_rocm.decode.weights import ModuleWeights

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.families.changes import Examined
    from hy3d_rocm.decode.layers import Weights

_ROWS = 8  # a survey's latent is so high and wide
_Size = tuple[int, int, int, int]


class _Facts(NamedTuple):
    """See the properties of the same names; reach in latent rows."""

    channels: int
    has_global_norms: bool
    factor: tuple[int, int]
    reach: float


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
    seen: Examined | None = None
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
        return self._facts.channels

    @property
    def has_global_norms(self) -> bool:
        """Whether the decoder takes moments over the whole video."""
        return self._facts.has_global_norms

    @property
    def factor(self) -> tuple[int, int]:
        """(time, space) of frames against latents: T latents make (T - 1) * time + 1 frames."""
        return self._facts.factor

    def reach(self) -> int:
        """Latent rows at a tile's border that a cut there can change, attention left aside."""
        return math.ceil(self._facts.reach)

    def out_shape(self, latent: tuple[int, ...]) -> tuple[int, ...]:
        """(B, C, T, H, W) of the frames for a latent (B, C, T, H, W)."""
        batch, *size = latent
        key = tuple(size)
        if key not in self._out_sizes:
            self._out_sizes[key] = _surveyed(self.decode, key).sizes[-1]
        return batch, *self._out_sizes[key]

    def moments_shape(self, pixels: tuple[int, ...]) -> tuple[int, ...]:
        """(B, C, T, H, W) of what encode() makes of pixels (B, C, T, H, W)."""
        return pixels[0], *_surveyed(self.encode, pixels[1:]).sizes[-1]

    @cached_property
    def _facts(self) -> _Facts:
        surveys = [self._survey(frames) for frames in self.lengths]
        first, last = surveys[0].sizes[-1], surveys[-1].sizes[-1]
        time = last[1] - first[1] if len(surveys) > 1 else 1
        norms = [getattr(layer, "norm", None) for layer in surveys[-1].layers]
        has_global_norms = any(norm is not None and norm.kind == "group" for norm in norms)
        return _Facts(last[0], has_global_norms, (time, first[2] // _ROWS), surveys[-1].reaches[-1])

    def _survey(self, frames: int) -> Survey:
        return _surveyed(self.decode, (self.latent_channels, frames, _ROWS, _ROWS))

    def check(self) -> None:
        """StrangeModuleError or AttributeError where the decoder is not what the family takes it
        for: a part is missing, does not fit the one before, or has parameters nothing reads."""
        read = {id(p) for p in self.beside_layers()}
        for layer in self._survey(2).layers:
            norm = getattr(layer, "norm", None)
            modules = [getattr(layer, name, None) for name in ("module", "q", "k", "v", "out")]
            for module in (*modules, None if norm is None else norm.module):
                if module is not None:
                    read |= {id(p) for p in module.parameters(recurse=False)}
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
        return ModuleWeights(self.dtype, self.device)

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

    def packed_down(
        self, engine: Engine, x: Handle, conv: Conv, group: int, time: int, *, side: int = 2,
        order: str = "channel first", with_first: Local | None = None,
    ) -> Handle:  # fmt: skip
        """x through a convolution and packed by (time, side, side), plus x packed in means over
        `group` channels (HunyuanVideo 1.5, LTX since 0.9.5).

        with_first: x packed in space with a pair for the video's first frame, where the means are
        not of that frame twice.
        """
        if time == 1:
            means = engine.local(x, packed_in_space(side, group, order))
            x = engine.local(engine.conv(x, conv), packed_in_space(side, order=order))
            return engine.add(x, means)
        squares = side * side
        outputs, inputs = (int(n) * squares for n in conv.module.weight.shape[:2])
        means = engine.local(x, with_first or packed_with_first_twice(side, order))
        pairs = self.pairs(inputs, mean_of=group, order=order, squares=squares)
        means = engine.conv(means, pairs)
        # The VAE repeats the first frame before it convolves; where nothing later is read, that is
        # to repeat what becomes of it.
        if conv.after[0] == 0:
            x = engine.local(engine.conv(x, conv), packed_with_first_twice(side, order))
        else:
            front, *sides = conv.before
            x = engine.conv(x, replace(conv, before=(front + 1, sides[0], sides[1])))
            x = engine.local(x, packed_in_space(side, order=order))
        return engine.conv(x, self.pairs(outputs, order=order, squares=squares), add=means)

    def needed_encoder(self) -> Any:
        """The encoder; TypeError where the VAE has none."""
        if self.encoder is None:
            raise TypeError(
                f"this {self.name} VAE has no encoder: load one that was not saved for decoding "
                "only"
            )
        return self.view.encoder


class Survey(Recorder):
    """A recorder that refuses what does not fit, and needs no timestep: that changes no size.

    sizes: (C, T, H, W) of each value. reaches: how far in, in rows of the input, a cut at the
    border has changed it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[_Size] = []
        self.reaches: list[float] = []

    def add_node(self, node: Node, layer: Conv | Attention | Local | None, size: _Size) -> Value:
        """The value of a new node; StrangeModuleError where a convolution's channels or the sides
        of a sum are not those of what comes."""
        reach = self.reaches[node.source] if node.source >= 0 else 0.0
        if isinstance(layer, Conv):
            channels, _, rows, _ = self.sizes[node.source]
            taken = int(layer.module.weight.shape[1])
            if taken != channels:
                raise StrangeModuleError(
                    f"a convolution takes {taken} channels where {channels} come"
                )
            top, scale = node.before[1], rows * node.up[1] / self.sizes[0][2]
            reach += max(top, node.kernel[1] - 1 - top) / scale
        if node.other >= 0:
            other = self.sizes[node.other]
            if other != size:
                raise StrangeModuleError(f"a sum has sides of {(1, *size)} and {(1, *other)}")
            reach = max(reach, self.reaches[node.other])
        self.sizes.append(size)
        self.reaches.append(reach)
        return super().add_node(node, layer, size)

    def attention(self, x: Value, layer: Attention) -> Value:
        """Attention reaches everywhere and is left aside; its projections are not looked at."""
        node = Node(ATTENTION, x.node, channels=x.channels)
        return self.add_node(node, layer, self.sizes[x.node])


def _surveyed(function: Callable[[Survey, Value], Value], size: Any) -> Survey:
    """A function over an engine, of an input (C, T, H, W); what it makes stands last."""
    survey = Survey()
    graph_of(function, size, survey)
    return survey
