"""Claims about the pure-Python twin of csrc/seed, held to the published vectors."""

from __future__ import annotations

import pytest

from hy3d_rocm._fallback import seed

ALL_ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ALL_ONES,) * 4, (ALL_ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], block: tuple[int, ...]
) -> None:
    assert seed.philox4x32(counter, key) == block


@pytest.mark.parametrize(
    ("base", "index", "image"),
    [
        (42, 0, 42),
        (0, 1, 0x6369770D6AC4BD04),
        (42, 1, 0xAB5954A5A2AC5CB7),
        (2**64 - 1, 1, 0x3E6CF92663F30EE0),
        (0x0123456789ABCDEF, 2**32, 0xF1F597DDBA2EF23B),
        (1234567, 2**64 - 1, 0x7EBE23774E05F78B),
    ],
)
def test_derived_seeds_never_change(base: int, index: int, image: int) -> None:
    assert seed.seed_image(base, index) == image


def test_seeds_outside_64_bits_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="seed is -1"):
        seed.seed_image(-1, 0)
    with pytest.raises(ValueError, match="index is 18446744073709551616"):
        seed.seed_image(0, 2**64)
    with pytest.raises(ValueError, match="counter has 3 words"):
        seed.philox4x32((0, 0, 0), (0, 0))
    with pytest.raises(ValueError, match="key has the word 4294967296"):
        seed.philox4x32((0, 0, 0, 0), (0, 2**32))
