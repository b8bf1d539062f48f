"""Tile sizes of the Triton kernel: which are offered on which architecture, and the first guess.

Pure: no torch, no triton. Offered is what compiles there without spilling registers (checked by
tests/long/check_gfx.py for AMD's targets); the guess is only where tuning starts from, and where
it stays if nobody tunes.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Config:
    """block_p positions x block_n output channels a program, block_k elements of the sum a step:
    powers of two, and of channels also 96 and 192, which VAEs have.

    group: how many blocks of positions run next to each other before the channels change.
    """

    block_p: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    group: int = 8
    rate: float = field(default=0.0, compare=False)

    @property
    def is_in_two(self) -> bool:
        """Whether its channels are made by two products, since a product's are a power of two."""
        return self.block_n % 3 == 0

    def __str__(self) -> str:
        return (
            f"{self.block_p}x{self.block_n}x{self.block_k}"
            f"w{self.num_warps}s{self.num_stages}g{self.group}"
        )

    @classmethod
    def parse(cls, text: str) -> Config:
        """The inverse of str(). ValueError, in a sentence, for anything else."""
        try:
            blocks, rest = text.split("w")
            warps, rest = rest.split("s")
            stages, group = rest.split("g")
            p, n, k = blocks.split("x")
            return cls(int(p), int(n), int(k), int(warps), int(stages), int(group))
        except ValueError:
            raise ValueError(f"{text!r} is no tile such as 128x128x64w4s3g8") from None


def _tiles(text: str) -> tuple[Config, ...]:
    """Those that `text` has, each as 128x128x64w4s3 for groups of 8, some with @ and a rate."""
    found = [word.partition("@") for word in text.split()]
    return tuple(
        replace(Config.parse(f"{tile}g8"), rate=float(rate or 0)) for tile, _, rate in found
    )


# Of products: dtype, outputs, elements of a tap, taps.
Kind = tuple[str, int, int, int]


@dataclass(frozen=True, eq=False)
class Measured:
    """Tiles with the rates that they were measured to have on this GPU, by what was computed. Two
    are equal if they are one object."""

    tiles: Mapping[Kind, tuple[Config, ...]]


_KINDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_KIND_OF = {card: kind for kind, row in _KINDS.items() for card in row["cards"]}


def is_known(arch: str) -> bool:
    """Whether the kernels were checked for `arch` or for one with its instructions. Nothing is
    guessed from how a name begins: gfx1250's matrix instructions are not those of gfx1200."""
    return arch.startswith("sm_") or arch in _KIND_OF


def wave_size(arch: str) -> int:
    """32 on RDNA (gfx10 to gfx12), 64 on CDNA (gfx9); ValueError for anything else."""
    if arch.startswith(("gfx10", "gfx11", "gfx12")):
        return 32
    if arch.startswith("gfx9"):
        return 64
    raise ValueError(f"{arch!r} is no AMD architecture known here: gfx9.., gfx10.. to gfx12..")


@functools.cache
def offered(arch: str, dtype: str) -> tuple[Config, ...]:
    """Every configuration that may be chosen on `arch` ("gfx1100", "sm_90") for f16, bf16 or f32.

    Empty where there is none: the tier then says that it can't.
    """
    column = {"f16": "half", "bf16": "half", "f32": "float"}.get(dtype)
    return () if column is None else _tiles(_row(arch).get(column, ""))


@functools.cache
def attention(arch: str, dtype: str) -> Config | None:
    """Queries (block_p), keys (block_n) and elements of a head (block_k) of the kernel for large
    heads, None where it was not checked."""
    if dtype not in ("f16", "bf16"):
        return None
    tiles: Mapping[str, str] = _row(arch).get("attention", {})
    return next((_tiles(tile)[0] for name, tile in tiles.items() if arch.startswith(name)), None)


def _row(arch: str) -> Mapping[str, Any]:
    """Of the table; empty for what is not in it."""
    is_nvidia = arch.startswith("sm_") and int(arch[3:]) >= 80
    found: Mapping[str, Any] = _KINDS.get("nvidia" if is_nvidia else _KIND_OF.get(arch, ""), {})
    return found


def precision(arch: str, dtype: str, tf32_allowed: bool) -> str:
    """How products of f32 are made: exactly ("ieee"), or on NVIDIA's matrix units in one TF32
    product where the user allows that, else in three that together keep f32's accuracy."""
    if dtype != "f32" or not arch.startswith("sm_"):
        return "ieee"
    return "tf32" if tf32_allowed else "tf32x3"


def fitting(configs: tuple[Config, ...], channels: int, length: int) -> tuple[Config, ...]:
    """Those that make sense for `channels` outputs and taps of `length` elements.

    block_n not beyond twice what is needed, block_k a divisor of the length where one is offered.
    """
    narrow = [c for c in configs if c.block_n < 2 * max(channels, 16)]
    if not narrow:
        smallest = min(c.block_n for c in configs)
        narrow = [c for c in configs if c.block_n == smallest]
    even = [c for c in narrow if length % c.block_k == 0]
    return tuple(even or narrow)


def ranked(
    configs: tuple[Config, ...], positions: int, channels: int, length: int, units: int,
    taps: int = 1, parts: Callable[[Config, int], int] | None = None,
) -> list[Config]:  # fmt: skip
    """Those that make sense, by predicted time, the guess first: waves of tiles, times the time
    of one.

    length: elements of a tap; units: compute units (or multiprocessors); parts(config, tiles): in
    how many parts the sum would be cut.
    """

    def cost(config: Config) -> float:
        tiles = -(-positions // config.block_p) * -(-channels // config.block_n)
        cut = 1 if parts is None else parts(config, tiles)
        # Tiles that share a unit share its rate, so a last one alone takes as long as a wave.
        waves = -(-tiles * cut // units)
        operations = 2 * taps * length / cut + (_PART_OPERATIONS if cut > 1 else 0)
        area = config.block_p * config.block_n
        return waves * area * operations / (config.rate or _unmeasured_rate(config))

    return sorted(fitting(configs, channels, length), key=cost)


# What it costs to write and read an element of a float32 partial sum: 8 bytes, in operations that
# a card does meanwhile (some 200 a byte; it only weighs splitting against not splitting).
_PART_OPERATIONS = 8 * 200


def ranked_points(configs: tuple[Config, ...], channels: int, length: int) -> list[Config]:
    """The same for 1x1x1: memory sets the pace, so many small tiles hide its latency best. Its
    kernel makes a block of channels as one."""
    every = fitting(tuple(c for c in configs if not c.is_in_two), channels, length)
    return sorted(every, key=lambda c: (c.block_p > 64, -min(c.block_n, channels)))


def _unmeasured_rate(config: Config) -> float:
    """What a tile loads for each product sets its rate where nobody measured it."""
    area = config.block_p * config.block_n
    traffic = config.block_p + config.block_n
    return 1.0 / (1.0 + 48.0 * traffic / area + 8.0 / config.block_k)
