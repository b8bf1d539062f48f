"""gpu_memory_preservation computed from what is free, and adapted from section to section.

Upstream's value of 6 GB is nobody's choice and means "computed"; any other value is the user's and
is only exceeded where a section runs out of memory. `move_model_to_device_with_memory_preservation`
in upstream's module of nodes places the weights, `sample_hunyuan` there is one section: both are
wrapped, and what they do belongs to the call of a sampler that is running.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from hy3d_rocm.comfy import memory, settings
from hy3d_rocm.comfy.patch import Change, PatchSpec, Place, names_missing, parameters_missing
from hy3d_rocm.comfy.patches import framepack_common as common
from hy3d_rocm.comfy.patches.common import comfy_device, logger, offload_device
from hy3d_rocm.framepack import card as cards
from hy3d_rocm.framepack import known
from hy3d_rocm.framepack.again import restorer
from hy3d_rocm.framepack.preservation import begin, users_choice
from hy3d_rocm.framepack.residency import is_on, parts_of
from hy3d_rocm.framepack.sections import SectionRunner
from hy3d_rocm.units import size_text

NAME = "framepack-memory"
_MOVE = "move_model_to_device_with_memory_preservation"
_SAMPLE = "sample_hunyuan"
_INPUT = "gpu_memory_preservation"


@dataclass
class Run:
    """One call of a sampler. runner: None until the weights are placed, and where there is no
    card to place them on."""

    key: Hashable
    wanted_bytes: int | None
    runner: SectionRunner | None = None


_running: ContextVar[Run | None] = ContextVar("hy3d_rocm_framepack_run", default=None)


def _sampling(run: Callable[[], Any], arguments: dict[str, Any], default_gb: float) -> Any:
    wanted = users_choice(float(arguments[_INPUT]), default_gb)
    now = Run(_shape(arguments), wanted)
    token = _running.set(now)
    try:
        return run()
    finally:
        _running.reset(token)
        if now.runner is not None:
            known.remember(now.key, now.runner.state)


def _shape(arguments: dict[str, Any]) -> Hashable:
    """What a section's need depends on."""
    latent, held = arguments["start_latent"], arguments["model"]
    samples = latent.get("samples") if isinstance(latent, dict) else None
    precision = held.get("dtype") if isinstance(held, dict) else None
    size = tuple(getattr(samples, "shape", ()))[-2:]
    return (
        size, arguments["latent_window_size"], arguments["cfg"] != 1.0, str(precision),
        str(comfy_device()),
    )  # fmt: skip


def _moving(original: Callable[..., Any]) -> Callable[..., Any]:
    def move(model: Any, *args: Any, **kwargs: Any) -> Any:
        now = _running.get()
        if now is None or not isinstance(model, torch.nn.Module):
            return original(model, *args, **kwargs)
        device = comfy_device()
        card = cards.card_of(device, lambda: memory.free_and_total(device)[0])
        if card is None:
            model.to(device)  # one memory for all: nothing is to be left free for later
            return None
        parts = parts_of(model)
        held = sum(part.size_bytes for part in parts if is_on(part, device))
        state = begin(card.free() + held, now.wanted_bytes, known.recall(now.key))
        now.runner = SectionRunner(parts, device, _waiting(device), card, state)
        return None  # the first section places them

    return move


def _waiting(device: torch.device) -> torch.device:
    """Where weights wait: main memory also under --highvram, where ComfyUI would leave them."""
    offload = offload_device()
    return torch.device("cpu") if offload.type == device.type else offload


def _section(original: Callable[..., Any]) -> Callable[..., Any]:
    def sample_hunyuan(*args: Any, **kwargs: Any) -> Any:
        now = _running.get()
        if now is None or now.runner is None:
            return original(*args, **kwargs)
        return now.runner.run(lambda: original(*args, **kwargs), restorer(kwargs))

    return sample_hunyuan


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    """LoadFramePackModel: "main_device" only where all weights fit beside what a section needs.

    Upstream's sampler moves nothing off the card that the loader has put there.
    """
    signature = inspect.signature(original)

    def loadmodel(*args: Any, **kwargs: Any) -> Any:
        off = NAME in settings.current().patches_off
        bound = signature.bind_partial(*args, **kwargs)
        bound.apply_defaults()
        if off or bound.arguments.get("load_device") != "main_device":
            return original(*args, **kwargs)
        if _fits(bound.arguments.get("model")):
            return original(*args, **kwargs)
        bound.arguments["load_device"] = "offload_device"
        return original(*bound.args, **bound.kwargs)

    return loadmodel


def _fits(name: Any) -> bool:
    import folder_paths

    device = comfy_device()
    card = cards.card_of(device, lambda: memory.free_and_total(device)[0])
    path = folder_paths.get_full_path("diffusion_models", name) if isinstance(name, str) else None
    if card is None or path is None:
        return True
    size, free = os.path.getsize(path), card.free()
    fits = size + begin(free).preserved_bytes <= free
    if not fits:
        logger.info(
            "LoadFramePackModel: %s of weights and what a section needs do not both fit into %s "
            "on %s: the weights wait in main memory, the sampler brings what fits",
            size_text(size), size_text(free), device,
        )  # fmt: skip
    return fits


def _default_gb(node: Any) -> float:
    """The default of the input, as the node itself says."""
    return float(node.INPUT_TYPES()["required"][_INPUT][1]["default"])


def _expects(place: Place) -> str | None:
    nodes = place.part("nodes")
    for name in (_MOVE, _SAMPLE):
        if not callable(getattr(nodes, name, None)):
            return f"its module of nodes has no {name}"
    for node in common.samplers_of(place):
        try:
            _default_gb(node)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            return f"{node.__name__} has no input {_INPUT} with a default"
    return (
        common.samplers_differ(place, (_MOVE, _SAMPLE, "unload_all_models"))
        or parameters_missing(getattr(nodes, _MOVE), ("model", "target_device"))
        or parameters_missing(getattr(nodes, _SAMPLE), ("transformer", "generator", "callback"))
        or _transformer_differs(nodes)
    )


def _transformer_differs(nodes: Any) -> str | None:
    kind = getattr(nodes, "HunyuanVideoTransformer3DModel", None)
    initialize = getattr(kind, "initialize_teacache", None)
    if initialize is None:
        return "its transformer has no initialize_teacache"
    state = ("cnt", "accumulated_rel_l1_distance", "previous_residual")
    told = ("enable_teacache", "num_steps", "rel_l1_thresh")
    return parameters_missing(initialize, told) or names_missing(initialize, state)


def _changes(place: Place) -> list[Change]:
    changes = []
    for node in common.samplers_of(place):
        changes.append(Change(node, "process", _around(_default_gb(node))))
    nodes = place.part("nodes")
    changes += [Change(nodes, _MOVE, _moving), Change(nodes, _SAMPLE, _section)]
    loader = getattr(nodes, "LoadFramePackModel", None)
    if loader is not None and not parameters_missing(loader.loadmodel, ("model", "load_device")):
        changes.append(Change(loader, "loadmodel", _loading))
    return changes


def _around(default_gb: float) -> Callable[[Callable[..., Any]], Any]:
    return common.around_process(NAME, lambda run, arguments: _sampling(run, arguments, default_gb))


SPEC = PatchSpec(
    NAME,
    "FramePackWrapper: preserved memory from what is free and what sections take",
    _expects,
    _changes,
)
