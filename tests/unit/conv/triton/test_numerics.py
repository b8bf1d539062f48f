"""The Triton kernels, interpreted on the CPU, against the C reference: a share of
tests/long/check_triton_numerics.py and check_triton_packing.py, and that what they watch with can
see."""

from __future__ import annotations

import types
from typing import Any

import check_triton_numerics as numerics
import check_triton_packing as packing
import how_much
import interpreted_checks
import numpy
import pytest
import torch
import triton_interpreter
import warm_start
from triton_device import INTERPRETER

pytest.importorskip("triton", reason="no triton in this environment")

# Four of the gate's seed have every type, layout of the weight and room, and a 1x1x1 kernel.
COUNT, SEED = how_much.of((4, 1381), (32, 7))
# Four of the gate's seed have every kind of packing.
PACKED, PACKING_SEED = how_much.of((4, 37), (24, 5))


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    """Of the configurations, and of weights that are packed."""
    if not warm_start.IS_THERE:
        configurations = numerics.spawn(SEED, 0, COUNT, workers=1)
        return [configurations, packing.spawn(PACKING_SEED, 0, PACKED)]
    one = {"seed": SEED, "first": 0, "count": COUNT, "step": 1, "device": INTERPRETER}
    other = {"seed": PACKING_SEED, "first": 0, "count": PACKED}
    return interpreted_checks.results(
        ("check_triton_numerics", one), ("check_triton_packing", other)
    )


@pytest.mark.timeout(300)
def test_random_configurations_equal_the_c_reference_and_stay_within_the_bound(
    results: list[dict[str, Any]],
) -> None:
    result = results[0]
    assert not result["failed"], "\n".join(result["failed"])
    assert result["configurations"] == COUNT
    assert result["compared"] > 10_000
    assert result["addresses"] > how_much.of(100_000, 500_000)
    assert result["differing"] == 0
    assert 0.0 < result["worst_of_bound"] <= 1.0


def test_what_kernels_read_is_the_permuted_weight_packed_once_in_one_allocation(
    results: list[dict[str, Any]],
) -> None:
    result = results[1]
    assert not result["failed"], "\n".join(result["failed"])
    assert result["kinds"].keys() >= {"as it lies", "load_rows", "load_rows_and_weight"}
    assert result["addresses"] > 100_000


def test_the_configurations_cover_what_the_kernel_can_do() -> None:
    made = [numerics.random_config(SEED, index) for index in range(500)]
    for field, values in (("dtype", numerics.DTYPES), ("ndim", (2, 3)), ("groups", (1, 2, 3))):
        assert {getattr(config, field) for config in made} == set(values)
    assert any(max(config.stride) > 1 for config in made)
    assert any(max(config.dilation) > 1 for config in made)
    assert any(config.before != config.after for config in made)
    assert {config.layouts[0] for config in made} == set(numerics.LAYOUTS)


def _pointers(addresses: list[int], bits: int = 32) -> types.SimpleNamespace:
    element = types.SimpleNamespace(primitive_bitwidth=bits)
    data = numpy.array(addresses, dtype=numpy.uint64)
    return types.SimpleNamespace(data=data, get_element_ty=lambda: element)


def test_an_address_outside_of_the_tensors_is_seen_unless_it_is_masked() -> None:
    memory = torch.zeros(10)
    first = memory.data_ptr()
    watch = triton_interpreter.Addresses()
    watch.give(memory[2:6], 3, "no tensor")
    mask = types.SimpleNamespace(data=numpy.array([True, True]))
    watch.check(_pointers([first + 8, first + 20]), mask, "reads")
    for outside in (first + 4, first + 21, first + 24):
        with pytest.raises(IndexError, match="1 of 2 reads outside any tensor"):
            watch.check(_pointers([first + 8, outside]), mask, "reads")
    half = types.SimpleNamespace(data=numpy.array([True, False]))
    watch.check(_pointers([first + 8, 0]), half, "reads")


def test_the_mended_rounding_to_bf16_is_torchs() -> None:
    generator = torch.Generator().manual_seed(5)
    bits = torch.randint(-(2**31), 2**31, (100_000,), generator=generator, dtype=torch.int64)
    values = bits.to(torch.int32).view(torch.float32)
    values = torch.cat((values[~values.isnan()], torch.tensor([0.0, -0.0, float("inf"), 1.0])))
    wanted = values.to(torch.bfloat16).view(torch.int16).numpy().view(numpy.uint16)
    assert numpy.array_equal(triton_interpreter._f32_as_bf16(values.numpy()), wanted)
