"""protect() where gradients are wanted: routed forward, backward with another way, nothing lost."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import how_much
import pytest
import torch
import torch.nn.functional as F
from router_doubles import ScriptedTier, SmallNet, cpu_tier, guarded, integers, raising

from hy3d_rocm.conv import faults, forget, functional, gradients
from hy3d_rocm.conv.faults import Fault, inject_faults
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.tiers import CurrentTier, NativeTier, base

pytestmark = pytest.mark.usefixtures("nothing_remembered", "_gradients")
TIERS: dict[str, Callable[[], Any]] = {
    "current": CurrentTier, "native": NativeTier, "cpu": cpu_tier,
}  # fmt: skip
# x, weight, and what conv takes; whole numbers so small that every sum is exact in float32.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 2, 4, 6, 5), (3, 2, 3, 3, 3), {}),
    "padded": ((1, 2, 4, 6, 5), (3, 2, 3, 3, 3), {"padding": 1}),
    "strides": ((1, 2, 5, 7, 8), (3, 2, 3, 3, 2), {"stride": (2, 3, 2), "padding": (1, 0, 1)}),
    "dilated": ((1, 2, 6, 7, 7), (2, 2, 2, 3, 3), {"dilation": (3, 2, 1), "padding": (0, 2, 1)}),
    "groups": ((2, 4, 3, 5, 5), (6, 2, 2, 3, 3), {"groups": 2, "padding": (1, 1, 1)}),
    "depthwise": ((1, 3, 3, 5, 5), (6, 1, 3, 3, 3), {"groups": 3, "stride": 2, "padding": 1}),
    "more padding than kernel": ((1, 2, 3, 4, 4), (2, 2, 1, 2, 1), {"padding": (2, 3, 1)}),
    "wide stride": ((1, 2, 7, 9, 9), (2, 2, 1, 2, 2), {"stride": (5, 4, 3), "padding": (3, 1, 1)}),
    "same": ((1, 2, 4, 6, 5), (3, 2, 2, 4, 3), {"padding": "same", "dilation": (1, 1, 2)}),
    "valid": ((1, 2, 4, 6, 5), (3, 2, 2, 2, 3), {"padding": "valid"}),
    "no batch": ((2, 4, 6, 5), (3, 2, 3, 3, 3), {"padding": 1}),
    "2d": ((2, 2, 6, 5), (3, 2, 3, 3), {"padding": 1, "stride": 2}),
    "2d same, no batch": ((2, 6, 5), (4, 1, 2, 3), {"padding": "same", "groups": 2}),
}  # fmt: skip


def backward_faults(broken: bool) -> list[Fault]:
    """None, or those that fail PyTorch's own backward each time."""
    return [Fault("current", f"conv{n}d_backward") for n in (2, 3)] if broken else []


@pytest.fixture
def _gradients() -> Iterator[None]:
    with torch.inference_mode(False), torch.enable_grad():
        yield


def operands(case: str, bias: bool = True, dtype: torch.dtype = torch.float32) -> list[Any]:
    size, weight, _ = CASES[case]
    made = [integers(*size, seed=1), integers(*weight, seed=2)]
    made += [integers(weight[0], seed=3)] if bias else []
    return [t.to(dtype).requires_grad_() for t in made] + [None] * (not bias)


def conv_of(case: str) -> Callable[..., torch.Tensor]:
    _, weight, options = CASES[case]
    conv: Any = F.conv3d if len(weight) == 5 else F.conv2d
    return lambda x, w, b: conv(x, w, b, **options)


def grads_of(function: Callable[..., torch.Tensor], given: list[Any]) -> list[torch.Tensor]:
    """The result, and the gradients of all that require them, for a gradient of whole numbers."""
    out = function(*given)
    wanted = [t for t in given if t is not None and t.requires_grad]
    return [out, *torch.autograd.grad(out, wanted, integers(*out.shape, seed=7).to(out.dtype))]


def same(got: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(
        torch.equal(a, b) and (a.dtype, a.device) == (b.dtype, b.device)
        for a, b in zip(got, expected, strict=True)
    )


@pytest.mark.parametrize(
    ("of", "way"),
    how_much.in_turns(itertools.product(CASES, TIERS), ((True, False), (False, True), (True, True),
                                                        (False, False))),
    ids=str,
)  # fmt: skip
def test_results_and_gradients_are_those_of_plain_autograd(
    of: tuple[str, str], way: tuple[bool, bool]
) -> None:
    """way: with a bias; where the backward fails."""
    (case, tier), (bias, broken) = of, way
    given = operands(case, bias)
    expected = grads_of(conv_of(case), given)
    with (
        inject_faults(backward_faults(broken)) as injected,
        protect(tiers=[TIERS[tier]()]) as guard,
    ):
        got = grads_of(conv_of(case), given)
    assert same(got, expected)
    assert guard.stats.passed_through == 0
    assert guard.stats.rows
    assert {r.tier for r in guard.stats.rows.values() if not r.op.endswith("backward")} == {tier}
    assert sum(f.fired for f in injected) == broken
    assert guard.stats.recovered == guard.stats.failures == broken


@pytest.mark.parametrize("broken", [False, True], ids=["", "backward fails"])
@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1)])
def test_only_what_is_wanted_gets_a_gradient(wanted: tuple[int, ...], broken: bool) -> None:
    given = [
        t.detach().requires_grad_(bool(w)) for t, w in zip(operands("groups"), wanted, strict=True)
    ]
    expected = grads_of(conv_of("groups"), given)
    with inject_faults(backward_faults(broken)), guarded():
        assert same(grads_of(conv_of("groups"), given), expected)


@pytest.mark.parametrize("broken", [False, True], ids=["", "backward fails"])
@pytest.mark.parametrize("case", ["strides", "dilated", "groups", "same", "no batch", "2d"])
def test_derivatives_of_both_orders_are_right(case: str, broken: bool) -> None:
    given = operands(case, dtype=torch.float64)
    with inject_faults(backward_faults(broken)), guarded():
        assert torch.autograd.gradcheck(conv_of(case), given, fast_mode=True)
        assert torch.autograd.gradgradcheck(conv_of(case), given, fast_mode=True)


@pytest.mark.parametrize("mode", ["zeros", "replicate", "circular", "reflect"])
@pytest.mark.parametrize("tier", TIERS)
def test_layers_of_every_padding_mode_are_routed(mode: str, tier: str) -> None:
    layer = torch.nn.Conv3d(2, 3, 3, padding=1, padding_mode=mode)
    for index, parameter in enumerate(layer.parameters()):
        parameter.data = integers(*parameter.shape, high=1, seed=index)
    x = integers(2, 2, 4, 5, 6)
    layer(x).sum().backward()
    expected = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad()
    with protect(tiers=[TIERS[tier]()]) as guard:
        layer(x).sum().backward()
    assert same([p.grad for p in layer.parameters() if p.grad is not None], expected)
    assert guard.stats.calls == 1


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("broken", [False, True], ids=["", "backward fails"])
def test_any_layout_is_taken_and_the_format_kept(tier: str, broken: bool) -> None:
    x, weight, bias = operands("padded")
    kind = torch.channels_last_3d
    layouts = [
        x.detach().contiguous(memory_format=kind),
        x.detach().transpose(3, 4).contiguous().transpose(3, 4),
        torch.cat([x.detach()] * 2, -1)[..., ::2].clone()[..., :],
        x.detach()[:, :1].expand(-1, 2, -1, -1, -1),
    ]
    for layout in layouts:
        given = [layout.requires_grad_(), weight, bias]
        expected = grads_of(conv_of("padded"), given)
        with inject_faults(backward_faults(broken)), protect(tiers=[TIERS[tier]()]):
            got = grads_of(conv_of("padded"), given)
        assert same(got, expected)
        if tier == "current":
            assert got[0].stride() == expected[0].stride()
        elif layout.is_contiguous(memory_format=kind):
            assert got[0].is_contiguous(memory_format=kind)


@pytest.mark.parametrize("tier", TIERS)
def test_autocast_casts_and_gradients_come_back_in_float32(tier: str) -> None:
    # High 1: sums stay below 256, so they are whole numbers in bfloat16 as well.
    given = [integers(*s, high=1, seed=i).requires_grad_() for i, s in
             enumerate(((1, 2, 3, 5, 5), (3, 2, 3, 3, 3), (3,)))]  # fmt: skip
    with torch.autocast("cpu", torch.bfloat16):
        expected = grads_of(conv_of("plain"), given)
        with protect(tiers=[TIERS[tier]()]) as guard:
            got = grads_of(conv_of("plain"), given)
    assert got[0].dtype is torch.bfloat16
    assert same(got, expected)
    assert guard.stats.calls == 1


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "backward after the scope"])
def test_checkpointing_gives_the_same_gradients(reentrant: bool, inside: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    net, x = SmallNet(), integers(2, 2, 4, 6, 6, seed=9).requires_grad_()
    (expected,) = torch.autograd.grad(net(x).sum(), x)
    net.zero_grad()
    with guarded(tiers=[cpu_tier()]) as guard:
        out = checkpoint(net, x, use_reentrant=reentrant).sum()
        if inside:
            out.backward()
    if not inside:
        out.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, expected)
    assert guard.stats.calls == net.calls  # PyTorch keeps scopes out of what it computes again


def test_saved_tensors_are_autograds_and_nothing_else_holds_them() -> None:
    import gc
    import weakref

    x, weight, _ = operands("plain")
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (kept.append(t.numel()), t.detach().clone())[1], lambda t: t
    ), guarded():  # fmt: skip
        inner = x * 2
        out = F.conv3d(inner, weight)
    assert kept[-2:] == [inner.numel(), weight.numel()]
    seen = weakref.ref(inner)
    del inner
    gc.collect()
    assert seen() is None
    out.sum().backward()


def test_what_is_changed_after_the_call_is_noticed_as_by_pytorch() -> None:
    x, weight, _ = operands("plain")
    with guarded():
        inner = x * 1
        out = F.conv3d(inner, weight)
    inner.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("case", ["plain", "no batch", "2d"])
@pytest.mark.parametrize("tier", TIERS)
def test_a_result_may_be_changed_in_place(case: str, tier: str) -> None:
    given = operands(case)
    expected = grads_of(lambda *a: conv_of(case)(*a).relu_(), given)
    with protect(tiers=[TIERS[tier]()]):
        got = grads_of(lambda *a: conv_of(case)(*a).relu_(), given)
    assert same(got, expected)


def test_tensors_of_inference_mode_are_answered_as_by_pytorch() -> None:
    with torch.inference_mode():
        x = integers(1, 2, 4, 5, 5)
    weight = integers(3, 2, 3, 3, 3)
    with guarded() as guard:
        assert torch.equal(F.conv3d(x, weight), F.conv3d(x, weight))
        assert guard.stats.calls == 2
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            F.conv3d(x, weight.requires_grad_())


def test_a_failure_forward_is_recovered_with_gradients_and_remembered() -> None:
    net, x = SmallNet(), integers(2, 2, 4, 6, 6, seed=9)
    net(x).sum().backward()
    expected = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    for _ in range(2):
        net.zero_grad()
        with inject_faults([Fault("current"), Fault("native")]), guarded() as guard:
            net(x).sum().backward()
        assert same([p.grad for p in net.parameters() if p.grad is not None], expected)
        assert {r.tier for r in guard.stats.rows.values() if r.calls > r.failures} >= {"cpu"}
    net.zero_grad()
    forget()
    with protect(policy="pin:cpu") as guard:
        net(x).sum().backward()
    assert guard.stats.calls == net.calls
    assert guard.stats.passed_through == 0


@pytest.mark.parametrize(
    "text", [faults.MIOPEN_NO_ALGORITHM, faults.MIOPEN_INTERNAL, faults.HIP_OOM]
)
def test_a_backward_that_failed_is_said_and_not_tried_again(
    text: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where another process gives memory back, what had too little is rightly tried again.
    monkeypatch.setattr(base, "free_bytes", lambda device: 0)
    given = operands("strides")
    expected = grads_of(conv_of("strides"), given)
    caplog.set_level(logging.WARNING, "hy3d_rocm")
    with inject_faults(Fault("current", "conv3d_backward", text)) as (fault,), guarded() as guard:
        for _ in range(3):
            assert same(grads_of(conv_of("strides"), given), expected)
    assert fault.fired == 1
    lines = [m for m in caplog.messages if m.startswith("conv3d_backward 1x2x5x7x8 -> 3, f32: ")]
    assert len(lines) == 1
    assert lines[0].endswith("instead: a convolution of the gradient, and matrix products")
    row = guard.stats.rows["conv3d_backward", "1x2x5x7x8 -> 3", "f32", "gemm"]
    assert (row.calls, row.failures) == (3, 0)


def test_where_every_backward_fails_the_first_exception_is_raised() -> None:
    given = operands("plain")
    every = [Fault("current", "conv3d_backward", faults.MIOPEN_UNKNOWN)]
    every += [Fault("gemm", "conv3d_backward", faults.HIP_OOM)]
    unknown = pytest.raises(RuntimeError, match="miopenStatusUnknownError")
    with inject_faults(every), guarded() as guard, unknown:
        grads_of(conv_of("plain"), given)
    assert guard.stats.raised == 1
    forget()
    own = Fault("current", "conv3d_backward", "an error of the caller", exception=KeyError)
    with inject_faults(own), guarded(), pytest.raises(KeyError, match="an error of the caller"):
        grads_of(conv_of("plain"), given)
    full = Fault("current", "conv3d_backward", faults.HIP_OOM)
    with inject_faults(full), guarded(on_oom="raise"), pytest.raises(RuntimeError, match="HIP out"):
        grads_of(conv_of("plain"), given)


@pytest.mark.parametrize(
    ("current", "pinned", "first", "trusted"),
    [
        ("native", None, None, True), ("vendor", None, None, False),
        ("vendor", "gemm", None, False), ("vendor", "vendor", None, True),
        ("vendor", None, "current", True),
        ("vendor", None, "native", False),
    ],
)  # fmt: skip
def test_miopens_backward_comes_first_only_where_it_was_asked_for(
    current: str, pinned: str | None, first: str | None, trusted: bool
) -> None:
    from hy3d_rocm.conv.choice import Setting

    setting = Setting(on_gpu=True, is_rocm=True, current=current)
    tiers = (SimpleNamespace(name=first),)
    plan: Any = SimpleNamespace(setting=setting, tiers=tiers, is_fixed=first is not None)
    mode: Any = SimpleNamespace(pinned=pinned)
    entry: Any = SimpleNamespace(plan=plan)
    assert gradients._is_trusted(mode, entry) is trusted


def test_an_unproven_backward_is_only_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_is_trusted", lambda mode, entry: False)
    given = operands("strides")
    expected = grads_of(conv_of("strides"), given)
    with guarded() as guard:
        assert same(grads_of(conv_of("strides"), given), expected)
    assert {r.tier for r in guard.stats.rows.values() if r.op == "conv3d_backward"} == {"gemm"}
    assert guard.stats.recovered == 0
    with inject_faults(Fault("gemm", "conv3d_backward")), guarded() as guard:
        assert same(grads_of(conv_of("strides"), given), expected)


def test_a_gradient_may_be_batched_by_vmap() -> None:
    given = operands("groups")
    out = conv_of("groups")(*given)
    many = torch.stack([integers(*out.shape, seed=s) for s in range(3)])
    expected = torch.autograd.grad(out, given, many, is_grads_batched=True)
    with guarded():
        out = conv_of("groups")(*given)
        got = torch.autograd.grad(out, given, many, is_grads_batched=True)
    assert same(list(got), list(expected))


def transforms() -> dict[str, Callable[[Any], Any]]:
    x, weight, bias = (t.detach() for t in operands("padded"))
    conv = torch.nn.Conv3d(2, 3, 3, padding=1)
    named = {k: integers(*v.shape, high=1) for k, v in conv.state_dict().items()}

    def total(f: Any) -> Any:
        return lambda *a: f(*a).sum()

    def dual(f: Any) -> Any:
        import torch.autograd.forward_ad as forward

        with forward.dual_level():
            made = forward.make_dual(x, weight.new_ones(x.shape))
            return forward.unpack_dual(f(made, weight, bias)).tangent

    return {
        "grad": lambda f: torch.func.grad(total(f))(x, weight, bias),
        "grad of grad": lambda f: torch.func.grad(
            lambda a: torch.func.grad(total(lambda *b: f(*b) ** 2))(a, weight, bias).sum()
        )(x),
        "vjp": lambda f: torch.func.vjp(f, x, weight, bias)[1](f(x, weight, bias)),
        "jvp": lambda f: torch.func.jvp(f, (x, weight, bias), (x, weight, bias))[1],
        "vmap": lambda f: torch.func.vmap(lambda a: f(a, weight, bias))(torch.stack([x, x * 2])),
        "vmap of grad": lambda f: torch.func.vmap(
            torch.func.grad(lambda a: f(a, weight, bias).sum())
        )(torch.stack([x, x * 2])),
        "dual": dual,
        "jacrev": lambda f: torch.func.jacrev(lambda b: f(x, weight, b).sum((0, 2, 3, 4)))(bias),
        "functional_call": lambda f: torch.func.functional_call(conv, named, (x,)),
        "make_fx": lambda f: torch.fx.experimental.proxy_tensor.make_fx(
            lambda a: f(a, weight, bias)
        )(x)(x * 2),
        "make_fx, before dispatch": lambda f: torch.fx.experimental.proxy_tensor.make_fx(
            lambda a: f(a, weight, bias), pre_dispatch=True
        )(x)(x * 2),
        "trace": lambda f: torch.jit.trace(lambda a: f(a, weight, bias), (x,))(x * 2),
        "compile": lambda f: torch.compile(lambda a: f(a, weight, bias), backend="eager")(x),
        "export": lambda f: torch.export.export(copy.deepcopy(conv), (x,)).module()(x * 0),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "options"),
    how_much.in_turns(transforms(), ({}, {"policy": "pin:cpu"}, {"tiers": ["cpu"]})),
    ids=str,
)
def test_transforms_and_graphs_are_those_of_pytorch(name: str, options: dict[str, Any]) -> None:
    import torch.fx.experimental.proxy_tensor

    torch.manual_seed(0)
    given = transforms()[name]
    expected = given(conv_of("padded"))

    def protected(*arguments: Any) -> torch.Tensor:
        with protect(**options):
            return conv_of("padded")(*arguments)

    def flat(found: Any) -> list[torch.Tensor]:
        return list(found) if isinstance(found, tuple) else [found]

    assert same(flat(given(protected)), flat(expected))
    with protect(**options):
        assert same(flat(given(conv_of("padded"))), flat(expected))


def test_what_can_not_be_routed_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    class Mine(torch.Tensor):
        pass

    x, weight = integers(1, 2, 4, 5, 5), integers(3, 2, 3, 3, 3)
    with caplog.at_level(logging.WARNING, "hy3d_rocm"):
        for _ in range(2):
            with guarded() as guard:
                torch.func.grad(lambda a: F.conv3d(a, weight).sum())(x)
                F.conv3d(x.as_subclass(Mine), weight)
                F.conv3d(x.as_subclass(Mine), weight)
            assert (guard.stats.calls, guard.stats.passed_through) == (0, 3)
            start = "convolutions are left to PyTorch, and not protected, where "
            wanted = [f"{start}a transform of torch.func records", f"{start}a tensor is a Mine"]
            assert guard.stats.lines == wanted
            assert wanted[0] in guard.stats.table()
    assert caplog.messages == wanted


@pytest.mark.parametrize("name", ["conv3d", "operator"])
def test_our_own_convolution_never_drops_a_tangent(name: str) -> None:
    import torch.autograd.forward_ad as forward

    from hy3d_rocm.conv.custom_op import conv3d_op

    conv: Any = functional.conv3d if name == "conv3d" else conv3d_op
    x, weight = integers(1, 2, 4, 5, 5), integers(3, 2, 3, 3, 3)
    for nograd in (True, False):
        with torch.set_grad_enabled(not nograd), forward.dual_level():
            with pytest.raises(ValueError, match=r"weight is more than numbers \(it has a tangent"):
                conv(x, forward.make_dual(weight, weight))
            assert torch.equal(conv(x, weight), F.conv3d(x, weight))
        with torch.set_grad_enabled(not nograd), pytest.raises(ValueError, match="x is more than"):
            torch.func.jvp(lambda t: conv(t, weight), (x,), (x,))


def test_our_own_convolution_says_where_it_can_not_be_recorded() -> None:
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    x, weight = integers(1, 2, 4, 5, 5), integers(3, 2, 3, 3, 3)
    tries: list[Callable[[], Any]] = [
        lambda: torch.func.vmap(lambda t: functional.conv3d(t, weight))(x[None]),
        lambda: make_fx(lambda t: functional.conv3d(t, weight))(x),
        lambda: make_fx(lambda t: functional.conv3d(t, weight), pre_dispatch=True)(x),
        lambda: torch.jit.trace(lambda t: functional.conv3d(t, weight), (x,), check_trace=False),
        lambda: functional.conv3d(FakeTensorMode().from_tensor(x), weight),
    ]
    for attempt in tries:
        with pytest.raises(ValueError, match=r"x is more than numbers .*conv3d_op for a graph"):
            attempt()


def test_a_diffusers_vae_is_protected_as_it_is_loaded() -> None:
    """router.md's first example: parameters require grad, and nobody switched gradients off."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKL(
        block_out_channels=(32, 32), norm_num_groups=8, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    latents = torch.randn(1, 4, 8, 8)
    count = sum(isinstance(m, torch.nn.Conv2d) for m in vae.decoder.modules()) + 1
    with torch.no_grad():
        expected = vae.decode(latents).sample
    for policy in ("auto", "pin:cpu"):
        with protect(policy=policy) as guard:
            frames = vae.decode(latents).sample
        assert frames.requires_grad
        assert (guard.stats.calls, guard.stats.passed_through) == (count, 0)
        assert torch.allclose(frames, expected, atol=1e-4)
    with inject_faults(Fault("current", every=3)), protect() as guard:
        frames = vae.decode(latents).sample
    assert guard.stats.failures > 0
    assert guard.stats.raised == 0


def test_a_cancel_is_raised_as_it_is_from_a_backward() -> None:
    def stop(event: Any) -> None:
        if event.op == "conv3d_backward":
            raise KeyboardInterrupt

    given = operands("plain")
    with guarded(on_event=stop), pytest.raises(KeyboardInterrupt):
        grads_of(conv_of("plain"), given)


def test_a_tier_that_lies_is_found_out_with_gradients_too() -> None:
    given = operands("padded")
    expected = grads_of(conv_of("padded"), given)
    lying = ScriptedTier("current", lambda call: -call.run_current() - 1)
    with guarded(tiers=[lying, NativeTier()]) as guard:
        assert same(grads_of(conv_of("padded"), given), expected)
    assert guard.stats.failures == 1
    only = ScriptedTier("current", raising(lambda: ValueError("the caller's")))
    with guarded(tiers=[only]), pytest.raises(ValueError, match="the caller's"):
        grads_of(conv_of("padded"), given)


@pytest.mark.parametrize("broken", [False, True], ids=["", "backward fails"])
@pytest.mark.parametrize("tier", TIERS)
def test_every_door_to_a_convolution_keeps_its_gradients(tier: str, broken: bool) -> None:
    aten = torch.ops.aten
    rest: Any = ([1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1)
    doors: list[Callable[..., torch.Tensor]] = [
        lambda x, w, b: torch.convolution(x, w, b, *rest),
        lambda x, w, b: aten.convolution(x, w, b, *rest),
        lambda x, w, b: aten.convolution.default(x, w, b, *rest),
        lambda x, w, b: aten.conv3d(x, w, b, padding=[1] * 3),
        lambda x, w, b: aten.conv3d.padding(x, w, b, [1] * 3, "same"),
        lambda x, w, b: F.conv3d(bias=b, input=x, weight=w, padding=(1,)),
    ]
    given = operands("padded")
    expected = grads_of(conv_of("padded"), given)
    for door in doors:
        with (
            inject_faults(backward_faults(broken)),
            protect(tiers=[TIERS[tier]()]) as guard,
        ):
            assert same(grads_of(door, given), expected)
        assert (guard.stats.calls >= 1, guard.stats.passed_through) == (True, 0)


@pytest.mark.parametrize("broken", [False, True], ids=["", "backward fails"])
def test_a_backward_may_run_on_other_threads_and_after_its_scope(broken: bool) -> None:
    from concurrent.futures import ThreadPoolExecutor

    given = operands("strides")
    expected = grads_of(conv_of("strides"), given)
    with guarded() as guard:
        outs = [conv_of("strides")(*given) for _ in range(16)]
    grad = integers(*outs[0].shape, seed=7)

    def back(out: torch.Tensor) -> list[torch.Tensor]:
        with inject_faults(backward_faults(broken)):
            return [out, *torch.autograd.grad(out, given, grad)]

    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(back, outs):
            assert same(got, expected)
    calls = sum(r.calls - r.failures for r in guard.stats.rows.values() if "backward" in r.op)
    assert calls == len(outs)


def test_sizes_of_nothing_have_gradients_of_nothing() -> None:
    x = torch.zeros(0, 2, 4, 5, 5, requires_grad=True)
    weight = integers(3, 2, 3, 3, 3).requires_grad_()
    expected = grads_of(F.conv3d, [x, weight])
    for broken in (False, True):
        with inject_faults(backward_faults(broken)), guarded():
            assert same(grads_of(F.conv3d, [x, weight]), expected)
