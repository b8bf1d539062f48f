"""What all kinds of VAE have in common: a decoder and an encoder of a middle block and residual
blocks up or down, and facts, read off the layers by recording them on shapes alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hy3d_rocm import _native
from hy3d_rocm.decoding.families import parts
from hy3d_rocm.decoding.families.changes import Examined
from hy3d_rocm.decoding.families.original import Processing, View, inner_vae, view_of
from hy3d_rocm.decoding.families.proof import on_shapes
from hy3d_rocm.decoding.graph import GROUP, Graph, graph_of, record
from hy3d_rocm.decoding.layers import (
    Attention,
    Conv,
    Engine,
    Handle,
    Local,
    ModuleWeights,
    Norm,
    StrangeModuleError,
    Weights,
)
from hy3d_rocm.decoding.precision import computed_in

_ROWS = 8  # the latent that facts are read off is so high and wide
# How ComfyUI's attention function is called whose memory can be told beforehand.
_TOLD = "pytorch_attention"


@dataclass(frozen=True)
class Host:
    """What a program that manages a VAE's weights itself says about it, wherever they are now.
    make_weights: of a type and device; each decode makes its own. runs_own_code: whether the VAE's
    own code can run there as things are. casts: whether these weights have ComfyUI's patches in
    them."""

    device: torch.device
    dtype: torch.dtype
    make_weights: Callable[[torch.dtype, torch.device], Weights]
    runs_own_code: bool = True
    casts: bool = False


class WarmUp(NamedTuple):
    """latents: to be decoded before a chunk of the video, None where time can't be cut. is_enough:
    whether the chunk's frames are those of the whole video then."""

    latents: int | None
    is_enough: bool


UNCUT = WarmUp(None, False)


@dataclass(frozen=True)
class Facts:
    """Of a VAE's decode. planar: it takes (B, C, H, W). channels: of the frames, 0: not known.
    dtype: of the frames, None: that of the computation. first: frames of the first latent; time: of
    each later one; space: rows of a latent's row; None where not known. has_global_norms: whether
    the decoder takes moments over the whole video. note: why its own code has no tiles. warm_up:
    asked where time is to be cut."""

    planar: bool
    channels: int = 0
    dtype: torch.dtype | None = None
    first: int | None = None
    time: int | None = None
    space: int | None = None
    has_global_norms: bool = False
    note: str = ""
    warm_up: Callable[[], WarmUp] = lambda: UNCUT

    @property
    def is_regular(self) -> bool:
        """Whether the size of the frames follows from that of the latents."""
        return None not in (self.first, self.time, self.space)

    def frames(self, latents: int) -> int:
        assert self.first is not None
        assert self.time is not None
        return self.first + (latents - 1) * self.time


class Family(ABC):
    """A VAE for a decode or an encode, layer by layer or by its own code alone."""

    name: str
    vae: Any
    #: Where another program manages the weights
    host: Host | None = None
    #: Why only its own code can run, a part of a sentence; "" where its layers can
    why = ""

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """What is known of its decode."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Type that it computes in."""

    @abstractmethod
    def over(self, vae: Any) -> Family:
        """The same of a copy of its VAE."""

    @property
    def is_opaque(self) -> bool:
        """Whether nobody runs its layers: whole() is all that it has."""
        return bool(self.why)

    @property
    def out_channels(self) -> int:
        """0 where they are not known beforehand."""
        return self.facts.channels

    @property
    def factor(self) -> tuple[int, int]:
        """(time, space) of frames against latents, 1 where not known: T latents make (T - 1) * time
        frames and those of the first."""
        return self.facts.time or 1, self.facts.space or 1

    @property
    def result_dtype(self) -> torch.dtype:
        return self.facts.dtype or self.dtype

    @property
    def warm_up(self) -> WarmUp:
        """What its own code has to decode before a chunk of a video."""
        return WarmUp(0, True) if self.facts.planar else self.facts.warm_up()


class StructuredFamily(Family):
    """A VAE with `decoder` and, where it can encode, `encoder`; the quantising convolutions may be
    missing. Layers are made from the modules anew at each call: nothing of the VAE is kept twice.
    """

    #: What its decoder has and no other family's
    marks: tuple[str, ...]
    #: In names of what it has beside layers
    beside_layers: tuple[str, ...] = ()
    is_image = False
    #: What the attention of the middle block sees; "": all before it, unless a view says otherwise
    span = ""
    #: Whether decoding takes a timestep, and which
    conditioned = False
    timestep: float | None = None
    #: What was found of the VAE as it is (changes.py), where somebody looked
    seen: Examined | None = None

    def __init__(self, vae: Any, view: View | None = None) -> None:
        """view: view_of(vae) where its parts have other names than diffusers'."""
        modules = inner_vae(vae)
        self.vae, self.view = vae, vae if view is None else view
        self.processing = Processing() if view is None else view.processing
        self.decoder: Any = modules.decoder
        self.encoder: Any = getattr(modules, "encoder", None)
        self.post_quant_conv: Any = getattr(self.view, "post_quant_conv", None)
        self.quant_conv: Any = getattr(self.view, "quant_conv", None)
        self.span = self.span or getattr(self.view, "attention_span", "causal")
        self._pairs: dict[tuple[Any, ...], parts.FixedWeight] = {}

    def over(self, vae: Any) -> StructuredFamily:
        """The same of the VAE, or of a copy of it, as it is without a host."""
        made = type(self)(vae, None if self.view is self.vae else view_of(vae))
        made.timestep, made.why = self.timestep, self.why  # set after a family is made
        return made

    @classmethod
    def recognises(cls, vae: Any) -> bool:
        """Whether `vae.decoder` has its marks."""
        with suppress(AttributeError):
            attrgetter(*cls.marks)(vae.decoder)
            return True
        return False

    @abstractmethod
    def up(self, engine: Engine, module: Any, x: Handle) -> Handle:
        """x through an up-sampling."""

    @abstractmethod
    def down(self, engine: Engine, module: Any, x: Handle) -> Handle:
        """x through a down-sampling."""

    def norm(self, module: Any) -> Norm:
        """A norm of a residual block or before a last convolution."""
        return parts.norm_of(module)

    def attention(self, module: Any) -> Attention:
        return parts.attention_of(module, self.span, self.norm)

    def resnets(self, engine: Engine, block: Any, x: Handle) -> Handle:
        """x through a block's residual blocks, and what attention stands between them."""
        attentions = list(getattr(block, "attentions", None) or ())
        if attentions and len(attentions) != len(block.resnets) - 1:
            raise StrangeModuleError(f"{type(block).__name__} has attention beyond its last resnet")
        for attn, layer in zip_longest([None, *attentions], block.resnets):
            if attn is not None:
                x = engine.attention(x, self.attention(attn))
            x = parts.resnet(engine, layer, x, self.norm)
        return x

    def up_block(self, engine: Engine, block: Any, x: Handle) -> Handle:
        x = self.resnets(engine, block, x)
        for up in block.upsamplers or ():
            x = self.up(engine, up, x)
        return x

    def down_block(self, engine: Engine, block: Any, x: Handle) -> Handle:
        x = self.resnets(engine, block, x)
        for down in block.downsamplers or ():
            x = self.down(engine, down, x)
        return x

    def last(self, engine: Engine, coder: Any) -> Conv:
        return parts.last_of(coder, self.norm)

    def around_first(self, engine: Engine, z: Handle) -> Handle | None:
        """What is added to what the decoder's first convolution makes of z."""
        return None

    def around_last(self, engine: Engine, x: Handle) -> Handle | None:
        """What is added to what the encoder's last convolution makes of x."""
        return None

    def run_decoder(self, engine: Engine, z: Handle) -> Handle:
        """What is between the processing before and after it, as the VAE's own code does it with
        its tiles, slices and framewise decoding off."""
        d = self.view.decoder
        if not parts.absent(self.post_quant_conv):
            z = engine.conv(z, parts.conv_of(self.post_quant_conv))
        x = engine.conv(z, parts.conv_of(d.conv_in), add=self.around_first(engine, z))
        x = self.resnets(engine, d.mid_block, x)
        for block in d.up_blocks:
            x = self.up_block(engine, block, x)
        return engine.conv(x, self.last(engine, d))

    def run_encoder(self, engine: Engine, pixels: Handle) -> Handle:
        """The same from pixels to mean and log variance of the latent's distribution."""
        e = self.view.encoder
        x = engine.conv(pixels, parts.conv_of(e.conv_in))
        for block in e.down_blocks:
            x = self.down_block(engine, block, x)
        x = self.resnets(engine, e.mid_block, x)
        x = engine.conv(x, self.last(engine, e), add=self.around_last(engine, x))
        return (
            x if parts.absent(self.quant_conv) else engine.conv(x, parts.conv_of(self.quant_conv))
        )

    def own_decode(self, z: Tensor) -> Tensor:
        x = z[:, :, 0] if self.is_image else z
        if not parts.absent(self.post_quant_conv):
            x = self.post_quant_conv(x)
        made: Tensor = self.view.decoder(x)
        return made.unsqueeze(2) if self.is_image else made

    def own_encode(self, pixels: Tensor) -> Tensor:
        made: Tensor = self.view.encoder(pixels[:, :, 0] if self.is_image else pixels)
        if not parts.absent(self.quant_conv):
            made = self.quant_conv(made)
        return made.unsqueeze(2) if self.is_image else made

    @property
    def pixel_steps(self) -> tuple[int, int]:
        """(time, space): encode() takes 1 + k time frames of sides that are multiples of space, as
        the VAE's own does; (1, 1): any."""
        return 1, 1

    # What others call

    def decode(self, engine: Engine, z: Handle) -> Handle:
        """z -> frames, as the VAE's own unsplit decode of z (noised already) gives them."""
        x = self.run_decoder(engine, _through(engine, self.processing.enter, z))
        return _through(engine, self.processing.leave, x)

    def encode(self, engine: Engine, pixels: Handle) -> Handle:
        """pixels -> mean and log variance of the latent's distribution."""
        self.needed_encoder()
        return _through(engine, self.processing.encoded, self.run_encoder(engine, pixels))

    def whole(self, x: Tensor, encode: bool = False) -> Tensor:
        """Frames by the VAE's own code, unsplit; of pixels mean and log variance."""
        does, call = self.processing, getattr(self.view, "own_decode", self.own_decode)
        enter, leave, coder = does.enter, does.leave, self.decoder
        if encode:
            self.needed_encoder()
            enter, leave, coder, call = None, does.encoded, self.encoder, self.own_encode
            if does.gives_mean:
                other = 'encode with a strategy other than "whole"'
                raise TypeError(
                    f"this {self.name} VAE's own encode gives the latent's mean only: "
                    + (f"call that, since {self.why}" if self.why else other)
                )
        x = _of_all(enter, x)
        for module in coder.modules() if x.is_meta else ():
            attention = getattr(module, "optimized_attention", None)
            if attention is not None and getattr(attention, "__name__", "") != _TOLD:
                raise ValueError("ComfyUI's attention in this VAE takes what memory is free")
        with on_shapes(x):
            x = call(x)
        return _of_all(leave, x)

    def needed_encoder(self) -> Any:
        """The encoder; TypeError where the VAE has none, or what is done behind it is not known."""
        if self.processing.no_encode:
            raise TypeError(f"{self.processing.no_encode}: call its own encode")
        if self.encoder is None:
            raise TypeError(
                f"this {self.name} VAE has no encoder: load one that was not saved for decoding "
                "only"
            )
        return self.view.encoder

    def noised(self, z: Tensor) -> Tensor:
        """Latents with the noise that the VAE's own decode() mixes into them (LTX), drawn from
        the global generator as there; others as they are."""
        scale = self.processing.noise
        return z if scale is None else torch.randn_like(z) * scale + (1.0 - scale) * z

    def make_weights(self, dtype: torch.dtype, device: torch.device) -> Weights:
        make = ModuleWeights if self.host is None else self.host.make_weights
        return make(dtype, device)

    # Read off the layers

    @property
    def dtype(self) -> torch.dtype:
        """Type that the host computes in, or of the decoder's weights; of float8 ones the type that
        they are computed in."""
        if self.host is not None:
            return self.host.dtype
        return computed_in(self.vae, self._first_weight.dtype)

    @property
    def device(self) -> torch.device:
        """Where the host computes, or the decoder's weights are."""
        return self._first_weight.device if self.host is None else self.host.device

    @property
    def _first_weight(self) -> Tensor:
        weight: Tensor = parts.conv_of(self.view.decoder.conv_in).module.weight
        return weight

    @property
    def latent_channels(self) -> int:
        return int(self._first_weight.shape[1]) * self.processing.packed

    @property
    def has_global_norms(self) -> bool:
        return self.facts.has_global_norms

    def out_shape(self, shape: tuple[int, ...], encode: bool = False) -> tuple[int, ...]:
        """(B, C, T, H, W) of the frames for a latent (B, C, T, H, W); of what encode() makes of
        pixels."""
        if not _native.available:
            made = graph_of(self.encode if encode else self.decode, shape[1:], True).made
            return shape[0], *made
        kept = {} if self.seen is None else self.seen.nodes
        if encode not in kept:
            kept[encode] = (record(self, True, True) if encode else self._two_frames).nodes
        return shape[0], *_native.graph_sizes(kept[encode], shape[2:])[-1]

    def _graph(self, frames: int) -> Graph:
        return graph_of(self.decode, (self.latent_channels, frames, _ROWS, _ROWS), True)

    @cached_property
    def _two_frames(self) -> Graph:
        return self._graph(2)

    @cached_property
    def facts(self) -> Facts:
        """What the layers tell. Time is not cut: later latents may change earlier frames."""
        first, two = self._graph(1).made[1], self._two_frames
        channels, frames, rows, _ = two.made
        has_global_norms = any(node.norm == GROUP for node in two.nodes)
        return Facts(
            self.is_image, channels, None, first, frames - first, rows // _ROWS, has_global_norms
        )

    def check(self) -> None:
        """StrangeModuleError or AttributeError where the decoder is not what the family takes it
        for: a part is missing, does not fit the one before, or has parameters nothing reads."""
        read = set()
        for layer in self._two_frames.layers:
            norm = getattr(layer, "norm", None)
            modules = [getattr(layer, name, None) for name in ("module", "q", "k", "v", "out")]
            for module in (*modules, None if norm is None else norm.module):
                if module is not None:
                    read |= {id(p) for p in module.parameters(recurse=False)}
        for name, parameter in self.view.decoder.named_parameters():
            if id(parameter) not in read and not any(n in name for n in self.beside_layers):
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

    # For families

    def pairs(
        self, channels: int, *, mean_of: int = 1, order: str = "channel first", squares: int = 4
    ) -> Conv:
        """Two frames of `channels` channels, 0 and 1, 2 and 3 and so on, to one (parts.paired)."""
        key = (channels, mean_of, order, squares, self.dtype, self.device)
        if key not in self._pairs:
            self._pairs[key] = parts.paired(*key)
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
            means = engine.local(x, parts.packed_in_space(side, group, order))
            x = engine.local(engine.conv(x, conv), parts.packed_in_space(side, order=order))
            return engine.add(x, means)
        squares = side * side
        outputs, inputs = (int(n) * squares for n in conv.module.weight.shape[:2])
        means = engine.local(x, with_first or parts.packed_with_first_twice(side, order))
        pairs = self.pairs(inputs, mean_of=group, order=order, squares=squares)
        means = engine.conv(means, pairs)
        # The VAE repeats the first frame before it convolves; where nothing later is read, that is
        # to repeat what becomes of it.
        if conv.after[0] == 0:
            x = engine.local(engine.conv(x, conv), parts.packed_with_first_twice(side, order))
        else:
            front, *sides = conv.before
            x = engine.conv(x, replace(conv, before=(front + 1, sides[0], sides[1])))
            x = engine.local(x, parts.packed_in_space(side, order=order))
        return engine.conv(x, self.pairs(outputs, order=order, squares=squares), add=means)


def _through(engine: Engine, layer: Local | None, x: Handle) -> Handle:
    return x if layer is None else engine.local(x, layer)


def _of_all(layer: Local | None, x: Tensor) -> Tensor:
    return x if layer is None else layer.run(x, 0)
