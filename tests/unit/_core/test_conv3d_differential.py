"""The C convolution and its reference against torch: a share of tests/long/differential_conv3d.py
in child processes, one a CPU level, and the layers of real video VAEs."""

from __future__ import annotations

import json
import os
from typing import Any

import differential_conv3d as differential
import how_much
import pytest
import torch
import torch.nn.functional as functional
from places import TESTS

from hy3d_rocm import _core

COUNT, REAL, SEED = *how_much.of((50, 10), (300, 60)), 7
SHAPES = TESTS / "shapes" / "video_vae_layers.json"
# Larger ones take seconds each: bench_conv.py compares them.
MAX_GFLOP = 1.0
ONE, NONE = (1, 1, 1), (0, 0, 0)


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    if not hasattr(os, "fork"):
        return {}
    levels = [level for level in differential.LEVELS if level in _core.cpu_info()["levels"]]
    return differential.spawn_levels(levels, SEED, 0, COUNT, REAL)


@pytest.mark.parametrize("level", differential.LEVELS)
def test_random_configurations_equal_torch_at_each_cpu_level(
    level: str, results: dict[str, dict[str, Any]]
) -> None:
    if level not in _core.cpu_info()["levels"]:
        pytest.skip(f"this machine has no {level}")
    result = results.get(level) or differential.spawn_level(level, SEED, 0, COUNT, REAL)
    assert result["level"] == level
    assert result["compared"] > 10_000
    assert not result["failed"], "\n".join(result["failed"])
    assert result["differing"] == 0
    assert 0.0 < result["worst_of_bound"] <= 1.0


def small_layers() -> list[dict[str, Any]]:
    entries = json.loads(SHAPES.read_text(encoding="utf-8"))
    layers = {
        json.dumps({k: v for k, v in layer.items() if k != "count"}, sort_keys=True)
        for entry in entries.values()
        for layer in entry["layers"]
        if layer["gflop"] <= MAX_GFLOP
    }
    return [json.loads(layer) for layer in sorted(layers)]


@pytest.mark.parametrize("layer", small_layers(), ids=lambda v: f"{v['input']}-{v['weight']}")
def test_small_layers_of_video_vaes_equal_torch_on_integers(layer: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(1)

    def integers(shape: list[int]) -> Any:
        # Non-zero values keep every sum of up to 384 * 27 products far below 2^24.
        return torch.randint(-3, 4, shape, generator=generator).float()

    x, weight = integers(layer["input"]), integers(layer["weight"])
    bias = integers(layer["weight"][:1])
    padding, stride = layer["padding"], layer["stride"]
    flat = layer["op"] == "conv2d"
    conv = functional.conv2d if flat else functional.conv3d
    wanted = conv(x, weight, bias, stride, padding)
    if flat:
        x, weight = x.unsqueeze(2), weight.unsqueeze(2)
        padding, stride = [0, *padding], [1, *stride]
    out = torch.full_like(wanted, float("nan"))
    target = out.unsqueeze(2) if flat else out
    _core.conv3d(x, weight, bias, target, stride, ONE, padding, padding, "zeros", 1)
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_bits_do_not_depend_on_threads_or_workspace_limit(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 24, 6, 30, 41, generator=generator).to(dtype)
    weight = torch.randn(40, 24, 3, 3, 3, generator=generator).to(dtype)
    results = []
    for threads, limit in ((1, None), (2, None), (8, None), (2, 3 << 20), (1, 2 << 20)):
        out = torch.empty(1, 40, 6, 28, 39, dtype=dtype)
        used = _core.conv3d(
            x, weight, None, out, ONE, ONE, (2, 0, 0), NONE,
            ("replicate", "zeros", "zeros"), 1, threads, limit,
        )  # fmt: skip
        assert limit is None or used[2] <= limit
        results.append(out.view(torch.uint8))
    assert all(torch.equal(r, results[0]) for r in results)


def test_a_kernel_larger_than_the_padded_input_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="kernel"):
        _core.conv3d_out_size((2, 8, 8), (3, 3, 3), ONE, ONE, NONE, NONE)
