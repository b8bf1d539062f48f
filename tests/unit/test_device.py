"""resolve_device: which rule decides, for real diffusers pipelines and for strange objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hy3d_rocm import _native
from hy3d_rocm.device import ResolvedDevice, as_device, default_device, resolve_device

CPU = torch.device("cpu")
CUDA = torch.device("cuda:0")


class Raising:
    @property
    def _execution_device(self) -> torch.device:
        raise RuntimeError("no modules")

    @property
    def device(self) -> torch.device:
        raise ValueError("split over two devices")


def test_execution_device_wins_over_device() -> None:
    for device in ("cpu", CUDA):  # .device under offload, before and after diffusers PR 14383
        pipeline = SimpleNamespace(_execution_device=CUDA, device=device)
        found = resolve_device(pipeline)
        assert found.device == CUDA
        assert "_execution_device" in found.rule


def test_meta_is_never_the_answer() -> None:
    meta = torch.device("meta")
    found = resolve_device(SimpleNamespace(_execution_device=meta, device=meta), "cuda:1")
    assert found.device == torch.device("cuda:1")
    assert "default" in found.rule


def test_module_without_device_is_resolved_by_its_first_parameter() -> None:
    found = resolve_device(torch.nn.Linear(2, 2), CUDA)
    assert found.device == CPU
    assert "parameter" in found.rule


@pytest.mark.parametrize(
    "strange",
    [None, 5, "text", object(), Raising(), SimpleNamespace(_execution_device="no device")],
)
def test_a_strange_pipeline_gets_the_default_and_a_rule(strange: object) -> None:
    found = resolve_device(strange, CUDA)
    assert isinstance(found, ResolvedDevice)
    assert found.device == CUDA
    assert "default" in found.rule


def test_without_a_default_the_machines_own_device_is_taken() -> None:
    assert resolve_device(object()).device == default_device()
    assert default_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_accelerate_numbers_are_accelerators() -> None:
    assert as_device(1) == torch.device("cuda:1")
    assert as_device(True) is None
    assert as_device("meta") is None
    assert as_device(3.5) is None


@pytest.mark.parametrize("default", ["meta", "no such device", 2.5])
def test_a_wrong_default_is_a_sentence(default: Any) -> None:
    with pytest.raises(ValueError, match=r"default is .* give a torch.device"):
        resolve_device(object(), default)


def test_what_the_resolver_finds_but_torch_does_not_know_falls_to_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_native, "resolve_device", lambda obj, default: ({}, "device"))
    found = resolve_device(object(), CUDA)
    assert found.device == CUDA
    assert found.rule == "default (device gave {}, which is no device)"
