"""scopes: "cuda" literals on a machine without one, and draws that name no generator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from hy3d_rocm import scopes
from hy3d_rocm.scopes import cuda_literals, global_draws

CPU = torch.device("cpu")
SEED = 11

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
needs_none = pytest.mark.skipif(torch.cuda.is_available(), reason="cuda means an accelerator here")


def channels_last(*shape: int, device: Any = "cpu") -> torch.Tensor:
    return torch.zeros(*shape, device=device).to(memory_format=torch.channels_last)


# Every way in which torch gives out numbers without being given a generator; d is a device.
DRAWS: dict[str, Callable[[Any], Any]] = {
    "randn": lambda d: torch.randn(3, 7, device=d),
    "randn, shape as a tuple, half": lambda d: torch.randn((40,), dtype=torch.half, device=d),
    "randn, generator=None": lambda d: torch.randn(5, generator=None, device=d),
    "randn, out": lambda d: torch.randn(4, out=torch.empty(4, dtype=torch.double, device=d)),
    "randn, leaf": lambda d: torch.randn(4, device=d, requires_grad=True),
    "rand": lambda d: torch.rand(33, device=d),
    "randint": lambda d: torch.randint(9, (20,), device=d),
    "randint, low": lambda d: torch.randint(-5, 9, (20,), device=d),
    "randperm": lambda d: torch.randperm(50, device=d),
    "normal, numbers": lambda d: torch.normal(1.0, 2.0, (20,), device=d),
    "normal, tensors": lambda d: torch.normal(torch.ones(6, device=d), torch.ones(6, device=d)),
    "normal, one tensor": lambda d: torch.normal(torch.ones(6, device=d), 2.0),
    "bernoulli": lambda d: torch.bernoulli(torch.full((30,), 0.4, device=d)),
    "bernoulli, out": lambda d: torch.bernoulli(
        torch.full((30,), 0.4, device=d), out=torch.empty(30, device=d)
    ),
    "bernoulli, method": lambda d: torch.full((30,), 0.4, device=d).bernoulli(),
    "multinomial": lambda d: torch.multinomial(torch.ones(9, device=d), 4),
    "multinomial, method": lambda d: torch.ones(9, device=d).multinomial(40, replacement=True),
    "poisson": lambda d: torch.poisson(torch.full((30,), 3.0, device=d)),
    "binomial": lambda d: torch.binomial(
        torch.full((30,), 9.0, device=d), torch.full((30,), 0.3, device=d)
    ),
    "gamma": lambda d: torch._standard_gamma(torch.full((30,), 2.0, device=d)),
    "dirichlet": lambda d: torch._sample_dirichlet(torch.full((3, 3), 2.0, device=d)),
    "rand_like": lambda d: torch.rand_like(torch.zeros(2, 9, device=d)),
    "randn_like": lambda d: torch.randn_like(torch.zeros(2, 9, device=d)),
    "randn_like, other device": lambda d: torch.randn_like(torch.zeros(2, 9), device=d),
    "randn_like, channels last": lambda d: torch.randn_like(channels_last(1, 3, 5, 5, device=d)),
    "randn_like, another type": lambda d: torch.randn_like(
        torch.zeros(30, device=d), dtype=torch.bfloat16, requires_grad=True
    ),
    "randint_like": lambda d: torch.randint_like(torch.zeros(20, device=d), 9),
    "randint_like, low": lambda d: torch.randint_like(torch.zeros(20, device=d), low=-4, high=9),
    "normal_": lambda d: torch.zeros(20, device=d).normal_(),
    "normal_, every second": lambda d: torch.zeros(40, device=d)[::2].normal_(2.0, 3.0),
    "normal_, channels last": lambda d: channels_last(1, 3, 5, 5, device=d).normal_(),
    "uniform_": lambda d: torch.zeros(20, device=d).uniform_(-1, 1),
    "exponential_": lambda d: torch.zeros(20, device=d).exponential_(),
    "cauchy_": lambda d: torch.zeros(20, device=d).cauchy_(),
    "geometric_": lambda d: torch.zeros(20, device=d).geometric_(0.3),
    "log_normal_": lambda d: torch.zeros(20, device=d).log_normal_(),
    "random_": lambda d: torch.zeros(20, dtype=torch.int64, device=d).random_(1000),
    "bernoulli_, number": lambda d: torch.zeros(20, device=d).bernoulli_(0.4),
    "bernoulli_, tensor": lambda d: torch.zeros(20, device=d).bernoulli_(
        torch.full((20,), 0.4, device=d)
    ),
    "init.normal_": lambda d: torch.nn.init.normal_(torch.zeros(20, device=d)),
    "init.uniform_": lambda d: torch.nn.init.uniform_(torch.zeros(20, device=d)),
    "init.kaiming_uniform_": lambda d: torch.nn.init.kaiming_uniform_(torch.zeros(4, 5, device=d)),
    "init.xavier_normal_": lambda d: torch.nn.init.xavier_normal_(torch.zeros(4, 5, device=d)),
    "init.trunc_normal_": lambda d: torch.nn.init.trunc_normal_(torch.zeros(40, device=d)),
    "Linear": lambda d: torch.nn.Linear(5, 6, device=d).weight,
    "distributions": lambda d: torch.distributions.Normal(torch.zeros(9, device=d), 1.0).sample(),
}


class OnTheCpu(TorchFunctionMode):
    """Draws as the scope does for an accelerator, with the CPU as that accelerator."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in scopes.RANDOM:
            return func(*args, **kwargs)
        return scopes._draw_for(CPU, func, args, kwargs, self.generator)


def globally(draw: Callable[[Any], Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """What a seeded global generator gives, and the state it is left in. The old state returns."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)
        return draw(CPU), torch.get_rng_state()


def assert_same(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(result.cpu(), expected)
    assert result.dtype == expected.dtype
    assert result.stride() == expected.stride()
    assert result.requires_grad == expected.requires_grad


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_has_the_bits_of_a_seeded_global_generator(name: str) -> None:
    expected, state = globally(DRAWS[name])
    for scope in (global_draws, OnTheCpu):
        generator, before = torch.Generator().manual_seed(SEED), torch.get_rng_state()
        with scope(generator):
            result = DRAWS[name](CPU)
        assert_same(result, expected)
        assert torch.equal(generator.get_state(), state)
        assert torch.equal(torch.get_rng_state(), before)


@needs_gpu
@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_for_an_accelerator_has_the_bits_of_the_cpu(name: str) -> None:
    expected, state = globally(DRAWS[name])
    generator, before = torch.Generator().manual_seed(SEED), torch.cuda.get_rng_state()
    with global_draws(generator):
        result = DRAWS[name](torch.device("cuda"))
    assert result.device.type == "cuda"
    if "multinomial" not in name and "init.trunc" not in name and "init.kai" not in name:
        assert_same(result, expected)
    assert torch.equal(generator.get_state(), state)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_every_function_of_torch_that_takes_a_generator_is_known() -> None:
    """The operators' own schemas are asked, so that a new torch with a new function fails here."""
    schemas = torch._C._jit_get_all_schemas()
    names = {
        schema.name.removeprefix("aten::")
        for schema in schemas
        if schema.name.startswith("aten::")
        and any("Generator" in str(argument.type) for argument in schema.arguments)
    }
    assert len(names) > 25
    left_alone = {  # no way to bring a generator from Python, or no draw
        "_fused_dropout", "initial_seed", "manual_seed", "seed", "rrelu", "rrelu_",
        "rrelu_with_noise", "rrelu_with_noise_", "rrelu_with_noise_functional",
    }  # fmt: skip
    for name in names - left_alone:
        for home in (torch, torch.Tensor):
            function = getattr(home, name, None)
            assert not callable(function) or function in scopes.RANDOM, f"{home.__name__}.{name}"


def test_the_generator_of_a_call_is_left_alone() -> None:
    theirs, ours = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    untouched = ours.get_state()
    expected = torch.randn(4, generator=torch.Generator().manual_seed(1))
    with global_draws(ours):
        assert torch.equal(torch.randn(4, generator=theirs), expected)
        torch.poisson(torch.ones(3), theirs)
        torch.zeros(3).normal_(generator=theirs)
    assert torch.equal(ours.get_state(), untouched)


def test_diffusers_randn_tensor_is_reached() -> None:
    randn_tensor = pytest.importorskip("diffusers.utils.torch_utils").randn_tensor
    draw = lambda device: randn_tensor((2, 3), device=device, dtype=torch.half)  # noqa: E731
    expected, _ = globally(draw)
    with global_draws(torch.Generator().manual_seed(SEED)):
        assert_same(draw(CPU), expected)


def test_no_numbers_are_spent_on_meta_tensors() -> None:
    generator = torch.Generator().manual_seed(SEED)
    before = generator.get_state()
    with global_draws(generator):
        assert torch.randn(3, device="meta").is_meta
        assert torch.zeros(3, device="meta").normal_().is_meta
    assert torch.equal(generator.get_state(), before)


def test_nested_draws_belong_to_the_inner_scope_until_it_ends() -> None:
    outer, inner = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    with global_draws(outer):
        first = torch.randn(3)
        with global_draws(inner):
            middle = torch.randn(3)
        with pytest.raises(KeyError), global_draws(inner):
            raise KeyError
        last = torch.randn(3)
    again = torch.Generator().manual_seed(1)
    assert torch.equal(first, torch.randn(3, generator=again))
    assert torch.equal(last, torch.randn(3, generator=again))
    assert torch.equal(middle, torch.randn(3, generator=torch.Generator().manual_seed(2)))
    assert _get_current_function_mode_stack() == []


def test_a_scope_ends_at_its_own_thread() -> None:
    seen: list[Any] = []
    generator = torch.Generator().manual_seed(1)
    with global_draws(generator), cuda_literals("meta"):
        before = generator.get_state()
        thread = threading.Thread(target=lambda: seen.append(torch.randn(2, device="cpu")))
        thread.start()
        thread.join()
        assert torch.equal(generator.get_state(), before)
    assert seen[0].device == CPU


def test_a_generator_of_an_accelerator_is_refused_in_a_sentence() -> None:
    class Elsewhere(torch.Generator):
        device = torch.device("cuda")

    with (
        pytest.raises(ValueError, match=r"the generator is on cuda.*give one made by"),
        global_draws(Elsewhere()),
    ):
        pass


LITERALS: dict[str, Callable[[], Any]] = {
    "to": lambda: torch.zeros(2).to("cuda"),
    "to, dtype": lambda: torch.zeros(2).to("cuda:0", torch.half, non_blocking=True),
    "to, keyword": lambda: torch.zeros(2).to(device="cuda:0"),
    "to, device": lambda: torch.zeros(2).to(torch.device("cuda")),
    "to, number": lambda: torch.zeros(2).to(0),
    "half, then to": lambda: torch.zeros(2).half().to("cuda"),
    "cuda": lambda: torch.zeros(2).cuda(),
    "cuda, number": lambda: torch.zeros(2).cuda(0, True),
    "cuda, keywords": lambda: torch.zeros(2).cuda(
        device="cuda:0", non_blocking=True, memory_format=torch.contiguous_format
    ),
    "zeros": lambda: torch.zeros(2, device="cuda"),
    "tensor": lambda: torch.tensor([1, 2], device="cuda:0"),
    "as_tensor": lambda: torch.as_tensor([1, 2], device=torch.device("cuda", 0)),
    "arange": lambda: torch.arange(4, device="cuda"),
    "full_like": lambda: torch.full_like(torch.zeros(2), 3, device="cuda"),
    "new_zeros": lambda: torch.zeros(2).new_zeros(3, device="cuda"),
    "randn": lambda: torch.randn(2, device="cuda"),
    "default device": lambda: default_device_zeros(),
    "Module.to": lambda: torch.nn.Linear(2, 2).to("cuda").weight,
    "Module.to, dtype": lambda: torch.nn.Linear(2, 2).to("cuda", torch.half).bias,
    "Module.to, device": lambda: torch.nn.Linear(2, 2).to(device=torch.device("cuda")).weight,
    "Module.cuda": lambda: torch.nn.BatchNorm1d(2).cuda().running_mean,
    "Module, made there": lambda: torch.nn.Linear(2, 2, device="cuda").weight,
}


def default_device_zeros() -> torch.Tensor:
    with torch.device("cuda"):
        return torch.zeros(2)


@needs_none
@pytest.mark.parametrize("name", LITERALS)
def test_a_cuda_literal_means_the_execution_device(name: str) -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        LITERALS[name]()
    for device in ("cpu", "meta"):
        with cuda_literals(device) as target:
            assert LITERALS[name]().device == target


def test_arguments_beside_the_device_are_kept() -> None:
    with cuda_literals("cpu"):
        assert torch.zeros(2).to("cuda", torch.half).dtype == torch.half
        moved = torch.zeros(1, 2, 3, 3).cuda(memory_format=torch.channels_last)
        assert moved.is_contiguous(memory_format=torch.channels_last)
        assert torch.zeros(2).to(torch.int32).dtype == torch.int32
        assert torch.zeros(2).to("meta").is_meta
        assert torch.zeros(2, device="meta").to(torch.zeros(1, device="meta")).is_meta
        assert torch.device("cuda").type == "cuda"


@needs_none
def test_literals_and_draws_nest_in_any_order() -> None:
    expected, _ = globally(lambda device: torch.randn(9, device=device))
    for first, second in ((0, 1), (1, 0)):
        scopes = (cuda_literals("cpu"), global_draws(torch.Generator().manual_seed(SEED)))
        with scopes[first], scopes[second]:
            assert torch.equal(torch.randn(9, device="cuda"), expected)
    assert _get_current_function_mode_stack() == []


@needs_none
def test_a_literal_scope_ends_with_an_exception() -> None:
    with cuda_literals("meta"):
        with pytest.raises(KeyError), cuda_literals("cpu"):
            raise KeyError
        assert torch.zeros(2).cuda().is_meta
    assert _get_current_function_mode_stack() == []


def test_an_accelerator_as_execution_device_costs_no_mode() -> None:
    for device in ("cuda", "cuda:0"):
        with cuda_literals(device) as target:
            assert _get_current_function_mode_stack() == []
            assert target == torch.device(device)


@needs_gpu
def test_on_an_accelerator_its_number_becomes_the_current_one() -> None:
    last = torch.cuda.device_count() - 1
    with cuda_literals(f"cuda:{last}"):
        assert torch.zeros(1, device="cuda").device == torch.device("cuda", last)
    with cuda_literals("cpu"):
        assert torch.zeros(1).cuda().device == CPU


@needs_none
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_in_a_scope_runs_whole_and_right(backend: str) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            moved = x.to("cuda") + torch.ones(4, device="cuda") + torch.zeros(4).cuda()
            return F.relu(self.linear(moved))

    torch._dynamo.reset()
    block, x = Block(), torch.ones(2, 4)
    compiled = torch.compile(block, backend=backend, fullgraph=True)
    for _ in range(3):
        with torch.no_grad(), cuda_literals("cpu"):
            expected = block(x)
            assert torch.equal(compiled(x), expected)
            with global_draws(torch.Generator()):
                assert torch.equal(compiled(x), expected)
    with torch.no_grad():
        plain = torch.compile(block.linear, backend=backend, fullgraph=True)
        assert torch.equal(plain(x), block.linear(x))
