"""Pure-Python twin of csrc/seed: seeds of images by Philox 4x32-10 (Salmon et al., SC 2011).

Serves where the compiled core cannot be imported, and is the oracle of its tests.
"""

from __future__ import annotations

from collections.abc import Sequence

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_ROUNDS = 10
_M0, _M1 = 0xD2511F53, 0xCD9E8D57  # multipliers, table 2 of the paper
_W0, _W1 = 0x9E3779B9, 0xBB67AE85  # key increments: golden ratio, square root of 3


def philox4x32(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """Ten rounds of Philox 4x32: four 32-bit words from a counter of four and a key of two.

    Raises ValueError for a wrong number of words and for words outside 0 .. 2**32 - 1.
    """
    c0, c1, c2, c3 = _words("counter", counter, 4)
    k0, k1 = _words("key", key, 2)
    for _ in range(_ROUNDS):
        product0, product1 = _M0 * c0, _M1 * c2
        c0, c1 = (product1 >> 32) ^ c1 ^ k0, product1 & _MASK32
        c2, c3 = (product0 >> 32) ^ c3 ^ k1, product0 & _MASK32
        k0, k1 = (k0 + _W0) & _MASK32, (k1 + _W1) & _MASK32
    return c0, c1, c2, c3


def seed_image(seed: int, index: int) -> int:
    """Seed of image `index` of a batch; index 0 is `seed` itself. Both are 64-bit unsigned."""
    for name, value in (("seed", seed), ("index", index)):
        if not 0 <= value <= _MASK64:
            raise ValueError(f"{name} is {value}; give a number from 0 to 2**64 - 1")
    if index == 0:
        return seed
    counter = (index & _MASK32, index >> 32, ord("I"), 0)
    word0, word1, _, _ = philox4x32(counter, (seed & _MASK32, seed >> 32))
    return word0 | word1 << 32


def _words(name: str, words: Sequence[int], count: int) -> tuple[int, ...]:
    if len(words) != count:
        raise ValueError(f"{name} has {len(words)} words; Philox 4x32 takes {count}")
    for word in words:
        if not 0 <= word <= _MASK32:
            raise ValueError(f"{name} has the word {word}; give numbers from 0 to 2**32 - 1")
    return tuple(words)
