"""Bytes of a pipeline's weights, on real (tiny) diffusers pipelines and on stand-ins."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import accelerate
import pytest
import torch
from torch import nn

from examples.demo.delight import tiny_pipeline
from hy3d_rocm.offload import components_of, current_mode, estimate

components_module = importlib.import_module("hy3d_rocm.offload.components")
measure = importlib.import_module("hy3d_rocm.offload.memory")


@pytest.fixture(autouse=True)
def _nothing_measured_before() -> Iterator[None]:
    measure._records.clear()
    yield
    measure._records.clear()


class ShapePipeline:
    """Hunyuan's shape pipeline as far as attributes go: no `components`, no hooks of its own."""

    def __init__(self, **modules: nn.Module) -> None:
        self.scheduler = object()
        self.main_device, self.offload_device = torch.device("cpu"), torch.device("cpu")
        for name, module in modules.items():
            setattr(self, name, module)


def bytes_of(module: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in [*module.parameters(), *module.buffers()])


def linear(inputs: int, outputs: int, dtype: torch.dtype = torch.float32) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=dtype)


def test_a_diffusers_pipeline_is_counted_by_component_parameters_and_buffers() -> None:
    pipeline = tiny_pipeline()
    found = estimate(pipeline)
    assert found.component_bytes == {
        name: bytes_of(getattr(pipeline, name)) for name in ("vae", "text_encoder", "unet")
    }
    assert found.parameter_bytes == sum(found.component_bytes.values())
    assert (found.activation_bytes, found.source) == (None, "not measured")
    assert any(True for _ in pipeline.text_encoder.buffers())  # or the test says less than its name


def test_half_precision_takes_half() -> None:
    pipeline = tiny_pipeline()
    whole = estimate(pipeline).component_bytes["unet"]
    pipeline.unet.half()
    assert estimate(pipeline).component_bytes["unet"] * 2 == whole


def test_hunyuans_shape_pipeline_is_counted_by_its_attributes() -> None:
    pipeline = ShapePipeline(model=linear(4, 8), conditioner=linear(2, 2, torch.float16))
    assert estimate(pipeline).component_bytes == {"model": 128, "conditioner": 8}


def test_a_pipeline_whose_properties_raise_is_counted_by_its_attributes() -> None:
    class Broken(ShapePipeline):
        @property
        def components(self) -> dict[str, Any]:
            raise RuntimeError("no components today")

    assert estimate(Broken(model=linear(4, 8))).component_bytes == {"model": 128}


def test_a_proxy_is_counted_as_the_pipeline_behind_it() -> None:
    from hy3d_rocm import PipelineProxy

    pipeline = tiny_pipeline()
    assert estimate(PipelineProxy(pipeline)) == estimate(pipeline)


def test_something_without_modules_has_no_weights() -> None:
    for strange in (object(), 3, None, ShapePipeline()):
        assert estimate(strange).parameter_bytes == 0


def test_tied_weights_count_once_within_a_component() -> None:
    embedding, head = nn.Embedding(10, 4), linear(4, 10)
    head.weight = embedding.weight
    assert estimate(ShapePipeline(model=nn.Sequential(embedding, head))).parameter_bytes == 160


def test_two_parameters_that_are_one_memory_count_once() -> None:
    first, second = linear(4, 8), linear(4, 8)
    second.weight = nn.Parameter(first.weight.detach())  # another object on the same storage
    assert estimate(ShapePipeline(model=nn.Sequential(first, second))).parameter_bytes == 128


def test_weights_shared_by_components_count_for_the_first() -> None:
    shared, own = linear(4, 8), linear(2, 2)
    pipeline = ShapePipeline(model=shared, conditioner=nn.Sequential(shared, own))
    assert estimate(pipeline).component_bytes == {"model": 128, "conditioner": 16}


def test_one_module_under_two_names_is_one_component() -> None:
    module = linear(4, 8)
    assert estimate(ShapePipeline(model=module, alias=module)).component_bytes == {"model": 128}


def test_shared_and_unsaved_buffers_count_once() -> None:
    table = torch.zeros(16)
    first, second = nn.Module(), nn.Module()
    first.register_buffer("table", table)
    second.register_buffer("table", table, persistent=False)
    assert estimate(ShapePipeline(model=nn.Sequential(first, second))).parameter_bytes == 64


def test_an_expanded_buffer_counts_as_large_as_it_gets_when_moved() -> None:
    module = nn.Module()
    module.register_buffer("mask", torch.zeros(1).expand(1000))
    assert estimate(ShapePipeline(model=module)).parameter_bytes == 4000


def test_empty_tensors_count_nothing() -> None:
    module = nn.Module()
    module.register_buffer("empty", torch.zeros(0))
    assert estimate(ShapePipeline(model=module)).component_bytes == {"model": 0}


def test_a_compiled_component_counts_as_the_one_inside() -> None:
    plain = linear(4, 8)
    compiled = torch.compile(plain)
    assert estimate(ShapePipeline(model=compiled)).component_bytes == {"model": 128}
    both = ShapePipeline(model=compiled, original=plain)
    assert estimate(both).component_bytes == {"model": 128, "original": 0}
    assert components_module.compiled_components(both) == ["model"]
    plain.compile()
    assert components_module.compiled_components(both) == ["model", "original"]


def test_weights_under_sequential_offload_count_by_shape() -> None:
    pipeline = tiny_pipeline()
    before = estimate(pipeline)
    pipeline.enable_sequential_cpu_offload(device="cpu")
    assert any(parameter.is_meta for parameter in pipeline.unet.parameters())
    assert current_mode(pipeline) == "sequential"
    assert estimate(pipeline).component_bytes == before.component_bytes


def test_tied_weights_under_sequential_offload_still_count_once() -> None:
    embedding, head = nn.Embedding(10, 4), linear(4, 10)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head)
    accelerate.cpu_offload(model, torch.device("cpu"))
    assert model[0].weight.is_meta
    assert model[1].weight is not model[0].weight  # the tie is gone from the modules
    assert estimate(ShapePipeline(model=model)).parameter_bytes == 160


def test_meta_weights_that_nobody_keeps_count_by_shape() -> None:
    with torch.device("meta"):
        model = linear(4, 8)
    assert estimate(ShapePipeline(model=model)).parameter_bytes == 128


class Packed(torch.Tensor):
    """A wrapper subclass as torchao's: float32 of shape (64, 64) to the outside, int8 + scales."""

    data8: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, data8: torch.Tensor, scale: torch.Tensor) -> Packed:
        return torch.Tensor._make_wrapper_subclass(cls, data8.shape, dtype=torch.float32)  # type: ignore[attr-defined]

    def __init__(self, data8: torch.Tensor, scale: torch.Tensor) -> None:
        self.data8, self.scale = data8, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["data8", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Packed(args[0].data8, args[0].scale)
        raise NotImplementedError(func)


def test_a_quantised_weight_counts_by_what_is_inside() -> None:
    module = nn.Module()
    packed = Packed(torch.zeros(64, 64, dtype=torch.int8), torch.zeros(64))
    module.weight = nn.Parameter(packed, requires_grad=False)
    assert estimate(ShapePipeline(model=module)).parameter_bytes == 64 * 64 + 64 * 4


def test_the_scales_beside_a_4_bit_weight_count() -> None:
    class State:
        def __init__(self, state2: Any = None) -> None:
            self.absmax, self.state2 = torch.zeros(32), state2

    module = nn.Module()
    weight = nn.Parameter(torch.zeros(1024, 1, dtype=torch.uint8), requires_grad=False)
    weight.quant_state = State(State())  # type: ignore[attr-defined]
    module.weight = weight
    assert estimate(ShapePipeline(model=module)).parameter_bytes == 1024 + 2 * 32 * 4


def test_the_mode_is_told_by_the_hooks() -> None:
    pipeline = tiny_pipeline()
    assert current_mode(pipeline) == "resident"
    pipeline.enable_model_cpu_offload(device="cpu")
    assert current_mode(pipeline) == "model"
    pipeline.remove_all_hooks()
    assert current_mode(pipeline) == "resident"


def test_a_hook_inside_a_sequence_of_hooks_is_found() -> None:
    module = linear(2, 2)
    accelerate.hooks.add_hook_to_module(module, accelerate.hooks.ModelHook())
    accelerate.cpu_offload_with_hook(module, torch.device("cpu"))
    assert isinstance(module._hf_hook, accelerate.hooks.SequentialHook)
    assert current_mode(ShapePipeline(model=module)) == "model"


def test_a_device_map_is_no_offload() -> None:
    module = linear(2, 2)
    hook = accelerate.hooks.AlignDevicesHook(execution_device=torch.device("cpu"))
    accelerate.hooks.add_hook_to_module(module, hook)
    assert current_mode(ShapePipeline(model=module)) == "resident"


def test_each_component_of_a_real_pipeline_is_found_by_name() -> None:
    assert list(components_of(tiny_pipeline())) == ["vae", "text_encoder", "unet"]
