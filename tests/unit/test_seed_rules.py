"""make_generator, rule by rule: what is asked for, where it lives, and what is refused how."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hy3d_rocm import seed as seeds
from hy3d_rocm._fallback import seed as twin
from hy3d_rocm.device import ResolvedDevice
from hy3d_rocm.seed import check_first_index, check_mode, check_seed, make_generator, seeded

TOP = 2**64 - 1
CPU = torch.device("cpu")
CUDA1 = torch.device("cuda:1")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator is (seed, device), on devices that this machine need not have."""
    monkeypatch.setattr(seeds, "seeded", lambda seed, device="no device": (seed, device))
    monkeypatch.setattr(torch, "Generator", lambda device: device)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_every_mode_seeds_on_the_device_that_was_asked_for(device: str) -> None:
    where = torch.device(device)
    assert make_generator(7, device) == (7, where)
    assert make_generator(7, device, "stream", 5) == (7, where)
    assert make_generator(7, device, "legacy", 3) == [(7, where)] * 3
    made = make_generator(7, device, "per_image", 2, 4)
    assert made == [(twin.seed_image(7, index), where) for index in (4, 5)]


@pytest.mark.usefixtures("asked")
def test_what_is_not_given_is_one_picture_of_a_stream_on_the_cpu() -> None:
    assert make_generator(7) == (7, CPU)
    assert make_generator(7, mode="legacy") == [(7, CPU)]
    assert make_generator(7, mode="per_image") == [(7, CPU)]
    assert make_generator(7, mode="legacy", count=0) == []


@pytest.mark.usefixtures("asked")
def test_execution_is_the_device_that_the_pipeline_is_resolved_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = object()
    resolved: list[object] = []

    def resolve(one: object) -> ResolvedDevice:
        resolved.append(one)
        return ResolvedDevice(CUDA1, "device")

    monkeypatch.setattr(seeds, "resolve_device", resolve)
    assert make_generator(7, "execution", pipeline=pipeline) == (7, CUDA1)
    assert resolved == [pipeline]
    with pytest.raises(
        ValueError, match=r'^device="execution" needs the pipeline; give pipeline=\.\.\.$'
    ):
        make_generator(7, "execution")
    assert make_generator(7, "cuda:1", pipeline=pipeline) == (7, CUDA1)
    assert resolved == [pipeline]


def test_the_last_picture_is_number_2_to_the_64_less_1() -> None:
    made = make_generator(7, mode="per_image", first_index=TOP)
    assert isinstance(made, list)
    assert [generator.initial_seed() for generator in made] == [twin.seed_image(7, TOP)]
    with pytest.raises(ValueError, match=r"^image 18446744073709551616 is beyond number 2\*\*64"):
        make_generator(7, mode="per_image", first_index=TOP, count=2)
    made = make_generator(7, mode="per_image", first_index=TOP + 1, count=0)
    assert made == []


@pytest.mark.parametrize(
    ("value", "error", "sentence"),
    [
        (True, TypeError, "seed is True; give a whole number from 0 to 2**64 - 1"),
        ("7", TypeError, "seed is '7' of type str; give a whole number from 0 to 2**64 - 1"),
        (-1, ValueError, "seed is -1; give a whole number from 0 to 2**64 - 1"),
        (TOP + 1, ValueError, f"seed is {TOP + 1}; give a whole number from 0 to 2**64 - 1"),
    ],
)
def test_a_seed_is_refused_in_these_words(
    value: object, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as caught:
        check_seed(value)
    assert str(caught.value) == sentence


def test_the_first_and_the_last_seed_are_seeds() -> None:
    assert (check_seed(0), check_seed(TOP)) == (0, TOP)
    assert seeded(TOP).initial_seed() == TOP
    assert seeded(5).device == CPU


def test_a_mode_is_one_of_three() -> None:
    assert [check_mode(mode) for mode in ("stream", "per_image", "legacy")] == [
        "stream", "per_image", "legacy",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"^mode is 'old'; give one of stream, per_image, legacy$"):
        check_mode("old")


def test_only_pictures_with_a_number_begin_elsewhere() -> None:
    assert [check_first_index(0, mode) for mode in ("stream", "legacy")] == [0, 0]
    assert check_first_index(5, "per_image") == 5
    for mode in ("stream", "legacy"):
        with pytest.raises(ValueError, match=rf"^first_index is 1 with seed_mode '{mode}'; give 0"):
            check_first_index(1, mode)  # type: ignore[arg-type]
    for wrong, error in ((-1, ValueError), ("1", TypeError)):
        with pytest.raises(error, match=rf"^first_index is {wrong!r}; give"):
            check_first_index(wrong, "per_image")
    with pytest.raises(ValueError, match=r"^first_index is 2 with mode 'stream', where only"):
        make_generator(7, first_index=2)


@pytest.mark.parametrize("name", ["count", "first_index"])
def test_a_count_is_refused_by_its_name(name: str) -> None:
    wrong: list[tuple[Any, type[Exception], str]] = [
        (-1, ValueError, f"{name} is -1; give 0 or a larger number"),
        (1.0, TypeError, f"{name} is 1.0; give a whole number, 0 or larger"),
    ]
    for value, error, sentence in wrong:
        with pytest.raises(error) as caught:
            make_generator(7, mode="per_image", **{name: value})
        assert str(caught.value) == sentence


def test_a_device_without_generators_is_refused_with_the_first_sentence_of_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(device: torch.device) -> torch.Generator:
        raise RuntimeError(f"no generator on {device}. More of this\nand of that")

    monkeypatch.setattr(torch, "Generator", none)
    with pytest.raises(ValueError) as caught:
        make_generator(7, "cuda:1")
    assert str(caught.value) == (
        "device is 'cuda:1', where torch has no generator here (no generator on cuda:1); give a "
        'device of this machine such as "cpu" or "cuda:0", or "execution" with pipeline=...'
    )


def test_words_of_the_generator_are_refused_at_both_ends() -> None:
    ones = 2**32 - 1
    assert len(twin.philox4x32((ones,) * 4, (0, ones))) == 4
    for counter, key in (((0,) * 5, (0, 0)), ((0,) * 4, (0,) * 3), ((0, 0, 0, -1), (0, 0)),
                         ((0,) * 4, (ones + 1, 0))):  # fmt: skip
        with pytest.raises(ValueError):
            twin.philox4x32(counter, key)
    for seed, index in ((-1, 0), (TOP + 1, 0), (0, -1), (0, TOP + 1)):
        with pytest.raises(ValueError, match=r"give a number from 0 to 2\*\*64 - 1$"):
            twin.seed_image(seed, index)
    assert twin.seed_image(TOP, 0) == TOP
