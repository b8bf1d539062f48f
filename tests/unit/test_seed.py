"""make_generator: the three modes, bit for bit, and the global random states."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from hy3d_rocm import _rng
from hy3d_rocm._fallback.seed import seed_image
from hy3d_rocm.seed import make_generator

TOP = 2**64 - 1


def draw(generator: Any, count: int = 33) -> torch.Tensor:
    return torch.randn(count, generator=generator)


def upstream(seed: int, count: int = 33) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        return draw(torch.manual_seed(seed), count)


@pytest.mark.parametrize("seed", [0, 1, 42, 2**32, 2**63, TOP])
@pytest.mark.parametrize("mode", ["stream", "per_image", "legacy"])
def test_first_image_equals_upstream_bit_for_bit(seed: int, mode: Any) -> None:
    made = make_generator(seed, mode=mode)
    assert torch.equal(draw(made[0] if isinstance(made, list) else made), upstream(seed))


def test_stream_is_one_generator_for_the_whole_batch() -> None:
    made = make_generator(7, count=3)
    assert isinstance(made, torch.Generator)
    assert torch.equal(torch.cat([draw(made, 32), draw(made, 32)]), upstream(7, 64))


def test_per_image_does_not_depend_on_how_a_batch_is_split() -> None:
    whole = make_generator(9, mode="per_image", count=5)
    parts = [
        *make_generator(9, mode="per_image", count=2),  # type: ignore[misc]
        *make_generator(9, mode="per_image", count=3, first_index=2),  # type: ignore[misc]
    ]
    for index, (one, other) in enumerate(zip(whole, parts, strict=True)):  # type: ignore[arg-type]
        assert one.initial_seed() == other.initial_seed() == seed_image(9, index)
        assert torch.equal(draw(one), draw(other))


def test_legacy_gives_every_image_the_same_noise() -> None:
    made = make_generator(11, mode="legacy", count=3)
    assert isinstance(made, list)
    assert all(torch.equal(draw(generator), upstream(11)) for generator in made)


@pytest.mark.parametrize("mode", ["stream", "per_image", "legacy"])
def test_global_random_states_are_untouched(mode: Any) -> None:
    random.seed(1)
    np.random.seed(1)
    before = _rng.capture()
    made = make_generator(3, mode=mode, count=4)
    draw(made[0] if isinstance(made, list) else made)
    assert _rng.same(before, _rng.capture())


def test_numpy_integers_are_seeds() -> None:
    assert make_generator(np.uint64(TOP)).initial_seed() == TOP  # type: ignore[arg-type,union-attr]


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"seed": -1}, ValueError, r"seed is -1; give a whole number"),
        ({"seed": TOP + 1}, ValueError, r"seed is 18446744073709551616; give"),
        ({"seed": 1.5}, TypeError, r"seed is 1.5 of type float; give"),
        ({"seed": "7"}, TypeError, r"seed is '7' of type str; give"),
        ({"seed": True}, TypeError, r"seed is True; give"),
        ({"seed": None}, TypeError, r"seed is None of type NoneType"),
        ({"seed": 1, "device": "meta"}, ValueError, r"device is 'meta', where torch has no gen"),
        ({"seed": 1, "device": "nowhere"}, ValueError, r"device is 'nowhere', where torch"),
        ({"seed": 1, "device": None}, ValueError, r"device is None, where torch"),
        ({"seed": 1, "device": "execution"}, ValueError, r"needs the pipeline"),
        ({"seed": 1, "mode": "old"}, ValueError, r"mode is 'old'; give one of stream"),
        ({"seed": 1, "count": -2}, ValueError, r"count is -2; give 0"),
        ({"seed": 1, "count": 1.0}, TypeError, r"count is 1.0; give a whole number"),
        ({"seed": 1, "first_index": 2}, ValueError, r"first_index is 2 with mode 'stream'"),
        (
            {"seed": 1, "mode": "per_image", "first_index": TOP, "count": 2},
            ValueError,
            r"beyond number",
        ),
    ],
)
def test_bad_input_is_a_sentence(arguments: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        make_generator(**arguments)


def test_execution_is_where_the_pipeline_computes() -> None:
    made = make_generator(5, device="execution", pipeline=torch.nn.Linear(1, 1))
    assert isinstance(made, torch.Generator)
    assert made.device == torch.device("cpu")
