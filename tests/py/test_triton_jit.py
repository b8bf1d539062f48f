"""What a compiled kernel is kept under: nothing that it was compiled for may be missing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from hy3d_rocm.conv.triton import jit

ITEM = jit.Launch("conv_rows", (1, 1, 1), (("x", 0), ("weight", 0), ("out", 0)), (), (), 4, 2)


@pytest.fixture
def key_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    found: list[tuple[int, int | None]] = []
    monkeypatch.setattr(jit, "_first", lambda item, tensors, *key: found.append(key))

    def key(**tensors: torch.Tensor) -> tuple[int, int | None]:
        half = torch.zeros(64, dtype=torch.float16)
        jit.launch(ITEM, {"x": half, "weight": half, "out": half} | tensors)
        return found[-1]

    return key


def test_the_same_call_has_the_same_key(key_of: Any) -> None:
    assert key_of() == key_of()


def test_equal_launches_do_not_share_kernels() -> None:
    # Their operands may be of other types: a narrow convolution stores float32 sums.
    other = dataclasses.replace(ITEM, operands=(*ITEM.operands[:2], ("sums", 0)), compiled={})
    ITEM.compiled[0, None] = object()
    assert not other.compiled
    assert not jit.Launch("conv_rows", (1, 1, 1), ITEM.operands, (), (), 4, 2).compiled
    ITEM.compiled.clear()


def test_the_alignment_of_every_pointer_is_part_of_the_key(key_of: Any) -> None:
    half = torch.zeros(65, dtype=torch.float16)
    keys = {key_of(**{name: half[1:]}) for name in ("x", "weight", "out")}
    assert len(keys | {key_of()}) == 4


def test_tensors_that_need_64_bit_offsets_have_keys_of_their_own(key_of: Any) -> None:
    # Triton's AMD backend addresses tensors below 2 GiB with 32-bit offsets.
    large = torch.empty(2**31, dtype=torch.int8).view(torch.float16)  # never touched
    small = torch.empty(2**31 - 2, dtype=torch.int8).view(torch.float16)
    assert key_of(x=large) != key_of(x=small) == key_of()
    assert key_of(out=large) != key_of(x=large)
