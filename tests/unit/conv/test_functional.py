"""hy3d_rocm.conv3d and conv2d: a drop-in for torch's, with its layouts, paddings and refusals.

Data are small integers, so every sum is exact in f32 and the results must be equal bit for bit.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import hy3d_rocm
from hy3d_rocm import _core
from hy3d_rocm.conv import functional

LAST_3D = torch.channels_last_3d


def integers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


X = integers(2, 4, 5, 8, 9)
WEIGHT = integers(6, 4, 3, 3, 3, seed=1)
BIAS = integers(6, seed=2)

OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "stride": {"stride": (1, 2, 3)},
    "a number in a list": {"stride": [2], "padding": [1]},
    "numbers of NumPy": {"stride": np.int64(2), "padding": (np.int32(1), 0, 2)},
    "padding and dilation": {"padding": (2, 1, 3), "dilation": (2, 1, 3)},
    "valid": {"padding": "valid"},
    "same": {"padding": "same"},
    "same, dilated": {"padding": "same", "dilation": (1, 2, 3)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_results_equal_torch_bit_for_bit(name: str) -> None:
    options = OPTIONS[name]
    torch_options = {
        key: tuple(int(v) for v in value) if isinstance(value, tuple | list) else value
        for key, value in options.items()
    }
    if not isinstance(torch_options.get("stride", 1), tuple | int):
        torch_options["stride"] = int(options["stride"])
    wanted = F.conv3d(X, WEIGHT, BIAS, **torch_options)
    assert torch.equal(hy3d_rocm.conv3d(X, WEIGHT, BIAS, **options), wanted)
    from_numpy = hy3d_rocm.conv3d(X.numpy(), WEIGHT.numpy(), BIAS.numpy(), **options)
    assert isinstance(from_numpy, np.ndarray)
    np.testing.assert_array_equal(from_numpy, wanted.numpy())


def test_same_with_an_even_kernel_puts_the_rest_behind_as_torch_does() -> None:
    weight = WEIGHT[..., :2, :2].contiguous()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its copy, once a process
        wanted = F.conv3d(X, weight, padding="same")
    assert torch.equal(hy3d_rocm.conv3d(X, weight, padding="same"), wanted)


@pytest.mark.parametrize("mode", ["zeros", "replicate"])
def test_padding_per_side_equals_padding_before_the_convolution(mode: str) -> None:
    pads = ((2, 0), (1, 1), (0, 3))
    flat = (0, 3, 1, 1, 2, 0)  # torch: last axis first
    padded = F.pad(X, flat, mode="constant" if mode == "zeros" else "replicate")
    y = hy3d_rocm.conv3d(X, WEIGHT, BIAS, padding=pads, padding_mode=mode)
    assert torch.equal(y, F.conv3d(padded, WEIGHT, BIAS))


def test_padding_modes_may_differ_by_axis_and_pairs_may_mix_with_numbers() -> None:
    padded = F.pad(F.pad(X, (0, 0, 0, 0, 2, 0), mode="replicate"), (1, 1, 1, 1))
    y = hy3d_rocm.conv3d(
        X, WEIGHT, padding=((2, 0), 1, 1), padding_mode=("replicate", "zeros", "zeros")
    )
    assert torch.equal(y, F.conv3d(padded, WEIGHT))


def test_groups_down_to_depthwise() -> None:
    for groups in (1, 2, 4):
        weight = integers(8, 4 // groups, 3, 3, 3)
        assert torch.equal(
            hy3d_rocm.conv3d(X, weight, groups=groups), F.conv3d(X, weight, groups=groups)
        )


def test_an_input_without_batch_gives_an_output_without_batch() -> None:
    y = hy3d_rocm.conv3d(X[1], WEIGHT, BIAS, padding=1)
    assert torch.equal(y, F.conv3d(X[1], WEIGHT, BIAS, padding=1))
    assert hy3d_rocm.conv2d(X[0, :, 0], WEIGHT[:, :, 0]).shape == (6, 6, 7)


def test_an_empty_batch_gives_an_empty_result() -> None:
    assert hy3d_rocm.conv3d(X[:0], WEIGHT).shape == (0, 6, 3, 6, 7)


@pytest.mark.parametrize("seed", range(20))
def test_random_two_dimensional_convolutions_equal_torch(seed: int) -> None:
    rng = random.Random(seed)
    groups = rng.choice([1, 2])
    x = integers(
        rng.randrange(1, 3), 2 * groups, rng.randrange(5, 9), rng.randrange(5, 9), seed=seed
    )
    weight = integers(2 * groups, 2, rng.randrange(1, 4), rng.randrange(1, 4), seed=seed)
    options: dict[str, Any] = {
        "stride": (rng.randrange(1, 3), rng.randrange(1, 3)),
        "padding": (rng.randrange(3), rng.randrange(3)),
        "dilation": rng.randrange(1, 3),
        "groups": groups,
    }
    y = hy3d_rocm.conv2d(x, weight, **options)
    assert torch.equal(y, F.conv2d(x, weight, **options)), f"replay: seed {seed}, {options}"


def test_channels_last_comes_out_as_it_came_in() -> None:
    y = hy3d_rocm.conv3d(X.to(memory_format=LAST_3D), WEIGHT, padding=1)
    assert y.is_contiguous(memory_format=LAST_3D)
    assert torch.equal(y, F.conv3d(X, WEIGHT, padding=1))
    image = X[:, :, 0].to(memory_format=torch.channels_last)
    z = hy3d_rocm.conv2d(image, WEIGHT[:, :, 0], padding=1)
    assert z.is_contiguous(memory_format=torch.channels_last)
    assert hy3d_rocm.conv3d(X, WEIGHT).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_exact_on_integers_and_keep_their_dtype(dtype: torch.dtype) -> None:
    x, weight = integers(1, 2, 3, 4, 5, dtype=dtype), integers(3, 2, 2, 2, 2, dtype=dtype)
    y = hy3d_rocm.conv3d(x, weight)
    assert y.dtype is dtype  # sums stay below 2**8, so bf16 holds them
    assert torch.equal(y.double(), F.conv3d(x.double(), weight.double()))


def test_out_is_written_and_returned() -> None:
    wanted = F.conv3d(X, WEIGHT, padding=1)
    whole = torch.zeros(2, 12, 5, 8, 9)
    view = whole[:, 3:9]
    assert hy3d_rocm.conv3d(X, WEIGHT, padding=1, out=view) is view
    assert torch.equal(view, wanted)
    assert not whole[:, :3].any()
    assert not whole[:, 9:].any()
    array = np.zeros((4, 6, 7), np.float32)[:, ::-1]
    image, kernel = X[0, :, 0].numpy(), integers(4, 4, 3, 3).numpy()
    assert hy3d_rocm.conv2d(image, kernel, out=array) is array
    np.testing.assert_array_equal(array, hy3d_rocm.conv2d(image, kernel))


def test_parameters_work_where_gradients_are_off() -> None:
    layer = torch.nn.Conv3d(4, 6, 3)
    with torch.inference_mode():
        y = hy3d_rocm.conv3d(X, layer.weight, layer.bias)
        # Both are within n * eps * sum of |products| of the exact sum, n the number of terms.
        terms = layer.weight[0].numel() + 1
        bound = F.conv3d(X.abs().double(), layer.weight.abs().double(), layer.bias.abs().double())
        bound *= 2 * terms * 2.0**-24
        assert ((y - layer(X)).abs() <= bound).all()


def test_the_threads_of_torch_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = _core.conv3d

    def spy(*args: Any) -> Any:
        seen.append(args[10])
        return original(*args)

    monkeypatch.setattr("hy3d_rocm._native.conv3d", spy)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        hy3d_rocm.conv3d(X, WEIGHT)
        torch.set_num_threads(2)
        hy3d_rocm.conv3d(X, WEIGHT)
        hy3d_rocm.conv3d(X, WEIGHT, threads=3)
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2, 3]


REFUSALS: dict[str, tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = {
    "a list": (TypeError, "x must be a torch tensor or a NumPy array, not list", ([1], WEIGHT), {}),
    "mixed kinds": (TypeError, "pass all as torch", (X, WEIGHT.numpy()), {}),
    "no weight": (TypeError, "weight is NoneType", (X, None), {}),
    "integers": (ValueError, "x is torch.int64", (X.long(), WEIGHT), {}),
    "mixed dtypes": (ValueError, "weight is f64 but x is f32", (X, WEIGHT.double()), {}),
    "too few dimensions": (ValueError, r"x has shape \(8, 9\)", (X[0, 0, 0], WEIGHT), {}),
    "2D weight": (ValueError, "weight must be", (X, WEIGHT[0]), {}),
    "bias of two dimensions": (ValueError, "bias must be", (X, WEIGHT, BIAS[None]), {}),
    "bias of another size": (ValueError, "bias has 5 values but weight makes 6",
                             (X, WEIGHT, BIAS[:5]), {}),
    "channels": (ValueError, "weight takes 3 channels a group but x has 4", (X, WEIGHT[:, :3]), {}),
    "groups": (ValueError, "cannot be cut into 3 groups", (X, WEIGHT), {"groups": 3}),
    "kernel too large": (ValueError, "larger than the padded input", (X[:, :, :2], WEIGHT), {}),
    "stride 0": (ValueError, r"stride is \(0, 0, 0\): each", (X, WEIGHT), {"stride": 0}),
    "negative padding": (ValueError, r"pad_before is \(-9, -9", (X, WEIGHT), {"padding": -9}),
    "a word": (ValueError, "padding is 'full'", (X, WEIGHT), {"padding": "full"}),
    "same with a stride": (ValueError, "needs stride 1", (X, WEIGHT),
                           {"padding": "same", "stride": 2}),
    "two numbers": (ValueError, "stride is", (X, WEIGHT), {"stride": (1, 2)}),
    "a fraction": (TypeError, "stride is 1.5", (X, WEIGHT), {"stride": 1.5}),
    "pairs for two axes": (ValueError, "pair", (X, WEIGHT), {"padding": ((1, 1), (1, 1))}),
    "triples": (ValueError, "pair", (X, WEIGHT), {"padding": ((1, 1, 1),) * 3}),
    "reflect": (ValueError, "padding_mode is 'reflect'", (X, WEIGHT), {"padding_mode": "reflect"}),
    "accuracy": (ValueError, "'exact' or 'fast'", (X, WEIGHT), {"accuracy": "best"}),
    "no threads": (ValueError, "threads is 0", (X, WEIGHT), {"threads": 0}),
    "workspace": (ValueError, "workspace_limit is -1", (X, WEIGHT), {"workspace_limit": -1}),
    "out of another size": (ValueError, "out is .* but the result is", (X, WEIGHT),
                            {"out": X.clone()}),
    "out in x": (ValueError, "out lies in the memory of x", (X, WEIGHT[:4]),
                 {"padding": 1, "out": X}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_what_does_not_fit_gets_a_sentence(name: str) -> None:
    error, sentence, arguments, options = REFUSALS[name]
    with pytest.raises(error, match=sentence):
        hy3d_rocm.conv3d(*arguments, **options)


@pytest.mark.parametrize(
    ("frames", "pairs"),
    [("aabb", 1), ("aabbc", 1), ("abb", 2), ("abbcc", 2), ("abbccd", 2), ("aaabb", 2), ("aabbb", 1),
     ("aaaa", 1), ("abcd", 0), ("aabc", 0), ("abbcd", 0), (".abb", 0), ("..aabb", 1), (".aa", 2)],
)  # fmt: skip
def test_frames_that_come_in_twos_are_found(frames: str, pairs: int) -> None:
    each = {name: None if name == "." else torch.zeros(1) for name in frames}
    assert functional._pairs_of([each[name] for name in frames]) == pairs
