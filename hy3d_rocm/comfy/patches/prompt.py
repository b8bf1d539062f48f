"""Every node of a prompt under protect(): up-scalers, ControlNet, video packs. Off by default.

ComfyUI runs each node through `execution.get_output_data`. Nodes that are coroutines are left
alone: they may stand still in the middle, where a function mode would act on others' calls and
could be left in the wrong order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from hy3d_rocm.comfy import settings
from hy3d_rocm.comfy.patch import Change, PatchSpec, Place, names_missing, parameters_missing
from hy3d_rocm.comfy.patches import protected
from hy3d_rocm.conv.router import protect

NAME = "prompts"
_FUNCTION = "get_output_data"
_PARAMETERS = ("prompt_id", "unique_id", "obj", "input_data_all")


def _make(original: Callable[..., Any]) -> Callable[..., Any]:
    async def run_node(prompt_id: Any, unique_id: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        if not settings.current().protect_prompts or is_asynchronous(obj):
            return await original(prompt_id, unique_id, obj, *args, **kwargs)
        guard, since = protect(), protected.TOLD.recovered
        protected.AROUND_NODES.add(guard)
        try:
            with guard:
                return await original(prompt_id, unique_id, obj, *args, **kwargs)
        finally:
            node = obj if isinstance(obj, type) else type(obj)
            protected.tell(node.__name__, guard, since)

    return run_node


def is_asynchronous(node: Any) -> bool:
    """Whether the node's own function is a coroutine; also where it cannot be told."""
    function = getattr(node, getattr(node, "FUNCTION", ""), None)
    return function is None or inspect.iscoroutinefunction(function)


def _expects(core: Place) -> str | None:
    function = getattr(core.part("execution"), _FUNCTION, None)
    if not inspect.iscoroutinefunction(function):
        return f"execution.{_FUNCTION} is no coroutine by now"
    return parameters_missing(function, _PARAMETERS) or names_missing(function, ("FUNCTION",))


def _changes(core: Place) -> list[Change]:
    return [Change(core.part("execution"), _FUNCTION, _make)]


SPEC = PatchSpec(
    NAME,
    "Every convolution of a prompt",
    _expects,
    _changes,
    lambda: settings.current().protect_prompts,
)
