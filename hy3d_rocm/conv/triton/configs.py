"""Tile sizes of the Triton kernel: which are offered on which architecture, and the first guess.

Pure: no torch, no triton. Offered is what compiles there without spilling registers (checked by
tests/long/check_gfx.py for AMD's targets); the guess is only where tuning starts from, and where
it stays if nobody tunes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace


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


# NVIDIA with tensor cores of Ampere and later (the stand-in). The rate: TFLOP/s of a full machine,
# rounded from first trials on an H200, where the kernel was not yet what it is; only their ratios
# matter. `bench gpu --sweep` (tools/dev) shows what a guess by them loses; `tune` needs none.
_NVIDIA_HALF = _tiles(
    """
    256x128x64w8s4@740 256x128x64w8s3@730 128x256x64w8s4@690 128x128x64w8s4@690
    256x192x64w8s3@670 128x192x64w8s3@630 128x96x64w4s4@660 128x96x32w4s4@570
    128x128x64w4s3@630 256x128x32w8s4@650 256x64x64w4s4@520 128x64x64w4s4@450 64x128x64w4s4@450
    64x64x64w4s4@400 128x128x16w4s3@400 128x64x16w4s3@300 256x16x64w8s3@170 256x16x32w4s4@150
    256x16x16w4s3@110
    """
)
_NVIDIA_FLOAT = _tiles(
    """
    128x64x32w4s3@80 128x128x32w8s3@72 64x64x32w4s3@70 128x64x16w4s3@60 128x16x32w4s3@45
    128x16x16w4s3@35
    """
)
# AMD: what compiles there without spilling in every variant (docs/triton.md has what did not).
# RDNA: waves of 32, WMMA 16x16x16, 256 VGPRs a lane. Its sums alone take 64 of them in a 128 x 128
# tile of eight waves; twice that spills on RDNA3.
_RDNA_HALF = _tiles(
    """
    128x128x32w8s2 128x96x32w8s2 128x64x32w4s2 64x64x32w4s2 64x128x32w4s2 128x16x32w4s2
    64x64x16w4s2 128x16x16w4s2
    """
)
# Plain FMA. Eight waves halve the registers of four, which came close to all 256.
_RDNA_FLOAT = _tiles("64x64x16w8s2 64x32x16w4s2 64x16x16w4s2")
# RDNA2 has no matrix units: v_dot2 for f16, plain FMA for f32, and for bf16 after widening it.
_RDNA2_HALF = _RDNA_FLOAT
# CDNA: waves of 64, MFMA.
_CDNA_HALF = _tiles(
    """
    128x128x32w8s2 128x128x64w8s2 256x128x32w8s2 128x96x32w8s2 128x64x32w4s2 64x64x32w4s2
    128x16x32w4s2 64x64x16w4s2 128x16x16w4s2
    """
)
_CDNA_FLOAT = _tiles("128x128x16w8s2 128x64x16w4s2 64x64x16w4s2 64x16x16w4s2")
_CDNA = ("gfx908", "gfx90a", "gfx942", "gfx950")
_RDNA2 = ("gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036")
# gfx1100, 1101, 1151, 1200 and 1201 were checked; the others have the same instructions.
_WMMA = (
    "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153",
    "gfx1200", "gfx1201",
)  # fmt: skip


def is_known(arch: str) -> bool:
    """Whether the kernels were checked for `arch` or for one with its instructions. Nothing is
    guessed from how a name begins: gfx1250's matrix instructions are not those of gfx1200."""
    return arch.startswith("sm_") or arch in (*_CDNA, *_RDNA2, *_WMMA)


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
    half = dtype in ("f16", "bf16")
    if not half and dtype != "f32":
        return ()
    if arch.startswith("sm_"):
        modern = int(arch[3:]) >= 80
        return (_NVIDIA_HALF if half else _NVIDIA_FLOAT) if modern else ()
    if arch in _CDNA:
        return _CDNA_HALF if half else _CDNA_FLOAT
    if arch in _WMMA:
        return _RDNA_HALF if half else _RDNA_FLOAT
    if arch in _RDNA2:
        return _RDNA2_HALF if half else _RDNA_FLOAT
    return ()


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


def guess(
    configs: tuple[Config, ...], positions: int, channels: int, length: int, units: int,
    taps: int = 1, parts: Callable[[Config, int], int] | None = None,
) -> Config:  # fmt: skip
    """The configuration with the least predicted time: the first that is ranked."""
    return ranked(configs, positions, channels, length, units, taps, parts)[0]


def ranked(
    configs: tuple[Config, ...], positions: int, channels: int, length: int, units: int,
    taps: int = 1, parts: Callable[[Config, int], int] | None = None,
) -> list[Config]:  # fmt: skip
    """Those that make sense, by predicted time: waves of tiles, times the time of one.

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
