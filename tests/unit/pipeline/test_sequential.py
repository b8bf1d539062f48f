"""Sequential offload by accelerate itself, executing on the CPU: weights read outside a forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from wrapper_pipelines import multiview, tiny_paint

from hy3d_rocm.pipeline import PipelineProxy, hooks
from hy3d_rocm.scopes import cuda_literals

accelerate = pytest.importorskip("accelerate")
CPU = torch.device("cpu")
META_ERROR = "Cannot copy out of meta tensor"


class Inner(torch.nn.Module):
    """A network with weights of its own beside its layers, as upstream's UNet has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.learned_gen = torch.nn.Parameter(torch.randn(1, 4))
        self.learned_ref = torch.nn.Parameter(torch.randn(1, 4), requires_grad=False)
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x + self.learned_gen)  # type: ignore[no-any-return]


class Outer(torch.nn.Module):
    """Reads a weight of its inner network in its own forward, when the inner one does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.unet = Inner()
        self.scale = torch.nn.Parameter(torch.rand(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        reference = self.unet.learned_ref.repeat(2, 1)
        return self.unet(x) + reference.sum() * self.unet.table.sum()  # type: ignore[no-any-return]


class Painter:
    """Reads weights outside every forward, then takes steps, as upstream's paint pipeline does."""

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(3)
            self.unet = Outer().eval()

    @torch.no_grad()
    def __call__(self, generator: Any, before_step: Callable[[int], None] | None = None) -> Any:
        x = torch.randn(2, 4, generator=generator)
        x = x + self.unet.unet.learned_gen.repeat(2, 1).to(x.device) * self.unet.scale
        for step in range(3):
            if before_step is not None:
                before_step(step)
            x = self.unet(x)
        return x


def offloaded(**options: Any) -> Painter:
    painter = Painter()
    accelerate.cpu_offload(painter.unet, CPU, offload_buffers=True, **options)
    return painter


def call(pipeline: Any, **options: Any) -> Any:
    return pipeline(generator=torch.Generator().manual_seed(1), **options)


def tensors(painter: Painter) -> list[torch.Tensor]:
    return [*painter.unet.parameters(), *painter.unet.buffers()]


def what_it_is(painter: Painter) -> list[Any]:
    """Everything that a call could leave behind in a module."""
    return [
        (
            sorted(vars(module)),
            [(name, one.device, one.requires_grad) for name, one in module.named_parameters()],
            [(name, one.device) for name, one in module.named_buffers()],
        )
        for module in painter.unet.modules()
    ]


@pytest.mark.parametrize("mode", ["stream", "per_image", "legacy"])
def test_weights_read_outside_a_forward_have_their_values(mode: Any) -> None:
    painter = offloaded()
    with pytest.raises(NotImplementedError, match=META_ERROR):
        call(painter)
    untouched = offloaded()
    assert torch.equal(call(PipelineProxy(painter, seed_mode=mode)), call(Painter()))
    assert what_it_is(painter) == what_it_is(untouched)


def test_every_weight_is_on_meta_before_and_after_and_most_are_during_a_call() -> None:
    painter, seen = offloaded(), []

    def look(step: int) -> None:
        seen.append(all(tensor.is_meta for tensor in tensors(painter)))
        assert painter.unet.unet.layer.weight.is_meta
        assert not painter.unet.unet.learned_ref.is_meta

    call(PipelineProxy(painter), before_step=look)
    assert seen == [True] * 3
    assert all(tensor.is_meta for tensor in tensors(painter))


class Cancelled(BaseException):
    """As ComfyUI's InterruptProcessingException is in 0.33."""


@pytest.mark.parametrize("error", [RuntimeError("HIP out of memory"), Cancelled("stop")])
@pytest.mark.parametrize("where", ["between steps", "inside a layer"])
def test_after_an_error_or_a_cancel_all_is_as_before(error: BaseException, where: str) -> None:
    painter, expected = offloaded(), call(Painter())
    before = what_it_is(painter)

    def stop(*_: Any) -> None:
        raise error

    handle, stop_between = None, stop
    if where == "inside a layer":
        stop_between = None  # type: ignore[assignment]
        handle = painter.unet.unet.layer.register_forward_pre_hook(stop)
    with pytest.raises(type(error)):
        call(PipelineProxy(painter), before_step=stop_between)
    if handle is not None:
        handle.remove()
    assert all(tensor.is_meta for tensor in tensors(painter))
    assert what_it_is(painter) == before
    assert torch.equal(call(PipelineProxy(painter)), expected)


def test_a_module_that_loads_its_parts_in_advance_works_too() -> None:
    painter = offloaded(preload_module_classes=["Inner"])
    assert torch.equal(call(PipelineProxy(painter)), call(Painter()))


def test_weights_beyond_the_limit_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    painter = offloaded()
    monkeypatch.setattr(hooks, "LIMIT_BYTES", 4 + 16 + 16)  # the scale and two of three rows
    with hooks.readable(painter):
        inner = painter.unet.unet
        shown = [inner.learned_gen, inner.learned_ref, inner.table]
        assert [tensor.is_meta for tensor in shown].count(True) == 1
        assert not painter.unet.scale.is_meta


def test_a_weight_that_is_set_anew_during_the_call_stays_set() -> None:
    painter = offloaded()
    fresh = torch.nn.Parameter(torch.ones(1, 4), requires_grad=False)
    with hooks.readable(painter):
        painter.unet.unet.learned_ref = fresh
    assert painter.unet.unet.learned_ref is fresh
    assert "learned_ref" not in vars(painter.unet.unet)


def test_pipelines_without_such_hooks_are_not_touched() -> None:
    painter = Painter()
    accelerate.cpu_offload_with_hook(painter.unet, CPU)  # as model offload does
    before = what_it_is(painter)
    for pipeline in (painter, painter.unet, print, object()):
        with hooks.readable(pipeline):
            assert "learned_ref" not in vars(painter.unet.unet)
        hooks.put_away(pipeline)
    assert what_it_is(painter) == before


def test_the_real_paint_pipeline_under_sequential_offload_gives_upstreams_bits() -> None:
    pipeline = tiny_paint()
    with cuda_literals("cpu"):
        plain = multiview(pipeline, 3)
        for part in pipeline.components.values():
            if isinstance(part, torch.nn.Module):
                accelerate.cpu_offload(part, CPU, offload_buffers=len(part._parameters) > 0)
        with pytest.raises(RuntimeError, match="META device type not an accelerator"):
            multiview(pipeline, 3)
        for mode in ("stream", "legacy"):
            assert torch.equal(multiview(PipelineProxy(pipeline, seed_mode=mode), 3), plain)
    parts = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    assert all(weight.is_meta for part in parts for weight in part.parameters())
