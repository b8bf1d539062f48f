"""_core.fingerprint: all bytes count, and so do their type, sizes and order."""

from __future__ import annotations

import gc
import random
import struct
from typing import Any

import numpy as np
import pytest
import torch
from core_memory import memory

from hy3d_rocm import _core
from hy3d_rocm._fallback.seed import philox4x32

PRIME = 2**61 - 1
BLOCK_WORDS, CHUNK_BLOCKS = 256, 128
RNG = np.random.default_rng(20261122)


def keys() -> list[int]:
    """The keys as csrc/fingerprint/fingerprint.c makes them."""
    made = []
    for i in range((BLOCK_WORDS + 4) // 2):
        a, b, c, d = philox4x32((i, 0, 0, 0), (0x68793364, 0x66707274))
        made += [a | b << 32, c | d << 32]
    return made


KEYS = keys()


def block_sum(words: list[int]) -> int:
    total = 0
    for i in range(0, BLOCK_WORDS, 2):
        left, right = (words[i] + KEYS[i]) % 2**64, (words[i + 1] + KEYS[i + 1]) % 2**64
        total += left * right
    return total % 2**128


def twin(array: Any, code: int) -> tuple[int, int]:
    """The same in plain Python; array is contiguous, code the number of its type."""
    data = array.tobytes()
    chunk_bytes = BLOCK_WORDS * 8 * CHUNK_BLOCKS
    strides = [s // array.itemsize for s in array.strides]
    words = [code, array.ndim]
    for i in range(5):
        size = array.shape[i] if i < array.ndim else 1
        words += [size, strides[i] if size > 1 else 0]
    values = []
    for which in range(2):
        inner, outer = (KEYS[BLOCK_WORDS + 2 * layer + which] % PRIME for layer in range(2))
        digits = [len(data) % 2**32, len(data) >> 32]
        for start in range(0, len(data), chunk_bytes):
            value = 0
            chunk = data[start : start + chunk_bytes]
            for at in range(0, len(chunk), BLOCK_WORDS * 8):
                block = chunk[at : at + BLOCK_WORDS * 8].ljust(BLOCK_WORDS * 8, b"\0")
                total = block_sum(list(struct.unpack(f"<{BLOCK_WORDS}Q", block)))
                for digit in (total % 2**43, (total >> 43) % 2**43, total >> 86):
                    value = (value * inner + digit) % PRIME
            digits.append(value)
        for word in words:
            digits += [word % 2**32, (word % 2**64) >> 32]
        value = 1
        for digit in digits:
            value = (value * outer + digit) % PRIME
        values.append(value)
    return values[0], values[1]


@pytest.mark.parametrize("size", [1, 7, 511, 512, 513, 65536, 65537, 150_001])
def test_it_is_what_its_definition_says(size: int) -> None:
    array = RNG.standard_normal(size).astype(np.float32)
    for threads in (0, 1, 2, 5):
        assert _core.fingerprint(array, threads) == twin(array, 0)
    half = array.astype(np.float16)
    assert _core.fingerprint(half) == twin(half, 2)


def test_every_single_bit_counts() -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    array = RNG.standard_normal(70_003).astype(np.float32)
    bits = array.view(np.uint32)
    before = _core.fingerprint(array)
    for place in [0, 1, 511, 512, 65535, 65536, 70_002] + [
        rng.randrange(70_003) for _ in range(200)
    ]:
        bit = np.uint32(1 << rng.randrange(32))
        bits[place] ^= bit
        assert _core.fingerprint(array) != before, f"seed {seed}: element {place}, bit {bit}"
        bits[place] ^= bit
    assert _core.fingerprint(array) == before


def test_what_a_sum_would_miss_is_seen() -> None:
    array = RNG.standard_normal(200_000).astype(np.float32)
    before = _core.fingerprint(array)
    for a, b in ((0, 1), (0, 2), (3, 600), (5, 70_000), (199_998, 199_999)):
        array[[a, b]] = array[[b, a]]
        assert _core.fingerprint(array) != before, f"{a} and {b} changed places"
        array[[a, b]] = array[[b, a]]
    rolled = np.roll(array, 512)
    assert _core.fingerprint(rolled) != before, "blocks changed places"
    rolled = np.roll(array, 65536)
    assert _core.fingerprint(rolled) != before, "chunks changed places"


def test_zeros_of_different_lengths_types_and_sizes_differ() -> None:
    arrays = [np.zeros(n, np.float32) for n in (0, 1, 2, 511, 512, 65536, 65537)]
    arrays += [np.zeros(n, np.float16) for n in (2, 4)]
    arrays += [np.zeros(s, np.float32) for s in ((1, 2), (2, 1), (2, 1, 1))]
    values = [_core.fingerprint(a) for a in arrays]
    assert len(set(values)) == len(values)


def test_the_same_bytes_in_another_order_of_dimensions_differ() -> None:
    weight = torch.randn(4, 4, 3, 3, 3)
    last = weight.to(memory_format=torch.channels_last_3d)
    plain, swapped = _core.fingerprint(last), _core.fingerprint(last.transpose(0, 1))
    assert plain is not None
    assert swapped is not None
    assert len({plain, swapped, _core.fingerprint(weight)}) == 3
    assert _core.fingerprint(weight.clone()) == _core.fingerprint(weight)
    assert _core.fingerprint(weight.clone().flatten()[1:]) != _core.fingerprint(
        weight.flatten()[1:-1]
    )


def test_gaps_and_shared_elements_have_none() -> None:
    array = np.zeros((4, 6), np.float32)
    assert _core.fingerprint(array[:, ::2]) is None
    assert _core.fingerprint(array[:, :5]) is None
    assert _core.fingerprint(np.broadcast_to(array[:1], (4, 6))) is None
    assert _core.fingerprint(array[::-1]) is not None
    assert _core.fingerprint(array[::-1]) != _core.fingerprint(array)


def test_a_failed_allocation_is_a_memory_error_and_leaks_nothing() -> None:
    array = np.zeros(200_000, np.float32)
    _core.fingerprint(array)
    gc.collect()
    live = memory.live()
    memory.fail(1)
    with pytest.raises(MemoryError, match="fingerprint of 800000 bytes"):
        _core.fingerprint(array)
    assert memory.live() == live
