"""Keys: equal exactly where the same work is done."""

from __future__ import annotations

import dataclasses
from typing import Any

import how_much
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verdict_store_doubles import spec

from hy3d_rocm.conv.verdict_store.records import Key, Machine, make_key, shape_text

HERE = Machine("gfx1100", "amdgpu 6.10.5", "2.9.0", "hip 6.4, miopen 3.4.0", "0.1.0")


def test_the_shape_reads_well() -> None:
    assert shape_text(spec()) == "1x4x3x6x5 w8x2x3x3x3 s1x2x2 p0x1x1 g2 bias"
    causal = spec(pad_before=(2, 1, 1), pad_after=(0, 1, 1), has_bias=False, dilation=(1, 2, 2))
    assert shape_text(causal) == "1x4x3x6x5 w8x2x3x3x3 s1x2x2 p2+0x1x1 d1x2x2 g2"


def test_an_unbatched_call_is_the_same_work() -> None:
    assert make_key(spec(batched=False), HERE) == make_key(spec(), HERE)


def test_dtype_layout_and_machine_are_in_the_key() -> None:
    plain = make_key(spec(), HERE)
    assert plain == Key("conv3d", plain.shape, "f32", "contiguous", *HERE)
    assert make_key(spec(dtype=torch.bfloat16), HERE).dtype == "bf16"
    assert make_key(spec(channels_last=True), HERE).layout == "channels_last"
    assert plain.name != make_key(spec(channels_last=True), HERE).name
    assert len(plain.name) == 8


_SMALL = st.integers(0, 12)
_TRIPLE = st.tuples(_SMALL, _SMALL, _SMALL)


@st.composite
def _specs(draw: st.DrawFn) -> Any:
    return spec(
        x_size=draw(st.tuples(*[_SMALL] * 5)), weight_size=draw(st.tuples(*[_SMALL] * 5)),
        stride=draw(_TRIPLE), pad_before=draw(_TRIPLE), pad_after=draw(_TRIPLE),
        dilation=draw(_TRIPLE), groups=draw(_SMALL), has_bias=draw(st.booleans()),
    )  # fmt: skip


def _work(one: Any) -> tuple[Any, ...]:
    return (
        one.x_size, one.weight_size, one.stride, one.dilation, one.groups, one.has_bias,
        one.pad_before, one.pad_after,
    )  # fmt: skip


@settings(max_examples=how_much.of(60, 150), deadline=None)
@given(_specs(), _specs())
def test_texts_are_equal_exactly_where_the_work_is(one: Any, other: Any) -> None:
    assert (shape_text(one) == shape_text(other)) == (_work(one) == _work(other))


@settings(max_examples=how_much.of(60, 150), deadline=None)
@given(_specs(), st.data())
def test_one_change_changes_the_text(one: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["stride", "pad_before", "pad_after", "dilation", "x_size"]))
    values = list(getattr(one, name))
    place = data.draw(st.integers(0, len(values) - 1))
    values[place] += 1
    other = dataclasses.replace(one, **{name: tuple(values)})
    assert shape_text(one) != shape_text(other)
