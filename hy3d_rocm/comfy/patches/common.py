"""What every wrapper around a function of upstream's has in common.

The wrapper calls the method that it found; no line of upstream's is repeated here. Nothing is kept
between two calls, so a wrapper may be entered from many threads and from itself. `sampling` is what
is around a node that samples with a pipeline: the proxy, the scopes, what the user sees of steps
and of models on their way.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import comfy.model_management as management
import comfy.utils
import torch

from hy3d_rocm import offload
from hy3d_rocm.comfy import comfy_server, memory, reports, settings
from hy3d_rocm.comfy.patches.engine import MISSING, Change
from hy3d_rocm.comfy.patches.upstream import (
    KNOWN,
    PatchSpec,
    Place,
    function_differs,
    functions_of,
    written,
)
from hy3d_rocm.device import main_device, resolve_device
from hy3d_rocm.diagnose.env.choices import PATCHES
from hy3d_rocm.offload import components
from hy3d_rocm.pipeline import PipelineProxy, seed_mode_of, unwrap
from hy3d_rocm.scopes import cuda_literals
from hy3d_rocm.seed import SEED_MODES, SeedMode
from hy3d_rocm.units import size_text

logger = logging.getLogger("hy3d_rocm")

Make = Callable[[Callable[..., Any]], Callable[..., Any]]  # of a Change
_CHOICES: dict[str, tuple[str, ...]] = {"seed_mode": SEED_MODES, "offload": settings.OFFLOADS}


def _switched(spec: str, make: Make) -> Make:
    """What `make` makes is called only while the settings leave the patch `spec` on, else the
    original."""

    @wraps(make)
    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        ours = make(original)

        def function(*args: Any, **kwargs: Any) -> Any:
            is_off = spec in settings.current().patches_off
            return (original if is_off else ours)(*args, **kwargs)

        return function

    return made


def calling(function: Callable[..., Any]) -> Make:
    """`make` of a Change: `function(original, *args, **kwargs)` in the original's place."""
    return partial(partial, function)


def by_name(around: Callable[[Callable[[], Any], inspect.BoundArguments], Any]) -> Make:
    """`make` of a Change: `around(run, bound)` in the original's place. run: calls the original.
    bound: its arguments by name, defaults included. A call that cannot be bound is the original's,
    which says in its own words what is missing."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(written(original))

        def function(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return original(*args, **kwargs)
            bound.apply_defaults()
            return around(partial(original, *args, **kwargs), bound)

        return function

    return make


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

    def argument(self, name: str) -> Any:
        """The argument `name` of this call; None if the method has no such parameter."""
        return self.arguments.arguments.get(name)

    def run(self, **replaced: Any) -> Any:
        """Upstream's method with these arguments replaced."""
        given = {**self.arguments.arguments, **replaced}
        bound = inspect.BoundArguments(self.arguments.signature, given)
        return self.original(*bound.args, **bound.kwargs)


@dataclass(frozen=True)
class NodePatch:
    """How one node is wrapped: what upstream.toml says of it, see there.

    node: its id. around: runs a Call (once) and returns what it returned.
    """

    node: str
    around: Callable[[Call], Any]
    spec: str
    stage: str
    function: str = "process"
    parameters: Sequence[str] = ()
    names: Sequence[str] = ()
    inputs: Sequence[str] = ()
    optional: bool = False

    def differs(self, upstream: Place) -> str | None:
        """None if the node is as we know it, else a sentence."""
        node_class = upstream.part(self.node)
        known = {"is_node": True, "parameters": self.parameters, "names": self.names}
        different = function_differs(node_class, self.node, self.function, known)
        return different or self._own_inputs_differ(node_class)

    def _own_inputs_differ(self, node_class: Any) -> str | None:
        """A sentence if upstream has an input or a parameter of the same name as one of ours."""
        if self.inputs:
            parameters = inspect.signature(getattr(node_class, self.function)).parameters
            types = node_class.INPUT_TYPES()
            theirs = {name for part in types.values() for name in part} | set(parameters)
            present = types.get("optional", {})  # ours, where it is patched already
            taken = [n for n in self.inputs if n in theirs and present.get(n) != _own_input(n)]
            if taken:
                return f"{self.node} has an input {', '.join(taken)} of its own by now"
        if inspect.iscoroutinefunction(getattr(node_class, "IS_CHANGED", None)):
            return f"{self.node}.IS_CHANGED is asynchronous by now"
        return None

    def changes(self, upstream: Place) -> list[Change]:
        """The changes that wrap it. None for an optional node that is not there, or not as we know
        it."""
        if self.optional and (
            self.node not in upstream.parts or self.differs(upstream) is not None
        ):
            logger.debug("%s is not as we know it and is left as it is", self.node)
            return []
        node_class = upstream.part(self.node)
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
            call = Call(self, original, bound, own, memory.comfy_device())
            before = "VAE Load" if self.stage == "VAE Decode" else self.stage
            with memory.stage_lines(before, self.stage):
                return self.around(call)

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
            added = {name: _own_input(name) for name in self.inputs}
            return {**types, "optional": {**types.get("optional", {}), **added}}

        return extended


def offload_device() -> torch.device:
    """Where ComfyUI keeps diffusion models that are not in use."""
    return torch.device(management.unet_offload_device())


def off_the_gpu(model: Any) -> None:
    """`model.to(<offload device>)` after a failure or at the end; its own failure is only said."""
    try:
        model.to(offload_device())
    except Exception as error:  # noqa: BLE001  (it must not hide why we are here)
        logger.warning("hy3d_rocm: %s stays where it is: %s", type(model).__name__, error)


@contextmanager
def off_the_gpu_after_failure(model: Any) -> Iterator[None]:
    """Upstream leaves a model whose work has failed on the GPU."""
    try:
        yield
    except BaseException:
        off_the_gpu(model)
        raise


def _own_input(name: str) -> tuple[list[str], dict[str, str]]:
    tooltip = KNOWN["inputs"][name]
    return [settings.SETTING, *_CHOICES[name]], {"default": settings.SETTING, "tooltip": tooltip}


def patch_of(
    spec: str, functions: Mapping[str, Any], makes: Mapping[str, Make] | None = None,
    around: Callable[[Call], Any] | None = None,
    also: Callable[[Any], str | None] = lambda place: None,
    wanted: Callable[[], bool] = lambda: True,
) -> PatchSpec:  # fmt: skip
    """The patch `spec`, as upstream.toml knows what it relies on and replaces; the settings switch
    it off at each call.

    functions: by the names there. makes: by the paths there, a Change's `make` for what has no
    function. around: see NodePatch, for the nodes whose patch it is. also: what else is different,
    as a sentence. wanted: see PatchSpec.
    """
    nodes = [
        NodePatch(node, around, **said)
        for node, said in KNOWN["nodes"].items()
        if around is not None and said["spec"] == spec
    ]
    ours = dict(makes or {})
    for paths, known in KNOWN["expects"].get(spec, {}).items():
        for kind, wrap in (("calls", calling), ("around", by_name)):
            if kind in known:
                made = wrap(functions[known[kind]])
                ours.update(dict.fromkeys(paths.replace("?", "").split(), made))
    if spec in PATCHES:  # it has a switch
        ours = {path: _switched(spec, make) for path, make in ours.items()}

    def expects(place: Any) -> str | None:
        found = [different for *_, different, alone in functions_of(place, spec) if not alone]
        told = (node.differs(place) for node in nodes if not node.optional)
        return next(filter(None, found), None) or also(place) or next(filter(None, told), None)

    def changes(place: Any) -> list[Change]:
        made = [
            Change(*at, ours[path])
            for path, at, different, _ in functions_of(place, spec)
            if path in ours and at is not None and different is None
        ]
        for node in nodes:
            made += node.changes(place)
        return made

    return PatchSpec(spec, expects, changes, wanted)


@contextmanager
def sampling(
    call: Call, pipeline: Any, images: int = 1, size: tuple[int, int] | None = None,
    bar: bool = False,
) -> Iterator[PipelineProxy]:  # fmt: skip
    """Yields what the node is given in place of `pipeline`, with everything around it in order.

    images: how many calls will come. size: (height, width) of each, for the measurement of
    activations. bar: the node's bar shows transfers, too. TypeError, in a sentence, for something
    that is no pipeline.
    """
    real, mode = unwrap(pipeline), seed_mode(call, pipeline)
    default = main_device(real) or call.device
    reports.know(real)
    first = getattr(pipeline, "_hy3d_first", 0) if mode == "per_image" else 0
    proxy = PipelineProxy(real, default, mode, call.patch.node, first, Steps(images))
    device = resolve_device(real, default).device
    with ExitStack() as stack:
        transfers = stack.enter_context(Transfers(call.patch.node, bar))
        stack.enter_context(cuda_literals(device))
        stack.enter_context(offload.reporting_moves(real, transfers))
        stack.enter_context(offload.measuring(real, device, size))
        if mode != "legacy":
            stack.enter_context(proxy.batch())
        yield proxy


def seed_mode(call: Call, pipeline: Any) -> SeedMode:
    """The node's own input, else the mode of a proxy that was handed in, else the settings'."""
    asked = call.own.get("seed_mode", settings.SETTING)
    if asked == settings.SETTING:
        own = seed_mode_of(pipeline)
        if own is not None:
            return own
    return settings.seed_mode_for(asked)


def make_room(call: Call, model: Any, size: tuple[int, int] | None = None) -> None:
    """Has ComfyUI free what `model` will need for this call, where that is not free already.

    model: a pipeline or a module. size: (height, width) of the picture, for the activations that
    were measured. Nothing is asked for where the model runs on a CPU. Never raises for a strange
    model: what is wrong with it, the node says.
    """
    real = unwrap(model)
    try:
        device = resolve_device(real, call.device).device
        if not components.is_accelerator(device):
            return
        needed = offload.needed_bytes(real, components.indexed(device), size)
    except Exception as error:  # noqa: BLE001  (a strange model's properties may raise anything)
        logger.debug("what %s needs is not known: %s", type(real).__name__, error)
        return
    if needed:
        memory.make_room(needed, device)


class Steps:
    """`on_step` of a PipelineProxy: ComfyUI's progress bar over all images, and its cancel.

    images: how many calls of the pipeline the bar stands for.
    """

    def __init__(self, images: int = 1) -> None:
        self.images = max(1, images)
        self.done = 0
        self.bar: Any = None

    def __call__(self, step: int, total: int) -> None:
        """One step of `total` is done. ComfyUI's interrupt, if it was asked for, goes out here."""
        management.throw_exception_if_processing_interrupted()
        whole = total * self.images
        self.done = min(self.done + 1, whole)
        if self.bar is None:
            self.bar = comfy.utils.ProgressBar(whole)
        self.bar.update_absolute(self.done, whole)


class Transfers:
    """`progress` of the offload package: shows models that are moved on the node, with bytes.

    A scope: at its end comes the summary. label: what that begins with. bar: whether to move
    ComfyUI's progress bar too, which also lets an interrupt out; not while the node's own steps
    move it.
    """

    def __init__(self, label: str, bar: bool = False) -> None:
        self.label = label
        self.count = 0
        self.moved_bytes = 0
        self._with_bar = bar
        self._bar: Any = None

    def __call__(self, done_bytes: int, total_bytes: int, what: str) -> None:
        """`done_bytes` of `total_bytes` of `what` ("unet to cuda:0") have been moved."""
        if done_bytes >= total_bytes:
            self.count += 1
            self.moved_bytes += total_bytes
        show_text(f"{what}: {size_text(done_bytes)} of {size_text(total_bytes)}")
        if self._with_bar and total_bytes > 0:
            if self._bar is None:
                self._bar = comfy.utils.ProgressBar(total_bytes)
            self._bar.update_absolute(done_bytes, total_bytes)

    def __enter__(self) -> Transfers:
        return self

    def __exit__(self, *_: object) -> None:
        if self.count:
            logger.info(
                "%s: models moved %d times, %s in all",
                self.label, self.count, size_text(self.moved_bytes),
            )  # fmt: skip


def show_text(text: str) -> None:
    """`text` on the node that is running; nothing where no browser can be reached."""
    server = comfy_server()
    utils = sys.modules.get("comfy_execution.utils")
    context = utils.get_executing_context() if utils is not None else None
    if server is None or context is None:
        return
    try:
        server.send_progress_text(text, context.node_id)
    except Exception as error:  # noqa: BLE001  (a text must not cost the picture)
        logger.debug("progress text was not sent: %s", error)
