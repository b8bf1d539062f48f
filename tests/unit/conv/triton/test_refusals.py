"""What the Triton tier refuses, in words: a missing or broken Triton, a card nobody checked; and
tensors whose memory is not what they say."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from places import ROOT
from tier_calls import make_call

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.triton import configs, launch
from hy3d_rocm.conv.triton.work import Target
from tools.dev import variants

KERNEL = "hy3d_rocm.conv.triton.kernel"


@pytest.fixture
def fresh() -> Iterator[None]:
    """A process that has not yet looked for Triton."""
    launch.triton_problem.cache_clear()
    launch.kernel_problem.cache_clear()
    yield
    launch.triton_problem.cache_clear()
    launch.kernel_problem.cache_clear()


@pytest.fixture
def spec(fresh: None, monkeypatch: pytest.MonkeyPatch) -> ConvSpec:
    """A call on a card that is known."""
    monkeypatch.setattr(launch, "architecture", lambda device: "gfx1100")
    half = torch.float16
    made = make_call(torch.zeros(1, 8, 3, 9, 9, dtype=half), torch.zeros(8, 8, 3, 3, 3, dtype=half))
    return dataclasses.replace(made.spec, device=torch.device("cuda:0"))


def without_triton(code: str) -> str:
    """What code prints in a process whose triton is what `code` makes of it."""
    start = """
        import sys, types, dataclasses, torch
        sys.path.append({support})
        from tier_calls import make_call
        from hy3d_rocm.conv.tiers.triton import TritonTier
        from hy3d_rocm.conv.call import Limits
    """
    end = """
        from hy3d_rocm.conv.triton import launch
        launch.architecture = lambda device: "gfx1100"
        half = torch.float16
        call = make_call(torch.zeros(1, 8, 4, 4, 4, dtype=half), torch.zeros(8, 8, 1, 1, 1).half())
        call = dataclasses.replace(
            call, spec=dataclasses.replace(call.spec, device=torch.device("cuda:0")))
        one, other = (launch.refusal(call.spec) for _ in range(2))
        assert one == other == TritonTier().refusal(call, None)
        print(one)
    """
    text = "\n".join(map(textwrap.dedent, (start, code, end)))
    text = text.replace("{support}", repr(str(ROOT / "tests" / "support")))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_stub_in_the_place_of_triton_is_no_triton() -> None:
    said = without_triton("sys.modules['triton'] = types.ModuleType('triton')")
    assert "no" in said
    assert "stub" in said


@pytest.mark.parametrize("name", ["triton", "triton.language"])
def test_a_broken_triton_is_refused_with_its_own_words(
    spec: ConvSpec, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(wanted: str) -> Any:
        calls.append(wanted)
        raise OSError(f"{name}: libamdhip64.so.7 is missing")

    calls: list[str] = []
    monkeypatch.setattr(launch, "triton_problem", lambda: None)
    monkeypatch.setattr(importlib, "import_module", fail)
    said = launch.refusal(spec)
    assert said == f"Triton can't be imported (OSError: {name}: libamdhip64.so.7 is missing)"
    assert launch.refusal(spec) == said
    assert calls == [KERNEL], "it is not tried again"


@pytest.mark.parametrize(
    ("stub", "word"),
    [(types.ModuleType("triton"), "stub"), (None, "no triton"), (mock.MagicMock(), "")],
    ids=["module", "blocked", "mock"],
)
def test_what_others_put_under_tritons_name_is_found_out(
    spec: ConvSpec, stub: Any, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", stub)
    monkeypatch.delitem(sys.modules, KERNEL, raising=False)
    said = launch.refusal(spec)
    assert said is not None
    assert word in said


def test_without_triton_it_says_who_brings_it(
    spec: ConvSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    assert "PyTorch for ROCm brings it" in str(launch.refusal(spec))


def test_a_triton_that_is_one_is_taken(spec: ConvSpec) -> None:
    pytest.importorskip("triton", reason="no triton in this environment")
    assert launch.refusal(spec) is None
    assert launch.triton_problem() is None


@pytest.mark.parametrize("arch", ["gfx1250", "gfx1251", "gfx1170", "gfx12", "gfx906", "gfx1300"])
def test_a_card_nobody_checked_is_refused_with_the_way_to_help(
    spec: ConvSpec, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "architecture", lambda device: arch)
    said = launch.refusal(spec)
    assert said is not None
    assert f"never checked for {arch}" in said
    assert "docs/triton.md" in said
    title = said.split("'")[1]
    text = (ROOT / "docs" / "triton.md").read_text(encoding="utf-8")
    assert f"## {title}\n" in text


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1102", "gfx1153", "gfx1201", "gfx1036", "gfx942"])
def test_listed_cards_have_tiles(arch: str) -> None:
    assert configs.is_known(arch)
    assert all(configs.offered(arch, dtype) for dtype in variants.DTYPES)


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_sign_that_is_only_a_flag_is_in_the_memory_that_kernels_read(
    kernel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x.conj().imag is the memory of x.imag with a flag: kernels see an address."""
    seen: dict[str, torch.Tensor] = {}

    def note(made: Any, x: Any, weight: Any, bias: Any, out: Any) -> None:
        seen.update(x=x, weight=weight, bias=bias)

    def flagged(*size: int) -> torch.Tensor:
        # Dense in memory, so that nothing needs to copy it.
        return torch._neg_view(torch.randn(size, generator=generator))

    generator = torch.Generator().manual_seed(1)
    x, bias = flagged(1, 8, 3, 4, 8), flagged(8)
    weight = flagged(8, 8, *(kernel,) * 3)
    assert x.is_neg()
    monkeypatch.setattr(launch, "_carry_out", note)
    monkeypatch.setattr(launch, "target_of", lambda device: Target("gfx1100", 96))
    monkeypatch.setattr(launch, "architecture", lambda device: "gfx1100")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    launch.run(make_call(x, weight, bias))
    for name, wanted in (("x", x), ("weight", weight), ("bias", bias)):
        assert not seen[name].is_neg()
        assert torch.equal(seen[name], wanted)


def test_a_conjugate_is_no_dtype_of_the_kernel(spec: ConvSpec) -> None:
    complex_spec = dataclasses.replace(spec, dtype=torch.complex64)
    assert "complex64" in str(launch.refusal(complex_spec))
