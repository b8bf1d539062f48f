"""`torch.ops.hy3d_rocm.conv3d`: the C conv3d as an operator for torch.compile and torch.export.

Importing this module registers it, and so does the first use of `hy3d_rocm.conv.conv3d_op`; nothing
else does, since registering needs torch (2.4 or later). The operator:

    hy3d_rocm::conv3d(Tensor x, Tensor weight, Tensor? bias=None, int[3] stride=1, int[3] padding=0,
        int[3] dilation=1, int groups=1, *, int[3]? padding_after=None, str padding_mode="zeros",
        str? accuracy=None, int? threads=None, int? workspace_limit=None) -> Tensor

takes torch.conv3d's arguments in torch's order. padding_after: where it differs from `padding`.
padding_mode: "zeros", "replicate", or three of them with commas between. It computes on the CPU;
tensors of other devices and layouts get a sentence. It changes none of its arguments, has no
backward pass (gradients are refused when it is called), and its shapes and refusals are known
without computing, so that a graph holds it as one node. `protect()` steps aside while code is
compiled, and the operator is nothing that it routes: compiled or not, this is the C core's result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hy3d_rocm import _fallback, _native
from hy3d_rocm.conv import functional

__all__ = ["NAME", "conv3d_op"]

NAME = "hy3d_rocm::conv3d"
_SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias=None, int[3] stride=1, int[3] padding=0, "
    "int[3] dilation=1, int groups=1, *, int[3]? padding_after=None, "
    'str padding_mode="zeros", str? accuracy=None, int? threads=None, '
    "int? workspace_limit=None) -> Tensor"
)


def conv3d_op(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    padding_mode: str | Sequence[str] = "zeros",
    accuracy: str | None = None,
    threads: int | None = None,
    workspace_limit: int | None = None,
) -> torch.Tensor:
    """`hy3d_rocm.conv3d` for torch tensors, through the operator: for compiled and exported code.

    Arguments, result, memory format and refusals are those of `hy3d_rocm.conv3d`, and so are the
    bits, compiled or not; `out` and `cancel` there are none. threads None is torch's number when
    the operator runs. In code that is compiled whole a refusal arrives inside the compiler's own
    exception, its sentence included. Call it under torch.no_grad() or inference_mode() where
    weights are parameters.

    Raises what `hy3d_rocm.conv3d` does, and RuntimeError where torch is older than 2.4.
    """
    if not _native.available:
        _fallback.conv3d()  # refuses with a sentence
    named = _named(x, weight, bias)
    for name, tensor in named.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is {type(tensor).__name__}: conv3d_op takes torch tensors")
    functional.check_dims(3, named)
    for name, tensor in named.items():
        functional.check_grad(tensor, name)  # before anything is computed
        if not torch.compiler.is_compiling():
            functional.check_recorded(tensor, name, graphs=False)
    kernel = tuple(weight.shape[2:])
    step, spread, before, after = functional.geometry_of(3, kernel, stride, padding, dilation)
    made: torch.Tensor = torch.ops.hy3d_rocm.conv3d(
        x, weight, bias, step, before, spread, groups, padding_after=after,
        padding_mode=",".join(functional.modes_of(padding_mode, 3)), accuracy=accuracy,
        threads=threads, workspace_limit=workspace_limit,
    )  # fmt: skip
    return made


def _named(x: Any, weight: Any, bias: Any) -> dict[str, Any]:
    return {"x": x, "weight": weight, **({} if bias is None else {"bias": bias})}


def _kernel(body: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel of the operator, from a function of the public one's arguments."""

    def kernel(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Sequence[int] = (1, 1, 1),
        padding: Sequence[int] = (0, 0, 0),
        dilation: Sequence[int] = (1, 1, 1),
        groups: int = 1,
        *,
        padding_after: Sequence[int] | None = None,
        padding_mode: str = "zeros",
        **options: Any,
    ) -> Any:
        after = padding
        if padding_after is not None:
            after = functional.numbers_of(tuple(padding_after), "padding_after", 3)
        pairs = tuple(zip(padding, after, strict=True))
        modes = tuple(padding_mode.split(",")) if "," in padding_mode else padding_mode
        return body(x, weight, bias, stride, pairs, dilation, groups, padding_mode=modes, **options)

    return kernel


#: The one kernel, of every device: the public function refuses what is not the CPU's. Who asked for
#: gradients is told by _refuse_gradients.
_compute = torch.no_grad()(functional.conv3d)


def _shape(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, *,
    padding_mode: Any, accuracy: str | None = None, threads: int | None = None,
    workspace_limit: int | None = None,
) -> Any:  # fmt: skip
    """The result without numbers; refuses in the order and the words of `functional.conv3d`."""
    if not _native.available:
        _fallback.conv3d()
    named = _named(x, weight, bias)
    functional.accuracy_of(accuracy, x)
    batched = functional.check_dims(3, named)
    for name, tensor in named.items():
        functional.check_tensor(tensor, name, ("cpu", "meta"))
    source = x if batched else x.unsqueeze(0)
    kernel = tuple(weight.shape[2:])
    geometry = functional.geometry_of(3, kernel, stride, padding, dilation)
    functional.modes_of(padding_mode, 3)
    space = _space(tuple(source.shape[2:]), kernel, geometry)
    made, taken, channels = weight.shape[0], weight.shape[1], source.shape[1]
    if (
        not space
        or any(tensor.dtype != x.dtype for tensor in named.values())
        or (threads is not None and not 1 <= threads < 2**32)
        or (workspace_limit is not None and workspace_limit < 0)
        or min(groups, channels, made) < 1
        or channels % groups
        or made % groups
        or taken != channels // groups
        or (bias is not None and bias.shape[0] != made)
    ):
        with _disable_current_modes():
            return _compute(
                _hollow(x), _hollow(weight), None if bias is None else _hollow(bias), stride,
                padding, dilation, groups, padding_mode=padding_mode, accuracy=accuracy,
                threads=threads, workspace_limit=workspace_limit,
            )  # fmt: skip
    size = (source.shape[0], made, *space)
    result = functional.empty(size, source, x.device)
    return result if batched else result.squeeze(0)


def _hollow(tensor: Any) -> Any:
    """One of that type and size which takes no memory, for the core to refuse in its words. Symbols
    become numbers here, where there is a refusal, and nowhere else."""
    one = torch.empty((), dtype=tensor.dtype, device="cpu")
    return one.expand([int(size) for size in tensor.shape])


def _space(
    size: tuple[Any, ...], kernel: tuple[Any, ...], geometry: functional.Geometry
) -> tuple[Any, ...]:
    """(T, H, W) of the result, () where there is none. Sizes may be symbols, of which the C core
    would make numbers."""
    found = []
    for n, k, step, spread, before, after in zip(size, kernel, *geometry, strict=True):
        rest = n + before + after - spread * (k - 1) - 1
        if min(step, spread) < 1 or n < 1 or k < 1 or min(before, after) <= -n or rest < 0:
            return ()
        found.append(rest // step + 1)
    return tuple(found)


def _refuse_gradients(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    """Called once the operator has run with gradients on and an input that requires them."""
    for name, needed in zip(("x", "weight", "bias"), ctx.needs_input_grad[:3], strict=True):
        if needed:
            functional.refuse_grad(name)


def _no_backward(ctx: Any, grad: Any) -> Any:
    raise RuntimeError("hy3d_rocm::conv3d has no backward pass.")  # not reached: see above


def _register() -> Any:
    make = getattr(torch.library, "custom_op", None)
    if make is None:
        raise RuntimeError(
            f"torch {torch.__version__} has no torch.library.custom_op: the operator "
            "hy3d_rocm::conv3d needs torch 2.4 or later; hy3d_rocm.conv3d works without it."
        )
    operator = make(NAME, _kernel(_compute), mutates_args=(), schema=_SCHEMA)
    operator.register_fake(_kernel(_shape))
    operator.register_autograd(_no_backward, setup_context=_refuse_gradients)
    return operator


_operator = _register()
