"""What every wrapper around a node of upstream's has in common.

A `NodePatch` says how one node is wrapped, and makes the changes for it: the node's method, its
IS_CHANGED (so that switching a setting runs it again) and, where it has inputs of ours, its
INPUT_TYPES. The wrapper calls the method that it found; no line of upstream's is repeated here.
Nothing is kept between two calls, so a wrapper may be entered from many threads and from itself.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hy3d_rocm.comfy import memory, settings
from hy3d_rocm.comfy.patch import MISSING, Change, Upstream, node_differs
from hy3d_rocm.seed import SEED_MODES

logger = logging.getLogger("hy3d_rocm")

OWN_INPUTS: dict[str, tuple[tuple[str, ...], str]] = {
    "seed_mode": (
        SEED_MODES,
        "Which noise a batch gets. stream: one generator for the whole batch, image 1 as without "
        "hy3d_rocm. per_image: image i has a seed of its own, however the batch is split. legacy: "
        "as without hy3d_rocm. setting: as ComfyUI's settings say.",
    ),
    "offload": (
        settings.OFFLOADS,
        "Whether parts of the model wait in main memory while they are not needed. auto: only "
        "where the model does not fit otherwise. setting: as ComfyUI's settings say.",
    ),
}


@dataclass
class Call:
    """One call of a wrapped node.

    arguments: what the method is called with, by name, `self` and defaults included.
    own: what our own inputs say. device: ComfyUI's.
    """

    patch: NodePatch
    original: Callable[..., Any]
    arguments: inspect.BoundArguments
    own: dict[str, str]
    device: torch.device

    def argument(self, name: str, default: Any = None) -> Any:
        """The argument `name` of this call; `default` if the method has no such parameter."""
        return self.arguments.arguments.get(name, default)

    def has(self, name: str) -> bool:
        """Whether the method has a parameter `name`."""
        return name in self.arguments.signature.parameters

    def run(self, **replaced: Any) -> Any:
        """Upstream's method with these arguments replaced."""
        given = {**self.arguments.arguments, **replaced}
        bound = inspect.BoundArguments(self.arguments.signature, given)
        return self.original(*bound.args, **bound.kwargs)


@dataclass(frozen=True)
class NodePatch:
    """How one node is wrapped.

    spec: name of its patch, under which the settings switch it off. node: its id. stage: what the
    memory lines call it. around: runs a Call (once) and returns what it returned.
    function: the method that the node runs. parameters, names: what `around` relies on there.
    inputs: names out of OWN_INPUTS, added after upstream's own; upstream never sees them.
    """

    spec: str
    node: str
    stage: str
    around: Callable[[Call], Any]
    function: str = "process"
    parameters: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    inputs: tuple[str, ...] = field(default=())

    def differs(self, upstream: Upstream) -> str | None:
        """None if the node is as we know it, else a sentence."""
        sentence = node_differs(upstream, self.node, self.function, self.parameters, self.names)
        return sentence or own_inputs_differ(upstream.node(self.node), self.function, self.inputs)

    def changes(self, node_class: type) -> list[Change]:
        """The changes that wrap `node_class`."""
        changes = [
            Change(node_class, self.function, self.wrapped),
            Change(node_class, "IS_CHANGED", self.is_changed, added=True),
        ]
        if self.inputs:
            changes.append(Change(node_class, "INPUT_TYPES", self.input_types))
        return changes

    def wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The node's method, wrapped."""
        signature = inspect.signature(original)

        def method(*args: Any, **kwargs: Any) -> Any:
            own = {name: kwargs.pop(name, settings.SETTING) for name in self.inputs}
            if self.spec in settings.current().patches_off:
                return original(*args, **kwargs)
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return original(*args, **kwargs)  # which says in its own words what is missing
            bound.apply_defaults()
            return _run(Call(self, original, bound, own, comfy_device()))

        return method

    def is_changed(self, original: Any) -> Any:
        """IS_CHANGED: the settings that count for this node, with upstream's own answer."""
        if original is not MISSING:

            def combined(*args: Any, **inputs: Any) -> Any:
                theirs = {name: inputs[name] for name in inputs if name not in self.inputs}
                return [self.fingerprint(inputs), original(*args, **theirs)]

            return combined

        def alone(cls: type, /, **inputs: Any) -> str:
            return self.fingerprint(inputs)

        return classmethod(alone)

    def fingerprint(self, inputs: dict[str, Any]) -> str:
        """The settings that this call would look up; one that an input overrides is none."""
        asked = [name for name in self.inputs if inputs.get(name) in (None, settings.SETTING)]
        return settings.fingerprint(self.spec, *asked)

    def input_types(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """INPUT_TYPES with our own inputs after all others, so that saved workflows keep theirs."""

        def extended(*args: Any, **kwargs: Any) -> Any:
            types = original(*args, **kwargs)
            added = {name: _combo(*OWN_INPUTS[name]) for name in self.inputs}
            return {**types, "optional": {**types.get("optional", {}), **added}}

        return extended


def own_inputs_differ(node_class: type, function: str, inputs: tuple[str, ...]) -> str | None:
    """A sentence if upstream has an input or a parameter of the same name as one of ours."""
    parameters = inspect.signature(getattr(node_class, function)).parameters
    types = node_class.INPUT_TYPES()  # type: ignore[attr-defined]
    theirs = {name for part in types.values() for name in part} | set(parameters)
    taken = [name for name in inputs if name in theirs and not _is_ours(types, name)]
    if taken:
        return f"{node_class.__name__} has an input {', '.join(taken)} of its own by now"
    if inspect.iscoroutinefunction(getattr(node_class, "IS_CHANGED", None)):
        return f"{node_class.__name__}.IS_CHANGED is asynchronous by now"
    return None


def comfy_device() -> torch.device:
    """The device on which ComfyUI computes."""
    import comfy.model_management as management

    return torch.device(management.get_torch_device())


def offload_device() -> torch.device:
    """Where ComfyUI keeps diffusion models that are not in use."""
    import comfy.model_management as management

    return torch.device(management.unet_offload_device())


def off_the_gpu(model: Any) -> None:
    """`model.to(<offload device>)` after a failure or at the end; its own failure is only said."""
    try:
        model.to(offload_device())
    except Exception as error:  # noqa: BLE001  (it must not hide why we are here)
        logger.warning("hy3d_rocm: %s stays where it is: %s", type(model).__name__, error)


def _run(call: Call) -> Any:
    """The call between its two memory lines."""
    stage = call.patch.stage
    with memory.stage_lines("VAE Load" if stage == "VAE Decode" else stage, stage):
        return call.patch.around(call)


def _combo(choices: tuple[str, ...], tooltip: str) -> tuple[list[str], dict[str, str]]:
    return [settings.SETTING, *choices], {"default": settings.SETTING, "tooltip": tooltip}


def _is_ours(types: dict[str, Any], name: str) -> bool:
    return bool(types.get("optional", {}).get(name) == _combo(*OWN_INPUTS[name]))


def differs_first(patches: Sequence[NodePatch]) -> Callable[[Upstream], str | None]:
    """`expects` of a PatchSpec: the first difference of any of its nodes."""

    def expects(upstream: Upstream) -> str | None:
        return next(filter(None, (patch.differs(upstream) for patch in patches)), None)

    return expects


def node_changes(patches: Sequence[NodePatch]) -> Callable[[Upstream], list[Change]]:
    """`changes` of a PatchSpec: those of all its nodes."""

    def changes(upstream: Upstream) -> list[Change]:
        return [c for patch in patches for c in patch.changes(upstream.node(patch.node))]

    return changes
