"""What the doctor asks of decode()'s kernels. tests/gfx/test_executed.py executes them."""

from __future__ import annotations

from typing import Any

import check_fused
import pytest
import torch

from hy3d_rocm.conv.triton.work import Target
from hy3d_rocm.decoding.backends.triton import backend as fused
from hy3d_rocm.decoding.backends.triton import trial
from hy3d_rocm.decoding.backends.triton.backend import TritonBackend

CPU = torch.device("cpu")


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> TritonBackend:
    monkeypatch.setattr(fused, "_sound", set())
    backend = TritonBackend(check_fused.Plain(), CPU, Target("gfx1100", 4))
    backend.checked_on = ("cpu",)
    return backend


def test_where_decode_has_no_kernels_the_reason_is_told() -> None:
    row = trial.tried(CPU)
    assert (row["verdict"], row["kernels"]) == ("refused", 0)
    assert row["detail"] == "the fused kernels run on GPUs, not on cpu"


def test_kernels_that_write_nothing_are_wrong(
    on_cpu: TritonBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(part: Any, tensors: Any, device: Any) -> None:
        tensors[0].fill_(1e4)

    monkeypatch.setattr(fused, "run_launches", nothing)
    row = trial.tried(CPU, on_cpu)
    assert (row["device"], row["verdict"], row["kernels"]) == ("cpu", "wrong", 0)
    assert "outputs are wrong" in row["detail"]


def test_kernels_that_raise_are_told(
    on_cpu: TritonBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: Any) -> None:
        raise RuntimeError("Triton can't compile conv_rows: no\nmore")

    monkeypatch.setattr(fused, "run_launches", raises)
    row = trial.tried(CPU, on_cpu)
    assert (row["verdict"], row["detail"]) == ("error", "Triton can't compile conv_rows: no")
