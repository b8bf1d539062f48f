"""torch.ops.hy3d_rocm.conv3d: torch's own checks of an operator, compiled code, refusals.

Data are small integers, so every sum is exact and "equal" means bit for bit.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import how_much
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import hy3d_rocm
from hy3d_rocm.conv import conv3d_op
from hy3d_rocm.conv.custom_op import NAME

OP = torch.ops.hy3d_rocm.conv3d.default
LAST_3D = torch.channels_last_3d
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def integers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


X = integers(2, 4, 3, 6, 7)
WEIGHT = integers(6, 4, 3, 3, 3, seed=1)
BIAS = integers(6, seed=2)


def case(dtype: torch.dtype, groups: int, mode: str, bias: bool, layout: str) -> Any:
    """Arguments and keyword arguments of the operator."""
    x, weight = X.to(dtype), integers(6, 4 // groups, 3, 3, 3, dtype=dtype, seed=1)
    x = {
        "contiguous": x,
        "last": x.contiguous(memory_format=LAST_3D),
        "strided": x.transpose(3, 4),
        "empty": x[:0],
        "empty last": x.contiguous(memory_format=LAST_3D)[:0],
        "single": x[1],
    }[layout]
    options = {"padding_after": [0, 1, 2], "padding_mode": mode}
    given = (x, weight, BIAS.to(dtype) if bias else None, [1, 2, 1], [2, 1, 0], [1, 1, 2], groups)
    return given, options


# The settings in turns, so that each value of each meets several of the others. The gate's six have
# every value of each, twenty-four every type with every other layout.
CASES = sorted(
    {
        (str(FLOATS[i % 4])[6:], (1, 2)[i // 2 % 2], ("zeros", "replicate",
         "replicate,zeros,zeros")[i % 3], i % 5 != 0,
         ("contiguous", "last", "strided", "empty", "empty last", "single")[i % 6])
        for i in how_much.of((0, 2, 3, 4, 5, 7), range(24))
    }
)  # fmt: skip


@pytest.mark.parametrize(("dtype", "groups", "mode", "bias", "layout"), CASES)
def test_torch_s_own_checks_of_an_operator_pass(
    dtype: str, groups: int, mode: str, bias: bool, layout: str
) -> None:
    """Schema, autograd registration, fake results, and tracing with fixed and changing sizes."""
    arguments, options = case(getattr(torch, dtype), groups, mode, bias, layout)
    found = torch.library.opcheck(OP, arguments, options)
    assert set(found.values()) == {"SUCCESS"}, found
    assert len(found) == 4, found


def test_the_cases_have_every_value_of_every_setting() -> None:
    columns = [set(column) for column in zip(*CASES, strict=True)]
    assert [len(column) for column in columns] == [4, 2, 3, 2, 6]
    assert {(dtype, layout) for dtype, *_, layout in CASES} >= {
        ("bfloat16", "last"), ("float16", "strided"), ("float32", "contiguous"),
    }  # fmt: skip


def test_autograd_registration_passes_where_gradients_are_wanted() -> None:
    torch.library.opcheck(
        OP, (X, WEIGHT.clone().requires_grad_()), test_utils="test_autograd_registration"
    )


def any_call(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One call; in about half of them some arguments do not fit."""
    numbers = random.Random(seed)
    odd = 0.08 if numbers.random() < 0.7 else 0.0

    def one_of(good: Any, bad: Any) -> Any:
        return numbers.choice(bad if numbers.random() < odd else good)

    def triple(low: int, high: int, bad: int) -> list[int]:
        return [one_of(range(low, high + 1), (bad,)) for _ in range(3)]

    dtype, groups, channels = one_of(FLOATS, FLOATS), one_of((1, 1, 2), (3, 4, 0, -1)), 4
    x = integers(numbers.randrange(3), one_of((4,), (0, 3)), *triple(3, 6, 0), dtype=dtype)
    taken = one_of((channels // max(1, groups),), (1, 3))
    weight = integers(one_of((6,), (0, 5)), taken, *triple(1, 2, 0),
                      dtype=one_of((dtype,), FLOATS))  # fmt: skip
    bias = one_of((None, BIAS.to(dtype)), (BIAS[:5].to(dtype), BIAS.double(), X))
    layouts = [lambda t: t, lambda t: t.contiguous(memory_format=LAST_3D),
               lambda t: t.transpose(2, 4), lambda t: t[:, :, ::2], lambda t: t.sum(0)]  # fmt: skip
    x = one_of(layouts, (lambda t: t.sum((0, 1)), lambda t: t.long(), lambda t: t[None]))(x)
    options = {
        "padding_after": one_of((None, [0, 1, 2], [0, -1, 1]), ([1, 0, -9], [1, 2])),
        "padding_mode": one_of(("zeros", "replicate", "zeros,zeros,replicate"),
                               ("reflect", "zeros,zeros", "")),
        "accuracy": one_of((None, "exact", "fast"), ("best",)),
        "threads": one_of((None, 1, 2), (0, 2**40)),
        "workspace_limit": one_of((None, 2**28), (-1,)),
    }  # fmt: skip
    return (x, weight, bias, triple(1, 2, 0), triple(-1, 2, -9), triple(1, 2, 0), groups), options


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    """What a call leads to, without the numbers of the result."""
    try:
        made = call()
    except (ValueError, TypeError, RuntimeError) as error:
        return type(error).__name__, str(error)
    sizes = [tuple(int(number) for number in numbers) for numbers in (made.shape, made.stride())]
    return *sizes, made.dtype


def faked(mode: FakeTensorMode, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    with mode:
        fakes = (mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments)
        return outcome(lambda: OP(*fakes, **options))


def test_shapes_strides_and_refusals_are_known_without_computing() -> None:
    """Calls with fake tensors, of fixed sizes and of symbols, and with meta tensors end as the
    real one does, sentence for sentence."""
    good = 0
    for seed in range(how_much.of(200, 0), 400):  # the later ones have every refusal
        arguments, options = any_call(seed)
        real = outcome(lambda a=arguments, o=options: OP(*a, **o))
        good += isinstance(real[0], tuple)
        metas = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments]
        meta = outcome(lambda a=metas, o=options: OP(*a, **o))
        assert real == meta == faked(FakeTensorMode(), arguments, options), f"any_call({seed})"
        if seed % how_much.of(40, 16) == 0:  # slower by a hundred times
            symbols = faked(FakeTensorMode(shape_env=ShapeEnv()), arguments, options)
            assert real == symbols, f"any_call({seed})"
    assert how_much.of(65, 130) < good < how_much.of(135, 270), good


class Small(torch.nn.Module):
    """Convolutions with what compilers like to fuse around them."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(WEIGHT.to(dtype))
        self.second = torch.nn.Parameter(integers(4, 3, 3, 3, 3, dtype=dtype, seed=3))
        self.bias = torch.nn.Parameter(BIAS.to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = conv3d_op(x * 2, self.first, self.bias, padding=((2, 0), 1, 1),
                      padding_mode=("replicate", "zeros", "zeros"))  # fmt: skip
        y = torch.relu(y)
        y = conv3d_op(y, self.second, None, (1, 2, 2), padding=1, groups=2)
        return conv3d_op(y, self.second[:, :2], stride=1, padding="same", groups=2) + 1


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compilers() -> list[Any]:
    """Backends, and whether sizes may change: in the gate each backend with one of both."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    skip = pytest.mark.skipif(compiler is None, reason="inductor needs a C++ compiler: no g++ here")
    marks = {"aot_eager": [], "inductor": [skip, pytest.mark.timeout(300)]}
    every = how_much.in_turns(marks, (False, True))
    return [pytest.param(name, dynamic, marks=marks[name]) for name, dynamic in every]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("backend", "dynamic"), compilers())
def test_a_compiled_module_gives_the_bits_of_eager(backend: str, dynamic: bool) -> None:
    module = Small()
    compiled = torch.compile(module, fullgraph=True, backend=backend, dynamic=dynamic)
    inputs = [X, X.contiguous(memory_format=LAST_3D), integers(2, 4, 5, 8, 9, seed=4)]
    if backend == "inductor":  # each compiles for seconds
        inputs = inputs[::2] if dynamic else inputs[:1]
    with torch.no_grad():
        for x in inputs:
            wanted, made = module(x), compiled(x)
            assert torch.equal(made, wanted)
            assert (made.dtype, made.stride()) == (wanted.dtype, wanted.stride())


@pytest.mark.usefixtures("fresh_compiler")
def test_changing_sizes_are_compiled_once() -> None:
    made: list[int] = []

    def count(graph: Any, examples: Any) -> Any:
        made.append(1)
        return graph.forward

    compiled = torch.compile(Small(), fullgraph=True, backend=count, dynamic=True)
    with torch.no_grad():
        for size in ((3, 6, 7), (4, 9, 8), (5, 7, 11), (2, 12, 6)):
            x = integers(2, 4, *size)
            assert torch.equal(compiled(x), Small()(x))
    assert len(made) == 1


@pytest.mark.usefixtures("fresh_compiler")
def test_a_refusal_in_compiled_code_has_the_sentence() -> None:
    compiled = torch.compile(Small(), fullgraph=True, backend="aot_eager")
    with torch.no_grad(), pytest.raises(Exception, match="weight takes 4 channels a group but x"):
        compiled(X[:, :3])


def test_an_exported_module_gives_the_bits_of_eager() -> None:
    batch = torch.export.Dim("batch", min=1, max=8)
    module = Small().requires_grad_(requires_grad=False)
    program = torch.export.export(module, (X,), dynamic_shapes={"x": {0: batch}})
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert names.count("hy3d_rocm.conv3d.default") == 3
    x = integers(5, 4, 3, 6, 7, seed=5)
    assert torch.equal(program.module()(x), module(x))


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_operator_is_conv3d_bit_for_bit(dtype: torch.dtype) -> None:
    x, weight, bias = X.to(dtype), WEIGHT.to(dtype), BIAS.to(dtype)
    for padding, mode, accuracy in itertools.product(
        (0, "same", ((2, 0), 1, 0)), ("zeros", ("replicate", "zeros", "zeros")), (None, "fast")
    ):
        options: dict[str, Any] = {
            "padding": padding, "padding_mode": mode, "accuracy": accuracy, "threads": 2,
        }  # fmt: skip
        wanted = hy3d_rocm.conv3d(x, weight, bias, **options)
        assert torch.equal(conv3d_op(x, weight, bias, **options), wanted)
    assert torch.equal(OP(x, weight, bias), F.conv3d(x.double(), weight.double()).to(dtype)
                       + bias.reshape(1, -1, 1, 1, 1))  # fmt: skip


def test_nothing_that_is_passed_is_changed() -> None:
    given = (X.clone(), WEIGHT.clone(), BIAS.clone())
    versions = [tensor._version for tensor in given]
    OP(*given)
    assert all(torch.equal(*pair) for pair in zip(given, (X, WEIGHT, BIAS), strict=True))
    assert [tensor._version for tensor in given] == versions
    assert not torch.ops.hy3d_rocm.conv3d.default._schema.is_mutable


@pytest.mark.parametrize("which", ["x", "weight", "bias"])
@pytest.mark.parametrize("call", [OP, conv3d_op], ids=["operator", "function"])
def test_gradients_are_refused_in_a_sentence_and_no_grad_works(call: Any, which: str) -> None:
    given = {"x": X.clone(), "weight": WEIGHT.clone(), "bias": BIAS.clone()}
    given[which].requires_grad_()
    with pytest.raises(ValueError, match=f"{which} requires grad, and this conv3d has no backward"):
        call(*given.values())
    for quiet in (torch.no_grad, torch.inference_mode):
        with quiet():
            assert torch.equal(call(*given.values()), OP(X, WEIGHT, BIAS))


def test_other_devices_and_layouts_get_a_sentence() -> None:
    with FakeTensorMode():
        x = torch.empty(X.shape, device="cuda:0")
        with pytest.raises(ValueError, match=r"x is a torch.strided tensor on cuda:0: conv3d comp"):
            OP(x, torch.empty(WEIGHT.shape, device="cuda:0"))
    for x in (X.to_sparse(), X.to_mkldnn()):
        with pytest.raises(ValueError, match=r"x is a torch\.\w+ tensor on cpu: conv3d computes"):
            OP(x, WEIGHT)
    with pytest.raises(TypeError, match="weight is ndarray: conv3d_op takes torch tensors"):
        conv3d_op(X, WEIGHT.numpy())  # type: ignore[arg-type]


REGISTERED = """
import importlib, sys, hy3d_rocm, hy3d_rocm.conv
assert 'torch' not in sys.modules
import torch
assert not hasattr(torch.ops.hy3d_rocm, 'conv3d')
hy3d_rocm.conv3d
assert not hasattr(torch.ops.hy3d_rocm, 'conv3d')
hy3d_rocm.conv.conv3d_op
print(torch.ops.hy3d_rocm.conv3d.default.name())
module = importlib.reload(sys.modules['hy3d_rocm.conv.custom_op'])
x = torch.ones(1, 1, 2, 2, 2)
assert module.conv3d_op(x, x).item() == 8
makes = torch.library.custom_op
del torch.library.custom_op
try:
    importlib.reload(module)
except RuntimeError as error:
    print(error)
torch.library.custom_op = makes
"""
WITHOUT_THE_CORE = """
for name in [name for name in sys.modules if name.partition('.')[0] == 'hy3d_rocm']:
    del sys.modules[name]
sys.modules['hy3d_rocm._core'] = None
import hy3d_rocm
from hy3d_rocm.conv import conv3d_op
for call in (hy3d_rocm.conv3d, conv3d_op, torch.ops.hy3d_rocm.conv3d):
    for place in ('cpu', 'meta'):
        try:
            call(x.to(place), x.to(place))
        except Exception as error:
            print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What a new process says in which torch is imported late, and the package twice: the second
    time without the core."""
    made = subprocess.run(
        [sys.executable, "-c", REGISTERED + WITHOUT_THE_CORE],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-2000:]
    return made.stdout.splitlines()


def test_the_operator_is_registered_at_the_first_use_and_again_by_a_second_import(
    said: list[str],
) -> None:
    """And a torch without torch.library.custom_op gets a sentence."""
    name, refusal = said[:2]
    assert name == NAME
    assert "conv3d needs torch 2.4 or later" in refusal


def test_without_the_core_the_operator_refuses_as_conv3d_does(said: list[str]) -> None:
    refusals = said[2:]
    assert len(refusals) == 6, said
    assert len(set(refusals)) == 1, said
