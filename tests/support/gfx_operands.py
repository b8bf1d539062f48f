"""Operands of arithmetic instructions: random ones, and those at the edges of formats."""

from __future__ import annotations

import random
import re

_EXPONENTS = {16: (10, 15), 32: (23, 127), 64: (52, 1023)}  # bits of the fraction, bias


def edges(width: int) -> list[int]:
    """Bits of floats: zeros, denormals, the ends of the normal range, infinities, quiet and
    signalling NaN, one, halves between integers, and the ends of integer and half ranges."""
    fraction, bias = _EXPONENTS[width]
    sign, one, top = 1 << (width - 1), bias << fraction, (2 * bias + 1) << fraction
    half = one - (1 << fraction)
    positive = [0, 1, (1 << fraction) - 1, 1 << fraction, (1 << fraction) + 1, top - 1, top,
                top | 1 << (fraction - 1), top | 1, one, one + 1, one - 1, half,
                one | 3 << (fraction - 2)]  # fmt: skip
    for power in (15, 16, 23, 24, 30, 31, 32, 62, 63, 64, -14, -24, -25, -126, -149):
        if 0 < power + bias < 2 * bias:
            at = (power + bias) << fraction
            positive += [at - 1, at, at + 1]
    return [*positive, *(bits | sign for bits in positive)]


def floats(source: random.Random, width: int) -> int:
    """Bits of a float: at an edge, anything, of ordinary size, a short fraction, or halfway between
    two numbers of the next narrower format."""
    fraction, bias = _EXPONENTS[width]
    kind = source.random()
    if kind < 0.25:
        return source.choice(edges(width))
    if kind < 0.45:
        return source.getrandbits(width)
    sign = source.getrandbits(1) << (width - 1)
    exponent = bias + source.randint(-12, 12)
    if kind < 0.7:
        return sign | exponent << fraction | source.getrandbits(fraction)
    if kind < 0.85 or width == 16:
        kept = source.randint(0, min(11, fraction))
        return sign | exponent << fraction | source.getrandbits(kept) << (fraction - kept)
    narrow, low, high = (10, -26, 17) if width == 32 else (23, -150, 129)
    cut = fraction - narrow - 1
    exponent = bias + source.randint(low, high)
    return sign | exponent << fraction | (source.getrandbits(fraction) >> cut | 1) << cut


def integers(source: random.Random, width: int) -> int:
    kind = source.random()
    if kind < 0.4:
        return source.getrandbits(width)
    if kind < 0.7:
        return source.randint(-40, 70) & ((1 << width) - 1)
    near = source.choice([0, 1 << 15, 1 << 16, 1 << 23, 1 << 24, 1 << 31, 1 << 32, 1 << 63])
    return (near + source.randint(-2, 2)) & ((1 << width) - 1)


def width_of(text: str, k: int) -> tuple[str, int]:
    """("f", 32): how a pseudo-code reads source k; packed pairs of binary32 are ("p", 64)."""
    if f"S{k}[63 : 32].f32" in text:
        return "p", 64
    found = re.search(rf"S{k}(?:\[\d+ : \d+\])?\.(u|i|f|b)(\d+)", text)
    return (found[1], int(found[2])) if found else ("u", 32)


def draw(source: random.Random, kind: tuple[str, int]) -> int:
    letter, width = kind
    if letter == "p":
        return floats(source, 32) | floats(source, 32) << 32
    if letter == "f" and width == 16:  # above a half a register holds anything
        return floats(source, 16) | source.getrandbits(16) << 16
    if letter == "f":
        return floats(source, width)
    return integers(source, 64 if width > 32 else 32)


def sources(source: random.Random, text: str) -> tuple[int, int, int]:
    """The three sources of a lane; some are equal, or differ by their sign."""
    kinds = [width_of(text, k) for k in range(3)]
    drawn = [draw(source, kind) for kind in kinds]
    if source.random() < 0.2 and kinds[0] == kinds[1]:
        drawn[1] = drawn[0] ^ source.getrandbits(1) << (min(64, max(32, kinds[0][1])) - 1)
    return drawn[0], drawn[1], drawn[2]
