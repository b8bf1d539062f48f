"""What a VAE's own decode() tells about itself when it is asked for latents of a few positions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hy3d_rocm.decode.families.calls import CALL_ERRORS, one_line
from hy3d_rocm.decode.families.proof import rounding_bound

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("hy3d_rocm")

Frames = Callable[["Tensor", bool], "Tensor"]  # (latents (1, C, T, H, W), planar) -> frames

_SIDES = (2, 4, 8, 16)  # latent rows, the first that decodes; twice as many columns
# Latents before a chunk that may be enough for its frames, and the video they are looked for in.
_WARM_UPS = (1, 2, 4, 8)
_VIDEO = 10
_NOT_ENOUGH = 4  # warm-up where none of them was


@dataclass(frozen=True)
class Facts:
    """planar: it takes (B, C, H, W). channels: of the frames. dtype: of the frames, None: not
    known. first: frames of the first latent; time: of each later one; space: rows of a latent's
    row; None where not known. warm_up: latents that have to be decoded before a chunk of the video,
    None where time can't be cut; exact: whether they are enough. note: why there are no tiles.
    """

    planar: bool
    channels: int = 0
    dtype: torch.dtype | None = None
    first: int | None = None
    time: int | None = None
    space: int | None = None
    warm_up: int | None = None
    exact: bool = False
    note: str = ""

    @property
    def is_regular(self) -> bool:
        """Whether the size of the frames follows from that of the latents."""
        return None not in (self.first, self.time, self.space)

    def frames(self, latents: int) -> int:
        """Of so many latents."""
        assert self.first is not None
        assert self.time is not None
        return self.first + (latents - 1) * self.time


def asked(run: Frames, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Facts:
    """Facts of the VAE that `run` decodes with. shape: of the latents that are to be decoded, (B,
    C, T, H, W) or (B, C, H, W). Random numbers drawn meanwhile are not missed by anybody."""
    image = len(shape) == 4
    said = ""
    indices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=indices):
        for planar in (image, not image):
            for side in _SIDES:
                z = _latents(shape[1], 3, side).to(device, dtype)
                try:
                    return _facts(run, z, planar)
                except CALL_ERRORS as error:
                    logger.debug("A latent of %s: %s", tuple(z.shape), one_line(error))
                    said = said or one_line(error)
    return Facts(image, note=f"its decode() fails for small latents ({said})")


def _latents(channels: int, frames: int, side: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (1, channels, frames, side, 2 * side)
    return torch.randn(shape, generator=generator, device="cpu")


def _facts(run: Frames, z: Tensor, planar: bool) -> Facts:
    one = run(z[:, :, :1], planar)
    side = z.shape[3]
    if one.ndim != 5 or one.shape[0] != 1:
        raise TypeError(f"it gives frames of shape {tuple(one.shape)}")
    _, channels, first, height, width = one.shape
    space = height // side
    if space < 1 or (height, width) != (side * space, 2 * side * space):
        return Facts(
            planar, channels, one.dtype,
            note=f"it makes {width}x{height} pixels of {2 * side}x{side} latents",
        )  # fmt: skip
    if planar:
        return Facts(True, channels, one.dtype, 1, 1, space, 0, True)
    try:
        made = [one, *(run(z[:, :, :n], False) for n in (2, 3))]
    except CALL_ERRORS as error:
        return Facts(False, channels, one.dtype, note=f"two latents fail ({one_line(error)})")
    counts = [m.shape[2] for m in made]
    time = counts[1] - counts[0]
    if time < 1 or counts[2] - counts[1] != time or first not in (1, time):
        return Facts(
            False, channels, one.dtype,
            note=f"it makes {counts[0]}, {counts[1]} and {counts[2]} frames of 1, 2 and 3 latents",
        )  # fmt: skip
    warm_up, exact = _warm_up(run, z, made, time)
    return Facts(False, channels, one.dtype, first, time, space, warm_up, exact)


def _warm_up(run: Frames, z: Tensor, made: list[Tensor], time: int) -> tuple[int | None, bool]:
    """Latents to decode before a chunk, and whether they are enough; None: later latents change
    earlier frames, or every decode is another."""
    one, two, three = made
    prefixes = ((two, one), (three, two))
    if not all(_same(long[:, :, : short.shape[2]], short) for long, short in prefixes):
        return None, False
    if one.shape[2] == time and _same(three[:, :, time : 2 * time], run(z[:, :, 1:2], False)):
        return 0, True
    video = _latents(z.shape[1], _VIDEO, z.shape[3]).to(z)
    try:
        last = run(video, False)[:, :, -time:]
        for count in _WARM_UPS:
            part = run(video[:, :, _VIDEO - 1 - count :], False)
            if _same(part[:, :, -time:], last):
                return count, True
    except CALL_ERRORS as error:
        logger.debug("%d latents: %s", _VIDEO, one_line(error))
        return None, False
    return _NOT_ENOUGH, False


def _same(got: Tensor, want: Tensor) -> bool:
    if got.shape != want.shape:
        return False
    bound = rounding_bound(want.dtype, float(want.abs().max()), want.device.type)
    return float((got.double() - want.double()).abs().max()) <= bound
