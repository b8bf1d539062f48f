"""`module.to(device)` of code that is not ours, with progress in bytes.

While a pipeline is watched, each of its components has a `to` of ours as an instance attribute,
which moves the tensors one by one (transfer.move) and then calls the module's own `to`. That one
finds everything in place, and gives dtype, result and errors their usual meaning. So what moves,
when and in which order is the caller's business, and no line of the caller's is needed here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hy3d_rocm.offload.components import components_of, indexed
from hy3d_rocm.offload.transfer import Progress, is_plain, move

if TYPE_CHECKING:
    import torch

_TO = "to"


@contextmanager
def reporting_moves(pipeline: Any, progress: Progress | None) -> Iterator[None]:
    """While open, `to(device)` of the pipeline's components is reported to `progress`.

    pipeline: anything that components_of() knows, a module alone included. An exception from
    progress breaks the move off, and what had moved goes back (see move). In one step and without
    a report go: quantised modules and those with a `to` of their own, moves that change the dtype
    or the memory format, and non_blocking ones. Scopes nest; the outermost reports.
    """
    replaced: list[torch.nn.Module] = []
    try:
        for name, module in components_of(pipeline).items():
            if _TO not in vars(module):
                vars(module)[_TO] = functools.partial(_to, module, name, progress)
                replaced.append(module)
        yield
    finally:
        for module in replaced:
            if _is_ours(vars(module).get(_TO)):
                del vars(module)[_TO]


def _is_ours(found: object) -> bool:
    return isinstance(found, functools.partial) and found.func is _to


def _to(
    module: torch.nn.Module, name: str, progress: Progress | None, /, *args: Any, **kwargs: Any
) -> Any:
    """module.to(*args, **kwargs), its transfer reported."""
    mine = vars(module).pop(_TO)  # move() must see the module as it is
    try:
        device = _destination(module, args, kwargs)
        if device is not None and is_plain(module):
            move(module, device, progress, name)
        return module.to(*args, **kwargs)
    finally:
        vars(module)[_TO] = mine


def _destination(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.device | None:
    """Where these arguments of `to` send a module, if they do nothing else to it."""
    import torch

    parsed: Any
    try:
        # As nn.Module.to reads them; under cuda_literals() "cuda" is translated here too.
        parsed = torch._C._nn._parse_to(*args, **kwargs)
    except (TypeError, RuntimeError):
        return None  # the module's own `to` says in its own words what is wrong
    device, dtype, non_blocking, memory_format = parsed
    if device is None or non_blocking or memory_format is not None:
        return None
    if dtype is not None and any(
        tensor.dtype != dtype and (tensor.is_floating_point() or tensor.is_complex())
        for tensor in [*module.parameters(), *module.buffers()]
    ):
        return None
    return indexed(device)
