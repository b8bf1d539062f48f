"""Whether PyTorch's operators are recorded here: numbers that are made beside them are lost."""

from __future__ import annotations

from typing import Any

import torch

_pre_dispatch = getattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch", lambda: 0)


def recorder() -> str:
    """What records or replaces the operators of this thread now, in a few words; else ""."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    if _is_graph_made():
        return "make_fx, torch.export or a FakeTensorMode"
    return ""


def loses(tensor: torch.Tensor, *, graphs: bool = True) -> str:
    """What would be lost by reading this tensor's numbers alone; "" where nothing would.

    graphs False: for an operator that batches, traces and graphs hold as it is; tangents are lost.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        stack = torch._C._functorch.get_interpreter_stack() or []
        kinds = [interpreter.key() for interpreter in stack]
        if graphs or torch._C._functorch.TransformType.Jvp in kinds:
            return "it is inside a transform of torch.func"
        return ""
    forward: Any = torch.autograd.forward_ad
    if forward._current_level >= 0 and forward.unpack_dual(tensor).tangent is not None:
        return "it has a tangent of forward-mode differentiation"
    if graphs and torch._C._get_tracing_state() is not None:
        return "torch.jit.trace records"
    if graphs and (_is_graph_made() or _is_fake(tensor)):
        return "make_fx, torch.export or a FakeTensorMode records"
    return ""


def _is_graph_made() -> bool:
    """Other modes of dispatch (a counter of operations) see numbers as they are."""
    if _pre_dispatch():
        return True
    if not torch._C._len_torch_dispatch_stack():
        return False
    kinds = torch._C._TorchDispatchModeKey
    made = (kinds.FAKE, kinds.PROXY, kinds.FUNCTIONAL)
    return any(torch._C._get_dispatch_mode(kind) is not None for kind in made)


def _is_fake(tensor: Any) -> bool:
    fake = torch._subclasses.FakeTensor
    return isinstance(tensor, fake) or torch._is_functional_tensor(tensor)
