"""A VAE of no known kind: only its own decode() is known, so that is what runs, whole or in tiles.

What a plan needs (how many frames, rows and channels a latent makes, whether time may be cut) is
asked of the VAE itself with latents of a few positions. Nothing is read off its layers.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.conv.errors import described, is_out_of_memory
from hy3d_rocm.conv.protection import aside
from hy3d_rocm.decoding.copies import copied_family
from hy3d_rocm.decoding.families import proof
from hy3d_rocm.decoding.families.base import UNCUT, Facts, Family, WarmUp
from hy3d_rocm.decoding.families.proof import CALL_ERRORS
from hy3d_rocm.decoding.memory.dry_run import apart
from hy3d_rocm.decoding.precision import computed_in, only_stores
from hy3d_rocm.device import resolve_device

logger = logging.getLogger("hy3d_rocm")

_SIDES = (2, 4, 8, 16)  # latent rows, the first that decodes; twice as many columns
# Latents before a chunk that may be enough for its frames, and the video they are looked for in.
_WARM_UPS = (1, 2, 4, 8)
_VIDEO = 10
_NOT_ENOUGH = 4  # warm-up where none of them was


class UnknownFamily(Family):
    """vae: anything with decode(latents), or for an encode with encode(pixels); its result is a
    tensor, a tuple that begins with one, or an object that has it as `.sample`. source: the latents
    or pixels that are asked for, (B, C, T, H, W) or of an image (B, C, H, W).
    """

    has_global_norms = False
    pixel_steps = (1, 1)

    def __init__(self, vae: Any, source: Any, why: str, encode: bool = False) -> None:
        self.vae = vae
        self.name = type(vae).__name__
        self.why = why
        self.encoding = encode
        self._verb, self._read = (
            ("encode", proof.moments_of) if encode else ("decode", proof.frames_of)
        )
        self._source = source
        self._shapes: dict[tuple[int, ...], tuple[int, ...]] = {}

    @cached_property
    def decoder(self) -> torch.nn.Module:
        """What has the parameters; predictions belong to it."""
        if isinstance(self.vae, torch.nn.Module):
            return self.vae
        held = getattr(self.vae, "__dict__", {}).values()
        return torch.nn.ModuleList([m for m in held if isinstance(m, torch.nn.Module)])

    @property
    def device(self) -> torch.device:
        """Where it computes; that of the latents where it has no parameters, the CPU where these
        are a shape alone."""
        here = getattr(self._source, "device", torch.device("cpu"))
        here = torch.device("cpu") if here.type == "meta" else here
        parameter = next(self.decoder.parameters(), None)
        if parameter is not None and parameter.is_meta:
            return parameter.device
        return resolve_device(self.vae, default=here).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of its parameters, of float8 ones the type that they are computed in; that of the
        latents where it has none."""
        for parameter in self.decoder.parameters():
            if parameter.is_floating_point():
                return computed_in(self.vae, parameter.dtype)
        found: torch.dtype = self._source.dtype
        return found

    @property
    def latent_channels(self) -> int:
        """Of the latents that were given: only a decode can tell whether they fit."""
        return int(self._source.shape[1])

    @property
    def is_image(self) -> bool:
        return self.facts.planar

    @cached_property
    def facts(self) -> Facts:
        """What small latents tell."""
        image = self._source.ndim == 4
        if self._verb == "encode":
            # Nothing but the number of axes has to be known: an encode has no tiles.
            kernels = [p.ndim for p in self.decoder.parameters() if p.ndim >= 4]
            return Facts(image or (bool(kernels) and 5 not in kernels))

        run = partial(proof.as_video, proof.unsplit(self.vae).decode, proof.frames_of)
        message = ""
        with _unnoticed(self.device):
            for planar, side in product((image, not image), _SIDES):
                z = proof.random((1, self.latent_channels, 3, side, 2 * side))
                z = z.to(self.device, self.dtype)
                try:
                    return _facts(run, z, planar)
                except CALL_ERRORS as error:
                    logger.debug("A latent of %s: %s", tuple(z.shape), described(error, 500))
                    message = message or described(error, 500)
        return Facts(image, note=f"its decode() fails for small latents ({message})")

    def whole(self, x: Tensor, encode: bool = False) -> Tensor:
        """Frames (1, C, T, H, W) by its own decode() of latents, or mean and log variance by its
        own encode() of pixels (encode: as it was made for); of an encoder that gives no variance
        the log variance is -30, the least that diffusers has."""
        with proof.on_shapes(x):
            call = getattr(proof.unsplit(self.vae), self._verb)
            return proof.as_video(call, self._read, x, self.facts.planar)

    def out_shape(self, shape: tuple[int, ...], encode: bool = False) -> tuple[int, ...]:
        """(B, C, T, H, W) of what it makes of (B, C, T, H, W)."""
        batch, _, frames, height, width = shape
        facts = self.facts
        if facts.is_regular:
            _, space = self.factor
            return batch, facts.channels, facts.frames(frames), height * space, width * space
        return batch, *self._made_of((1, *shape[1:]))[1:]

    def _made_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a result: of a run on shapes, else of one on zeros. TypeError (a sentence) where
        its own code fails."""
        if shape not in self._shapes:
            try:
                shadow = copied_family(self, lambda t: torch.empty_like(t, device="meta"))
                x = torch.empty(shape, dtype=self.dtype, device="meta")
                self._shapes[shape] = tuple(apart(lambda: shadow.whole(x)).shape)
            except ValueError as error:
                logger.info("[VAE Decode] %s runs once to learn the size of what it makes: %s",
                            self.name, error)  # fmt: skip
                self._shapes[shape] = self._on_zeros(shape)
        return self._shapes[shape]

    def _on_zeros(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        x = torch.zeros(shape, dtype=self.dtype, device=self.device)
        try:
            with aside():
                return tuple(self.whole(x).shape)
        except CALL_ERRORS as error:
            if is_out_of_memory(error):
                raise
            error_text = described(error, 500)
            message = f"{self.why}. Its own {self._verb}() fails for {shape}, too: {error_text}"
            stored = next(self.decoder.parameters(), x).dtype
            if only_stores(stored):
                message = (
                    f"{self.why}, and its own {self._verb}() does not compute with its weights, "
                    f"which are {stored} ({error_text}): decode with vae.to(torch.bfloat16)"
                )
            raise TypeError(message) from error

    def over(self, vae: Any) -> UnknownFamily:
        """This family over a copy of its VAE, which need not be asked again."""
        _ = self.facts  # which is copied, then
        made = copy.copy(self)
        made.__dict__.pop("decoder", None)
        made.vae = vae
        return made


# What a VAE's own decode() tells of itself

_Run = Callable[["Tensor", bool], "Tensor"]  # (latents (1, C, T, H, W), planar) -> frames


@contextmanager
def _unnoticed(device: torch.device) -> Iterator[None]:
    """The VAE runs, and nobody misses the random numbers that it draws."""
    indices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with aside(), torch.no_grad(), torch.random.fork_rng(devices=indices):
        yield


def _facts(run: _Run, z: Tensor, planar: bool) -> Facts:
    """Of decodes of the first one, two and three latents of z."""
    one = run(z[:, :, :1], planar)
    side = z.shape[3]
    if one.ndim != 5 or one.shape[0] != 1:
        raise TypeError(f"it gives frames of shape {tuple(one.shape)}")
    _, channels, first, height, width = one.shape
    facts = partial(Facts, planar, channels, one.dtype)
    space = height // side
    if space < 1 or (height, width) != (side * space, 2 * side * space):
        return facts(note=f"it makes {width}x{height} pixels of {2 * side}x{side} latents")
    if planar:
        return facts(1, 1, space)
    try:
        made = [one, *(run(z[:, :, :n], False) for n in (2, 3))]
    except CALL_ERRORS as error:
        return facts(note=f"two latents fail ({described(error, 500)})")
    counts = [m.shape[2] for m in made]
    time = counts[1] - counts[0]
    if time < 1 or counts[2] - counts[1] != time or first not in (1, time):
        note = f"it makes {counts[0]}, {counts[1]} and {counts[2]} frames of 1, 2 and 3 latents"
        return facts(note=note)
    ask = partial(_warm_up, run, z, [m.cpu() for m in made])
    return facts(first, time, space, warm_up=cache(ask))


def _warm_up(run: _Run, z: Tensor, made: list[Tensor]) -> WarmUp:
    """made: of the first one, two and three latents of z, on the CPU. Up to six further decodes,
    and on an AMD GPU MIOpen looks for kernels for each of their sizes."""
    one, two, three = made
    time = two.shape[2] - one.shape[2]

    def same(got: Tensor, want: Tensor) -> bool:
        return proof.is_same(got.cpu(), want.cpu(), want.dtype, z.device.type)

    if not all(same(long[:, :, : m.shape[2]], m) for long, m in ((two, one), (three, two))):
        return UNCUT  # later latents change earlier frames, or each decode is new
    with _unnoticed(z.device):
        if one.shape[2] == time and same(three[:, :, time : 2 * time], run(z[:, :, 1:2], False)):
            return WarmUp(0, True)
        video = proof.random((*z.shape[:2], _VIDEO, *z.shape[3:])).to(z)
        try:
            last = run(video, False)[:, :, -time:]
            for count in _WARM_UPS:
                part = run(video[:, :, _VIDEO - 1 - count :], False)
                if same(part[:, :, -time:], last):
                    return WarmUp(count, True)
        except CALL_ERRORS as error:
            logger.debug("%d latents: %s", _VIDEO, described(error, 500))
            return UNCUT
    return WarmUp(_NOT_ENOUGH, False)
