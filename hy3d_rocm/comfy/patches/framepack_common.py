"""What the patches of FramePackWrapper share: its samplers, and the call of one that is running."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from hy3d_rocm.comfy import settings
from hy3d_rocm.comfy.patch import Place, names_missing, parameters_missing

SAMPLERS = ("FramePackSampler", "FramePackSingleFrameSampler")
_PARAMETERS = ("model", "start_latent", "latent_window_size", "cfg", "gpu_memory_preservation")

Around = Callable[[Callable[[], Any], dict[str, Any]], Any]


def samplers_of(place: Place) -> list[type]:
    """The sampler nodes that this copy has; the second one came later."""
    found = [place.part(SAMPLERS[0])]
    if SAMPLERS[1] in repr(place):
        found.append(place.part(SAMPLERS[1]))
    return found


def samplers_differ(place: Place, names: Sequence[str] = ()) -> str | None:
    """A sentence if a sampler's method is not as we know it; names: what it must use."""
    for node in samplers_of(place):
        method = getattr(node, "process", None)
        if getattr(node, "FUNCTION", None) != "process" or method is None:
            return f"{node.__name__} does not run its method process"
        different = parameters_missing(method, _PARAMETERS) or names_missing(method, names)
        if different:
            return different
    return None


def around_process(spec: str, around: Around) -> Callable[[Callable[..., Any]], Any]:
    """`make` of a Change of a sampler's method: `around(run, arguments)` in its place, where run
    calls the original. arguments: by name, defaults included."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def process(*args: Any, **kwargs: Any) -> Any:
            if spec in settings.current().patches_off:
                return original(*args, **kwargs)
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return original(*args, **kwargs)  # which says in its own words what is missing
            bound.apply_defaults()
            return around(lambda: original(*args, **kwargs), dict(bound.arguments))

        return process

    return make


def prompt_samples() -> bool:
    """Whether the prompt that is running has a FramePack sampler in it."""
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    running = getattr(getattr(server, "prompt_queue", None), "currently_running", {})
    try:
        prompts = [item[2] for item in list(running.values())]
        return any(
            node.get("class_type") in SAMPLERS for prompt in prompts for node in prompt.values()
        )
    except (AttributeError, IndexError, KeyError, TypeError):
        return False  # a queue of another shape: nothing is known of the prompt
