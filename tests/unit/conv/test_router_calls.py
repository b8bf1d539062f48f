"""Every way to write a convolution is seen, and gives on each tier what PyTorch gives."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import ScriptedTier, cpu_tier, fake_conv3d, guarded, integers

from hy3d_rocm.conv import call as calls
from hy3d_rocm.conv.faults import Fault, inject_faults
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.tiers import NativeTier, Tier

X3, W3, B = integers(2, 4, 5, 6, 7), integers(6, 4, 3, 3, 3, seed=1), integers(6, seed=2)
X2, W2 = X3[:, :, 0].contiguous(), W3[:, :, 0].contiguous()
aten = torch.ops.aten

STYLES: dict[str, Callable[[], torch.Tensor]] = {
    "positional": lambda: F.conv3d(X3, W3, B, 1, 1, 1, 1),
    "keywords": lambda: F.conv3d(input=X3, weight=W3, bias=B, stride=(1, 1, 1), padding=[1, 1, 1]),
    "mixed": lambda: F.conv3d(X3, weight=W3, bias=None, padding=(1,)),
    "torch.conv3d": lambda: torch.conv3d(X3, W3, B, [1], (1, 1, 1)),
    "aten packet": lambda: aten.conv3d(X3, W3, B),
    "aten default": lambda: aten.conv3d.default(X3, W3, B, [1, 2, 1]),
    "aten padding": lambda: aten.conv3d.padding(X3, W3, B, [1, 1, 1], "same"),
    "convolution": lambda: torch.convolution(X3, W3, B, *[[1] * 3] * 3, False, [0] * 3, 1),
    "same": lambda: F.conv3d(X3, W3, padding="same"),
    "same, even kernel": lambda: F.conv3d(X3, W3[..., :2], padding="same", dilation=(1, 2, 3)),
    "valid": lambda: F.conv3d(X3, W3, B, padding="valid", stride=2),
    "unbatched": lambda: F.conv3d(X3[0], W3, B),
    "empty batch": lambda: F.conv3d(X3[:0], W3, B, padding=1),
    "groups": lambda: F.conv3d(X3, W3[:, :2], B, groups=2),
    "depthwise": lambda: F.conv3d(X3, W3[:4, :1], groups=4),
    "dilation": lambda: F.conv3d(X3, W3, B, padding=2, dilation=2),
    "1x1x1": lambda: F.conv3d(X3, W3[..., :1, :1, :1], B),
    "strided view": lambda: F.conv3d(X3[..., ::2], W3.transpose(3, 4), B),
    "expanded view": lambda: F.conv3d(X3[:1].expand(3, -1, -1, -1, -1), W3),
    "conv2d": lambda: F.conv2d(X2, W2, B, (2, 1), 1),
    "conv2d same": lambda: F.conv2d(X2, W2[..., :2], padding="same"),
    "conv2d dilated groups": lambda: F.conv2d(X2, W2[:, :2], B, padding=2, dilation=2, groups=2),
    "conv2d unbatched": lambda: torch.conv2d(X2[0], weight=W2),
    "conv2d channels last": lambda: F.conv2d(X2.contiguous(memory_format=torch.channels_last), W2),
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("nothing_remembered")


def only(name: str) -> Tier:
    return NativeTier() if name == "native" else cpu_tier()


@pytest.mark.parametrize("tier", ["native", "cpu"])
@pytest.mark.parametrize("style", STYLES)
def test_every_style_of_call_is_seen_and_exact(style: str, tier: str) -> None:
    expected = STYLES[style]()
    with protect(tiers=[only(tier)]) as guard:
        got = STYLES[style]()
    assert guard.stats.calls == 1, "the call was not seen"
    assert guard.stats.as_dict()["rows"][0]["tier"] == tier
    assert got.shape == expected.shape
    assert torch.equal(got, expected)


@pytest.mark.parametrize("mode", ["zeros", "replicate", "reflect", "circular"])
def test_module_layers_are_seen_with_every_padding_mode(mode: str) -> None:
    for layer in (
        torch.nn.Conv3d(4, 6, 3, padding=1, padding_mode=mode),
        torch.nn.Conv2d(4, 6, 3, padding=1, padding_mode=mode, groups=2),
        torch.nn.Conv3d(4, 4, 3, padding="same", padding_mode=mode, bias=False),
    ):
        for index, parameter in enumerate(layer.parameters()):
            parameter.data = integers(*parameter.shape, seed=index)
        data = X3 if isinstance(layer, torch.nn.Conv3d) else X2
        expected = layer(data)
        with inject_faults(Fault("current")), guarded() as guard:
            assert torch.equal(layer(data), expected)
        assert guard.stats.recovered == 1


def test_a_layer_that_casts_its_weight_for_each_call_is_seen() -> None:
    class ManualCast(torch.nn.Conv3d):
        """As comfy.ops.manual_cast: the weight is moved and cast at each forward."""

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            assert self.bias is not None
            return self._conv_forward(
                data, self.weight.to(data.dtype, copy=True), self.bias.to(data.dtype, copy=True)
            )

    layer = ManualCast(4, 6, 3).double()
    with inject_faults(Fault("current")), guarded() as guard:
        layer(X3)
        layer(X3)
    assert guard.stats.recovered == 2
    assert guard.stats.failures == 1


def test_random_configurations_equal_pytorch_on_every_tier() -> None:
    seed = random.randrange(2**32)
    pick = random.Random(seed)
    tiers = [NativeTier(), cpu_tier()]
    for index in range(60):
        ndim, groups = pick.choice((2, 3)), pick.choice((1, 1, 2, 3))
        cin, cout = groups * pick.randint(1, 3), groups * pick.randint(1, 3)
        kernel = [pick.randint(1, 3) for _ in range(ndim)]
        options: dict[str, Any] = {
            "stride": [pick.randint(1, 3) for _ in range(ndim)],
            "padding": [pick.randint(0, 2) for _ in range(ndim)],
            "dilation": [pick.randint(1, 2) for _ in range(ndim)],
            "groups": groups,
        }
        if pick.random() < 0.2:
            options.update(stride=1, padding="same")
        size = [pick.randint(5, 8) for _ in range(ndim)]
        data = integers(pick.randint(1, 3), cin, *size, seed=index)
        weight = integers(cout, cin // groups, *kernel, seed=index + 1)
        bias = integers(cout, seed=2) if pick.random() < 0.5 else None
        function: Any = F.conv3d if ndim == 3 else F.conv2d
        expected = function(data, weight, bias, **options)
        for tier in tiers:
            with protect(tiers=[tier]) as guard:
                got = function(data, weight, bias, **options)
            said = f"seed {seed}, configuration {index}, {tier.name}: {options}"
            assert guard.stats.calls == 1, said
            assert torch.equal(got, expected), said


def test_other_tensor_types_are_left_alone() -> None:
    class Sub(torch.Tensor):
        pass

    trap = ScriptedTier("trap", lambda call: call.x)
    with protect(tiers=[trap]):
        assert isinstance(F.conv3d(X3.as_subclass(Sub), W3), Sub)
        assert F.conv3d(X3.to("meta"), W3.to("meta")).is_meta
        F.conv1d(X3[:, :, 0, 0], W3[:, :, 0, 0])
        F.conv_transpose3d(X3, W3.transpose(0, 1))
        F.conv3d(X3.to(torch.complex64), W3.to(torch.complex64))
    assert trap.calls == 0


def test_the_spec_says_what_pytorch_computes() -> None:
    for style in STYLES.values():
        seen: list[Any] = []

        def act(call: Any, seen: list[Any] = seen) -> torch.Tensor:
            seen.append(call)
            return call.run_current()  # type: ignore[no-any-return]

        with protect(tiers=[ScriptedTier("spy", act)]):
            out = style()
        spec = seen[0].spec
        assert tuple(out.shape) == spec.result_size
        assert spec.op in ("conv2d", "conv3d")


def test_transposed_convolution_by_the_general_door_is_not_routed() -> None:
    arguments = calls.read_arguments(
        calls.SIGNATURES[torch.convolution],
        (X3, W3, None, [1] * 3, [0] * 3, [1] * 3, True, [0] * 3, 1),
        {},
    )
    assert arguments is None


def test_compiled_code_still_runs() -> None:
    @torch.compile(backend="eager")  # type: ignore[untyped-decorator]  # torch's decorator
    def compiled(data: torch.Tensor) -> torch.Tensor:
        return F.conv3d(data, W3) * 2

    expected = F.conv3d(X3, W3) * 2
    with guarded():
        assert torch.equal(compiled(X3), expected)


@pytest.mark.parametrize("dense_first", [True, False])
def test_a_tensor_in_mkldnns_own_layout_is_left_alone(dense_first: bool) -> None:
    tier = ScriptedTier("a", lambda call: call.run_current())
    x, expected = X2.to_mkldnn(), F.conv2d(X2, W2)
    with protect(tiers=[tier]):
        for given in (X2, x) if dense_first else (x, X2):
            got = F.conv2d(given, W2)
            assert torch.equal(got.to_dense() if given is x else got, expected)
    assert tier.calls == 1


def test_torchscript_runs_and_is_not_seen() -> None:
    traced = torch.jit.trace(torch.nn.Conv3d(4, 6, 3), X3)  # type: ignore[no-untyped-call]
    expected = traced(X3)
    with inject_faults(Fault("current")), guarded() as guard:
        assert torch.equal(traced(X3), expected)
    assert guard.stats.calls == 0


def test_the_double_and_the_native_tier_agree() -> None:
    out = torch.empty(2, 6, 3, 4, 5)
    with protect(tiers=[NativeTier()]):
        native = F.conv3d(X3, W3, B)
    assert torch.equal(fake_conv3d(X3, W3, B, 1, 0, 1, 1, out=out), native)


def test_a_call_that_writes_into_a_given_tensor_is_left_to_pytorch() -> None:
    out, rest = torch.empty(0), ([1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1)
    with protect(tiers=["native", "cpu"]) as guard:
        result = aten.convolution(X3, W3, B, *rest, out=out)
    assert result is out
    assert torch.equal(out, F.conv3d(X3, W3, B))
    assert guard.stats.calls == 0
