"""How arrays come into the C core: DLPack, the buffer protocol, and what is refused."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
import torch
from core_memory import memory
from dlpack_liar import CUDA, GPU, IS_COPIED, LIES, READ_ONLY, Producer

import hy3d_rocm
from hy3d_rocm import _core

ONE = (1, 1, 1)
NONE = (0, 0, 0)


def convolve(x: Any, weight: Any, out: Any, bias: Any = None) -> None:
    _core.conv3d(x, weight, bias, out, ONE, ONE, NONE, NONE, "zeros", 1)


def identity(x: Any, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """x through a 1x1x1 convolution with the weight 1, so that the result is what was read."""
    shape = tuple(x.shape)
    out = np.full(shape, np.nan, dtype)
    _core.conv3d(x, np.ones((1, 1, 1, 1, 1), dtype), None, out, ONE, ONE, NONE, NONE, "zeros", 1)
    return out


def counting(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


BASE = counting((2, 2, 6, 4, 5))
VIEWS = {
    "contiguous": BASE[:, :1],
    "every second": BASE[:, 1:, ::2, ::2, ::2],
    "negative strides": BASE[:, :1, ::-1, ::-1, ::-1],
    "transposed": BASE[:, :1].transpose(0, 1, 4, 2, 3),
    "expanded": np.broadcast_to(BASE[:1, :1], (3, 1, 6, 4, 5)),
    "one position": BASE[1:, 1:, 3:4, 2:3, 4:],
    "empty batch": BASE[:0, :1],
}


@pytest.mark.parametrize("name", VIEWS)
def test_any_layout_is_read_where_it_lies(name: str) -> None:
    view = VIEWS[name]
    np.testing.assert_array_equal(identity(view), view)


@pytest.mark.parametrize("name", VIEWS)
def test_a_torch_view_of_the_same_layout_is_read_the_same(name: str) -> None:
    if name == "negative strides":
        tensor = torch.from_numpy(BASE[:, :1].copy()).flip(2, 3, 4)  # torch has no such view
    elif name == "expanded":
        tensor = torch.from_numpy(BASE[:1, :1]).expand(3, 1, 6, 4, 5)
    else:
        tensor = torch.from_numpy(VIEWS[name])
    np.testing.assert_array_equal(identity(tensor), VIEWS[name])


@pytest.mark.parametrize("name", sorted(VIEWS.keys() - {"expanded"}))
def test_any_layout_of_distinct_elements_is_written_where_it_lies(name: str) -> None:
    backing = np.zeros_like(BASE)
    index = {
        "contiguous": np.s_[:, :1],
        "every second": np.s_[:, 1:, ::2, ::2, ::2],
        "negative strides": np.s_[:, :1, ::-1, ::-1, ::-1],
        "one position": np.s_[1:, 1:, 3:4, 2:3, 4:],
        "empty batch": np.s_[:0, :1],
    }.get(name)
    out = backing[index] if index else backing[:, :1].transpose(0, 1, 4, 2, 3)
    x = counting(out.shape) + 1
    convolve(x, np.ones((1, 1, 1, 1, 1), np.float32), out)
    np.testing.assert_array_equal(out, x)
    assert np.count_nonzero(backing) == x.size, "something beside the view was written"


def test_an_output_whose_elements_share_addresses_is_refused() -> None:
    out = torch.zeros(1, 1, 1, 1, 1).expand(1, 1, 6, 4, 5)
    with pytest.raises(ValueError, match="several elements at one address"):
        convolve(BASE[:1, :1], np.ones((1, 1, 1, 1, 1), np.float32), out)


def test_read_only_arrays_are_read_and_never_written() -> None:
    x = BASE[:, :1].copy()
    x.flags.writeable = False
    weight = np.ones((1, 1, 1, 1, 1), np.float32)
    weight.flags.writeable = False
    out = np.zeros_like(x)
    convolve(x, weight, out)
    np.testing.assert_array_equal(out, x)
    with pytest.raises(ValueError, match="out is read-only"):
        convolve(out, weight, x)
    with pytest.raises(ValueError, match="read-only"):
        hy3d_rocm.conv3d(out, weight, out=x)


def test_bytes_and_memoryviews_come_in_by_the_buffer_protocol() -> None:
    x = memoryview(counting((1, 1, 2, 2, 2)).tobytes()).cast("f", (1, 1, 2, 2, 2))
    np.testing.assert_array_equal(identity(x), counting((1, 1, 2, 2, 2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_dtype_of_torch_comes_in(dtype: torch.dtype) -> None:
    x = torch.arange(24).reshape(1, 1, 2, 3, 4).to(dtype)
    out = torch.empty_like(x)
    convolve(x, torch.ones(1, 1, 1, 1, 1, dtype=dtype), out)
    assert torch.equal(out, x)


@pytest.mark.parametrize("code", [">f4", "i4", "u1", "c8", "f4,f4"])
def test_other_element_types_are_refused_with_a_sentence(code: str) -> None:
    array = np.zeros((1, 1, 2, 2, 2), code)
    with pytest.raises(ValueError, match=r"x has (element format|a data type)"):
        identity(array)


def test_the_python_door_converts_what_a_copy_can_mend() -> None:
    weight = np.ones((1, 1, 1, 1, 1), np.float32)
    x = counting((1, 1, 2, 3, 4))
    swapped = x.astype(">f4")
    packed = np.zeros(x.shape, np.dtype([("skip", "u1"), ("value", "<f4")]))
    packed["value"] = x
    assert not packed["value"].flags.aligned
    for odd in (swapped, packed["value"]):
        np.testing.assert_array_equal(hy3d_rocm.conv3d(odd, weight), x)


def test_a_tensor_that_requires_grad_gets_a_sentence() -> None:
    x = torch.zeros(1, 1, 2, 2, 2, requires_grad=True)
    with pytest.raises(ValueError, match="detach"):
        identity(x)
    weight = torch.ones(1, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="no backward pass"):
        hy3d_rocm.conv3d(x, weight)
    with torch.no_grad():
        assert torch.equal(hy3d_rocm.conv3d(x, weight), x)


def test_a_tensor_without_memory_on_the_cpu_gets_a_sentence() -> None:
    weight = torch.ones(1, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="on meta"):
        hy3d_rocm.conv3d(torch.zeros(1, 1, 2, 2, 2, device="meta"), weight)
    gpu = Producer(**LIES["GPU memory, said too"])
    with pytest.raises(ValueError, match=r"not in CPU memory .* pass x\.cpu\(\)"):
        convolve(gpu, weight, torch.zeros(1, 1, 3, 4, 4))


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_producer_gets_an_exception_and_its_capsule_back(lie: str) -> None:
    weight = np.ones((1, 2, 1, 1, 1), np.float32)
    out = np.zeros((1, 1, 3, 4, 4), np.float32)
    liar = Producer(**LIES[lie])
    with pytest.raises((ValueError, TypeError)):
        convolve(liar, weight, out)
    assert liar.deleted <= 1
    with pytest.raises((ValueError, TypeError)):
        convolve(out, liar, out)
    with pytest.raises((ValueError, TypeError)):
        convolve(np.zeros((1, 2, 3, 4, 4), np.float32), weight, liar)


def test_the_deleter_runs_exactly_once_whatever_happens() -> None:
    weight = np.ones((1, 2, 1, 1, 1), np.float32)
    out = np.zeros((1, 1, 3, 4, 4), np.float32)
    good = Producer((1, 2, 3, 4, 4))
    convolve(good, weight, out)
    assert good.deleted == 1
    later = Producer((1, 2, 3, 4, 4))
    with pytest.raises(TypeError):
        convolve(later, "no array", out)
    assert later.deleted == 1
    convolve(Producer((1, 2, 3, 4, 4), no_deleter=True), weight, out)


SIZE = (1, 2, 3, 4, 4)
PLAIN_WEIGHT = np.ones((1, 2, 1, 1, 1), np.float32)


def test_producers_are_asked_for_dlpack_1_and_without_it_where_they_know_none() -> None:
    out = np.zeros((1, 1, 3, 4, 4), np.float32)
    for knows, version, calls in (
        (True, (1, 1), [{"max_version": (1, 1)}]),
        (True, (1, 99), [{"max_version": (1, 1)}]),  # minor versions change no layout
        (True, None, [{"max_version": (1, 1)}]),
        (False, None, [{"max_version": (1, 1)}, {}]),
    ):
        producer = Producer(SIZE, version=version, knows_version=knows, byte_offset=64)
        out[...] = 1
        convolve(producer, PLAIN_WEIGHT, out)
        assert producer.asked == calls
        assert producer.deleted == 1
        assert not out.any()


def test_what_is_read_only_by_dlpack_is_read_and_never_written() -> None:
    frozen = Producer(SIZE, version=(1, 0), flags=READ_ONLY)  # as JAX arrays are
    convolve(frozen, PLAIN_WEIGHT, np.zeros((1, 1, 3, 4, 4), np.float32))
    assert frozen.deleted == 1
    ones = np.ones((1, 1, 1, 1, 1), np.float32)
    x = np.zeros(SIZE, np.float32)[:, :1]
    target = Producer((1, 1, 3, 4, 4), version=(1, 0), flags=READ_ONLY)
    with pytest.raises(ValueError, match="out is read-only: results cannot be written there"):
        convolve(x, ones, target)
    assert target.deleted == 1
    copied = Producer((1, 1, 3, 4, 4), version=(1, 0), flags=IS_COPIED)
    with pytest.raises(ValueError, match=r"out came as a copy .* would be lost"):
        convolve(x, ones, copied)
    assert copied.deleted == 1
    convolve(x, ones, Producer((1, 1, 3, 4, 4), version=(1, 0)))


def test_the_deleter_of_a_versioned_capsule_runs_once_on_every_path() -> None:
    out = np.zeros((1, 1, 3, 4, 4), np.float32)
    later = Producer(SIZE, version=(1, 1))
    with pytest.raises(TypeError):
        convolve(later, "no array", out)
    assert later.deleted == 1
    for name, lie in LIES.items():
        liar = Producer(**lie)
        with pytest.raises((ValueError, TypeError)):
            convolve(liar, PLAIN_WEIGHT, out)
        taken = lie.get("version") and "capsule_name" not in lie
        assert liar.deleted == 1 or not taken, name
    with pytest.raises(ValueError, match=r"x came as DLPack 2\.0: version 1 is understood"):
        convolve(Producer(SIZE, version=(2, 0)), PLAIN_WEIGHT, out)
    convolve(Producer(SIZE, version=(1, 1), no_deleter=True), PLAIN_WEIGHT, out)


@pytest.mark.parametrize(
    ("kind", "said"), [(GPU, "ROCm GPU 3"), (CUDA, "CUDA GPU 3"), (99, "an unknown device 3")]
)
def test_memory_elsewhere_is_refused_with_the_name_of_the_device(kind: int, said: str) -> None:
    out = np.zeros((1, 1, 3, 4, 4), np.float32)
    gpu = Producer(SIZE, device=kind, said_device=(kind, 3))
    sentence = rf"x is not in CPU memory but on {said} \(DLPack device type {kind}\).* x\.cpu\(\)"
    with pytest.raises(ValueError, match=sentence):
        convolve(gpu, PLAIN_WEIGHT, out)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("tensor", "layout"),
    [
        (lambda: torch.ones(2, 2).to_sparse(), r"torch\.sparse_coo"),
        (lambda: torch.ones(2, 2).to_sparse_csr(), r"torch\.sparse_csr"),
        (lambda: torch.ones(2, 2).to_mkldnn(), r"torch\._mkldnn"),
    ],
)
def test_a_tensor_of_another_layout_is_told_to_become_dense(tensor: Any, layout: str) -> None:
    sentence = rf"layout is {layout}.*pass array\.to_dense\(\)"
    with pytest.raises(ValueError, match=sentence) as caught:
        _core.fingerprint(tensor())
    assert "grad" not in str(caught.value)
    assert _core.fingerprint(tensor().to_dense()) == _core.fingerprint(torch.ones(2, 2))


def test_a_tensor_with_a_bit_that_dlpack_does_not_tell_is_refused() -> None:
    values = torch.arange(1.0, 9.0).reshape(1, 1, 2, 2, 2)
    out = torch.zeros_like(values)
    ones = torch.ones(1, 1, 1, 1, 1)
    negative = torch._neg_view(values)
    with pytest.raises(ValueError, match=r"x is a lazily negated view .* pass x\.resolve_neg\(\)"):
        convolve(negative, ones, out)
    with pytest.raises(ValueError, match="out is a lazily negated view"):
        convolve(values, ones, torch._neg_view(out))
    convolve(negative.resolve_neg(), ones, out)
    assert torch.equal(out, -values)
    turned = torch.complex(values, values).conj()
    with pytest.raises(ValueError, match="x is a lazily negated view"):
        convolve(turned.imag, ones, out)
    with pytest.raises(ValueError, match="conjugate bit set") as caught:
        convolve(turned, ones, out)
    assert "grad" not in str(caught.value)


def test_strides_may_be_left_out_and_a_byte_offset_given() -> None:
    producer = Producer((1, 2, 3, 4, 4), byte_offset=64)
    out = np.ones((1, 1, 3, 4, 4), np.float32)
    convolve(producer, np.ones((1, 2, 1, 1, 1), np.float32), out)
    assert not out.any()


def test_what_a_producer_raises_arrives() -> None:
    class Angry:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, stream: object = None) -> object:
            raise ZeroDivisionError("angry")

    class Leaving(Angry):
        @property
        def __dlpack_device__(self) -> Any:  # type: ignore[override]
            raise KeyboardInterrupt

    out = np.zeros((1, 1, 1, 1, 1), np.float32)
    with pytest.raises(ZeroDivisionError, match="angry"):
        convolve(Angry(), out, out)
    with pytest.raises(KeyboardInterrupt):
        convolve(Leaving(), out, out)


def test_output_that_shares_memory_with_an_input_is_refused() -> None:
    memory = np.zeros((1, 2, 2, 2, 2), np.float32)
    weight = np.ones((1, 1, 1, 1, 1), np.float32)
    with pytest.raises(ValueError, match="out lies in the memory of x"):
        convolve(memory[:, :1], weight, memory[:, :1])
    convolve(memory[:, :1], weight, memory[:, 1:])


def test_a_changing_index_changes_nothing_that_was_read() -> None:
    stride: list[Any] = [1, 1, 1]

    class Shrinking:
        def __index__(self) -> int:
            stride.clear()
            return 1

    stride[0] = Shrinking()
    x = counting((1, 1, 2, 2, 2))
    out = np.zeros_like(x)
    weight = np.ones((1, 1, 1, 1, 1), np.float32)
    _core.conv3d(x, weight, None, out, stride, ONE, NONE, NONE, "zeros", 1)
    np.testing.assert_array_equal(out, x)


def test_reference_counts_do_not_drift_over_ten_thousand_calls() -> None:
    x, weight, bias = torch.ones(1, 1, 1, 2, 2), torch.ones(1, 1, 1, 1, 1), torch.ones(1)
    out = np.zeros((1, 1, 1, 2, 2), np.float32)
    flag = _core.CancelFlag()
    window = _core.schedule_window(2, 1, 1)
    frame, factors, into = (
        torch.ones(1, 2, 2),
        np.ones(1, np.float32),
        np.zeros((1, 1, 1, 2, 2), "f4"),
    )
    watched = (x, weight, bias, out, flag, window, frame, factors, into, ONE, NONE, None.__class__)

    def calls(count: int) -> None:
        for _ in range(count):
            _core.conv3d(x, weight, bias, out, ONE, ONE, NONE, NONE, "zeros", 1, 1, None, flag)
            _core.blend_accumulate(x, None, window, window, out)
            _core.conv3d(None, weight, bias, into, ONE, ONE, NONE, NONE, "zeros", 1, 1, None, flag,
                         "fast", None, [frame], factors, factors, "silu", ONE, into)  # fmt: skip
            _core.fingerprint(frame)
            for bad in (lambda: convolve(x, bias, out), lambda: convolve(x, None, out)):
                try:
                    bad()
                except (ValueError, TypeError):
                    continue
                raise AssertionError("a bad call was taken")

    calls(10)
    gc.collect()
    before = [sys.getrefcount(item) for item in watched], memory.live()
    calls(10_000)
    gc.collect()
    after = [sys.getrefcount(item) for item in watched], memory.live()
    assert before == after
