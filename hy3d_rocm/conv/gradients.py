"""Convolutions that gradients are wanted of: routed as any other, with a backward that has more
than one strategy too.

Forward goes down the tiers, below autograd. Backward is PyTorch's own (aten.convolution_backward,
what plain autograd calls), except where that would be a call of MIOpen that nobody has proven; the
others are in docs/router.md. All of them are differentiable again.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from hy3d_rocm.conv import fallback, faults, releasing
from hy3d_rocm.conv.call import ConvCall, ConvSpec
from hy3d_rocm.conv.errors import Kind
from hy3d_rocm.conv.fallback import Entry, Mode
from hy3d_rocm.conv.recording import recorder
from hy3d_rocm.conv.stats import Named
from hy3d_rocm.conv.verdicts import VERDICTS

Values = tuple[Any, ...]
Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def convolve(
    mode: Mode, entry: Entry, values: Values, func: Callable[..., Any], args: Values,
    kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """The result of a routed call, which autograd knows."""
    spec = entry.spec
    if spec is None:
        return mode.run(entry, values, func, args, kwargs)
    x, weight, bias = values[:3]
    dtype = spec.dtype
    is_cast = x.dtype is not dtype or weight.dtype is not dtype
    is_cast = is_cast or (bias is not None and bias.dtype is not dtype)
    if is_cast or not spec.batched or isinstance(values[4], str):
        # What PyTorch's own entry point does before the operator that has a derivative.
        x, weight = x.to(spec.dtype), weight.to(spec.dtype)
        bias = None if bias is None else bias.to(spec.dtype)
        x = x if spec.batched else x.unsqueeze(0)
        more = [b - a for a, b in zip(spec.pad_before, spec.pad_after, strict=True)]
        if any(more):
            x = F.pad(x, [n for count in reversed(more) for n in (0, count)])
        func, kwargs = _operator(spec.ndim), {}
        values = (x, weight, bias, spec.stride, spec.pad_before, spec.dilation, spec.groups)
        args, entry = values, mode.entry_of(values, spec.ndim)
        assert entry.spec is not None  # it was well formed before
    forward = functools.partial(mode.run, entry, values, func, args, kwargs)
    result = RoutedConvolution.apply(x, weight, bias, forward, mode, entry)  # type: ignore[no-untyped-call]
    return result if spec.batched else result.squeeze(0)


def _operator(ndim: int) -> Callable[..., torch.Tensor]:
    found: Callable[..., torch.Tensor] = torch.conv2d if ndim == 2 else torch.conv3d
    return found


def _is_trusted(mode: Mode, entry: Entry) -> bool:
    """Whether PyTorch's own backward may come first. MIOpen's has no proof, whatever forward has:
    it is called first only where the library was asked for by name."""
    plan = entry.plan
    if plan is None or not (plan.setting.is_rocm and plan.setting.calls_vendor("current")):
        return True
    return (plan.tiers[0].name if plan.is_fixed else mode.pinned) in ("vendor", "current")


class RoutedConvolution(torch.autograd.Function):
    """conv2d or conv3d of batched operands of one dtype, padded alike on both sides."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
        run: Callable[[], torch.Tensor], mode: Mode, entry: Entry,
    ) -> torch.Tensor:  # fmt: skip
        result = run()
        ctx.mode, ctx.entry = mode, entry
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        # A view made in here could not be written to in place, as by an activation that does so.
        return result.data if result._is_view() else result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        found: Gradients = (None, None, None)
        grad = grads[0]
        if grad is not None:
            x, weight = ctx.saved_tensors
            wanted = tuple(ctx.needs_input_grad[:3])
            found = backward(ctx.mode, ctx.entry, grad, x, weight, wanted)
        return *found, None, None, None


def backward(
    mode: Mode, entry: Entry, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor,
    wanted: tuple[bool, ...],
) -> Gradients:  # fmt: skip
    """Gradients of input, weight and bias, those that are wanted, of a call that was computed."""
    spec = entry.spec
    assert spec is not None
    asked = _Asked(mode, spec, grad, x, weight, wanted)
    if recorder() or fallback.is_capturing(spec.device):
        return asked.by_pytorch()
    strategies = {"current": asked.by_pytorch, "gemm": asked.otherwise}
    if spec.device.type != "cpu":
        strategies["cpu"] = asked.on_the_host
    call = ConvCall(spec, x, weight, None, lambda: grad, mode.settings.limits)
    return _BackwardChain(mode, entry, call).run(strategies)


class _BackwardChain(fallback.Attempts):
    """One backward on its way down. The first exception is the one that is raised at the end."""

    def __init__(self, mode: Mode, entry: Entry, call: ConvCall) -> None:
        what = Named(f"{call.spec.op}_backward", entry.what.shape, entry.what.dtype)
        super().__init__(mode, call, what, ("backward", entry.config))
        self.is_trusted = _is_trusted(mode, entry)

    def run(self, strategies: dict[str, Callable[[], Gradients]]) -> Gradients:
        # Stable: what failed before is the last resort.
        for name in sorted(strategies, key=self._is_left_out):
            found = self.attempt(name, functools.partial(self._compute, name, strategies[name]))
            if found is None:
                spec = self.call.spec
                self.remember(max(self.call.x.numel() * spec.dtype.itemsize, spec.out_bytes))
                if self.failures[-1].found.kind is Kind.OUT_OF_MEMORY:
                    releasing.release(spec.device)
                continue
            if name != "current" and self.is_trusted:
                self.audience.add("recovered")
            reason = self.failures[0].found.reason if self.failures else ""
            if reason and VERDICTS.first_time((self.config, reason)):
                self.audience.say(f"{self.what}: {reason}; instead: {_WORDS[name]}")
            return found
        first = self.failures[0].error
        try:
            self.raise_(first)
        finally:
            del first

    def _compute(self, name: str, strategy: Callable[[], Gradients]) -> Gradients:
        faults.check(name, self.call, op=self.what.op)
        return strategy()

    def label(self, name: str) -> str:
        return _WORDS[name]

    def _is_left_out(self, name: str) -> bool:
        is_last = name == "current" and not self.is_trusted
        return is_last or self.verdict_on(name) is not None


_WORDS = {
    "current": "PyTorch as it is set up",
    "gemm": "a convolution of the gradient, and matrix products",
    "cpu": "PyTorch on the CPU",
}


class _Asked(NamedTuple):
    """One backward, and what gives its gradients."""

    mode: Mode
    spec: ConvSpec
    grad: torch.Tensor
    x: torch.Tensor
    weight: torch.Tensor
    wanted: tuple[bool, ...]

    def by_pytorch(self) -> Gradients:
        """What plain autograd calls."""
        spec = self.spec
        sizes = [self.weight.shape[0]] if spec.has_bias else None
        found: Gradients = torch.ops.aten.convolution_backward(
            self.grad, self.x, self.weight, sizes, spec.stride, spec.pad_before, spec.dilation,
            False, (0,) * spec.ndim, spec.groups, list(self.wanted),
        )  # fmt: skip
        return found

    def on_the_host(self) -> Gradients:
        spec = self.spec
        wide = torch.float64 if spec.dtype is torch.float64 else torch.float32
        grad, x, weight = (t.to("cpu", wide) for t in (self.grad, self.x, self.weight))
        found = self._replace(grad=grad, x=x, weight=weight).by_pytorch()
        to_input, to_weight, to_bias = (
            None if t is None else t.to(spec.device, spec.dtype) for t in found
        )
        return to_input, to_weight, to_bias

    def otherwise(self) -> Gradients:
        """No library's backward: what the gradients are, in other operators."""
        with torch.autocast(self.spec.device.type, enabled=False):
            to_input = self.of_input() if self.wanted[0] else None
            to_weight = self.of_weight() if self.wanted[1] else None
        to_bias = self.grad.sum((0, *range(2, self.grad.dim()))) if self.wanted[2] else None
        return to_input, to_weight, to_bias

    def of_input(self) -> torch.Tensor:
        """The input's gradient: the convolution of the gradient, spread by the stride, with the
        weights of each group turned round."""
        spec, grad, weight, groups = self.spec, self.grad, self.weight, self.spec.groups
        sizes, taken, into = [], [], []
        for n, k, s, p, d, count in zip(
            self.x.shape[2:], spec.kernel, spec.stride, spec.pad_before, spec.dilation,
            grad.shape[2:], strict=True,
        ):  # fmt: skip
            reach = d * (k - 1)
            size, start = n + reach, reach - p
            first = max(0, -(start // s))  # gradients before it and from `last` on meet padding
            last = min(count, -((start - size) // s))
            at = start + first * s
            sizes.append(size)
            taken.append(slice(first, max(last, first)))
            into.append(slice(at, at + s * max(last - first, 0), s))
        spread = grad.new_zeros((*grad.shape[:2], *sizes))
        spread[_inside(into)] = grad[_inside(taken)]
        cout, cin = weight.shape[0] // groups, weight.shape[1]
        turned = weight.reshape(groups, cout, cin, *spec.kernel).transpose(1, 2)
        turned = turned.reshape(groups * cin, cout, *spec.kernel).flip(*range(2, 2 + spec.ndim))
        values = (spread, turned, None, (1,) * spec.ndim, (0,) * spec.ndim, spec.dilation, groups)
        mode = self.mode.for_backward()
        entry = mode.entry_of(values, spec.ndim)
        wants_grad = torch.is_grad_enabled() and (grad.requires_grad or weight.requires_grad)
        run = functools.partial(convolve, mode) if wants_grad else mode.run
        found = run(entry, values, _operator(spec.ndim), values, {})
        assert isinstance(found, torch.Tensor)
        return found

    def of_weight(self) -> torch.Tensor:
        """The weight's gradient: for each tap the product of the gradient with what it reads."""
        spec, grad = self.spec, self.grad
        padded = F.pad(self.x, [p for pad in reversed(spec.pad_before) for p in (pad, pad)])
        rows = _by_group(grad, spec.groups)
        taps = []
        for tap in itertools.product(*(range(k) for k in spec.kernel)):
            parts = [
                slice(at * d, at * d + s * (count - 1) + 1, s)
                for at, d, s, count in zip(
                    tap, spec.dilation, spec.stride, grad.shape[2:], strict=True
                )
            ]
            read = _by_group(padded[_inside(parts)], spec.groups)
            taps.append(torch.bmm(rows, read.transpose(1, 2)))
        return torch.stack(taps, -1).reshape(self.weight.shape)


def _inside(parts: Sequence[slice]) -> tuple[slice, ...]:
    """An index of all samples and channels, and of `parts` of the rest."""
    return slice(None), slice(None), *parts


def _by_group(data: torch.Tensor, groups: int) -> torch.Tensor:
    """(N, C, ...) as (groups, C / groups, N x ...)."""
    each, points = data.shape[1] // groups, math.prod(data.shape[2:])
    split = data.reshape(data.shape[0], groups, each, points).permute(1, 2, 0, 3)
    return split.reshape(groups, each, data.shape[0] * points)
