"""How methods of other people's VAEs run: as they are, under protect(), in parts, or on the CPU.

The setting `vae` says which, at each call. Inside of somebody's protect() nothing is done: our own
nodes call a VAE's methods with their own choice, and a patched method may call another. The tiled
methods of comfy.sd.VAE keep the tiles that they were asked for. Of the Wan and HunyuanVideo
wrappers the classes of the VAEs are patched, not the nodes: samplers and other nodes decode too.
"""

from __future__ import annotations

import inspect
import logging
import math
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import comfy.model_management as management
import torch

from hy3d_rocm.comfy import during, memory, reports, running, settings, vaes
from hy3d_rocm.comfy.decode import run_own_code, run_vae
from hy3d_rocm.comfy.memory import is_managed
from hy3d_rocm.comfy.patches.common import Make, by_name, calling, patch_of
from hy3d_rocm.comfy.patches.upstream import KNOWN, PatchSpec, written
from hy3d_rocm.comfy.reports import report_text
from hy3d_rocm.comfy.settings import Settings
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.router import LOCAL, Guard
from hy3d_rocm.decoding.executor import decode_with_report, encode_with_report
from hy3d_rocm.decoding.memory.budget import parse_budget
from hy3d_rocm.decoding.stages import stage_of, tensors_in
from hy3d_rocm.diagnose.env.choices import say_once

logger = logging.getLogger("hy3d_rocm")

# Of a budget and a strategy, what the VAE's own code gives and a report; LeftAlone where it can't.
InParts = Callable[[str, str], tuple[Any, str]]

# Guards around whole nodes (`_around_node`): inside of these a VAE is still to be looked after.
AROUND_NODES: weakref.WeakSet[Guard] = weakref.WeakSet()


class LeftAlone(Exception):  # noqa: N818  (nothing is wrong: the VAE's own code does it)
    """The VAE's own code has to do it. The text says why."""


@dataclass(frozen=True)
class Work:
    """One call of a VAE's method.

    vae: as its class has it. what: "VAE.decode", for the log. encodes: whether it makes latents.
    original: its own code. in_parts: None where this call is not to be split. source: what goes in.
    """

    vae: Any
    what: str
    encodes: bool
    original: Callable[[], Any]
    in_parts: InParts | None
    source: Any

    def run(self) -> Any:
        """As the settings say. If what goes in is finite and the result is not, once more with each
        convolution's values looked through."""
        now = settings.current()
        # In a protect() of this thread that is not that of a whole node nothing is done.
        is_inside = any(mode.guards[0] not in AROUND_NODES for mode in LOCAL.modes)
        if now.vae == "off" or is_inside:
            return self.original()
        stage = stage_of(self.encodes)
        # ComfyUI's own methods load the VAE; a wrapper's node has done that before.
        before = "VAE Load" if is_managed(self.vae) else stage
        policy = running.ON_CPU if now.vae == "cpu" else running.POLICY.get()
        with memory.stage_lines(before, stage), during(running.POLICY, policy):
            return self._finite(now)

    def _finite(self, now: Settings) -> Any:
        made = self._once(now)
        if is_finite(made) or not is_finite(self.source):
            return made
        del made
        logger.warning(
            "hy3d_rocm: %s gave NaN: once more, with each convolution checked", self.what
        )
        with during(running.CHECKED, True):
            made = self._once(now)
        if not is_finite(made):
            logger.warning(
                "hy3d_rocm: %s gives NaN whichever way its convolutions are computed: the VAE's "
                "type cannot hold its values; start ComfyUI with --fp32-vae, or set the VAE nodes "
                "to full",
                self.what,
            )
        return made

    def _once(self, now: Settings) -> Any:
        """In parts where that is asked for and can be, else the VAE's own code under protect()."""
        if now.vae != "protect" and self.in_parts is not None:
            try:
                made, report = self.in_parts(now.vae_budget, "cpu" if now.vae == "cpu" else "auto")
            except LeftAlone as reason:
                why = str(reason)
            else:
                reports.remember(f"{self.what}, in place: {report}")
                return made
            # Outside of the except block, which would keep what the attempt held.
            say_once(f"{self.what} runs in its own way, {running.caught()}: {why}", logging.INFO)
        return run_own_code(
            f"{self.what}, in place,", self.vae, self.original, self.source, self.encodes,
            partial(tell, self.what),
        )  # fmt: skip


def is_finite(value: Any) -> bool:
    """Whether there is no NaN and no infinity in a tensor, or in those that a sequence holds or a
    VAE's output object. What holds no tensor is finite."""
    # The sum takes no memory; frames and latents are far from where it would overflow.
    return all(math.isfinite(float(t.sum(dtype=torch.float32))) for t in tensors_in(value))


class _Told(threading.local):
    """recovered: convolutions of this thread that `tell` has spoken of."""

    recovered = 0


TOLD = _Told()


def tell(what: str, guard: Guard, since: int | None = None) -> None:
    """Says what the guard had to do; nothing where all went its first way.

    since: what TOLD.recovered was when the guard began, if there are others inside of it that speak
    for themselves.
    """
    stats = guard.stats
    recovered = stats.recovered - (0 if since is None else TOLD.recovered - since)
    if recovered <= 0 and (since is not None or not stats.raised):
        return
    TOLD.recovered += recovered
    line = f"{what}: {recovered} of {stats.calls} convolutions went another way than the first"
    if stats.raised:
        line += f", {stats.raised} failed in every way"
    logger.info("hy3d_rocm: %s", line)
    if since is not None or stats.raised:  # who has ended well is told of with what was made
        reports.remember(f"{line}\n{stats.table()}")


def wrapper_in_parts(
    vae: Any, given: torch.Tensor, budget: str, strategy: str = "auto", *, encode: bool = False,
    moments: bool = False,
) -> tuple[torch.Tensor, str]:  # fmt: skip
    """A wrapper's VAE in parts within a budget (see parse_budget), as its own methods would give
    it: tensors (B, C, T, H, W) on the CPU in the VAE's own range, and a report.

    Frames of latents; encode: the mean of pixels, moments: mean and log variance, 2 C channels.
    LeftAlone for any reason; interrupts go through.
    """
    try:
        family = vaes.family_of(vae, encode)
        place = vaes.place_of(family)
        with running.running() as run, running.current_device(place), torch.no_grad():
            if not vaes.is_proven(family, encode):
                raise TypeError(f"this {family.name} VAE does otherwise than its layers say")
            request = parse_budget(budget)
            if request is None:
                request = vaes.automatic(place)
            arguments = (family, given, request, strategy, "auto", run.steps, run.watcher)
            with memory.own_care(vae):
                if encode:
                    made, report = encode_with_report(*arguments, moments=moments)
                else:
                    made, report = decode_with_report(*arguments)
        return made, report_text(report, given, made, encode)
    except management.InterruptProcessingException:
        raise
    except Exception as error:
        logger.debug("hy3d_rocm: in parts, in place", exc_info=True)
        why = running.said(error)
    # After the except block: what failed holds tensors.
    raise LeftAlone(why)


async def _around_node(
    run_node: Callable[..., Any], /, prompt_id: Any, unique_id: Any, obj: Any, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """ComfyUI runs each node through `execution.get_output_data`. Nodes that are coroutines are
    left alone: they may stand still in the middle, where a function mode would act on others' calls
    and could be left in the wrong order."""
    run = partial(run_node, prompt_id, unique_id, obj, *args, **kwargs)
    if not settings.current().protect_prompts or is_asynchronous(obj):
        return await run()
    guard, since = protect(), TOLD.recovered
    AROUND_NODES.add(guard)
    try:
        with guard:
            return await run()
    finally:
        node = obj if isinstance(obj, type) else type(obj)
        tell(node.__name__, guard, since)


def is_asynchronous(node: Any) -> bool:
    """Whether the node's own function is a coroutine; also where it cannot be told."""
    function = getattr(node, getattr(node, "FUNCTION", ""), None)
    return function is None or inspect.iscoroutinefunction(function)


# Every node of a prompt under protect(): up-scalers, ControlNet, video packs. Off by default.
PROMPTS = patch_of("prompts", globals(), wanted=lambda: settings.current().protect_prompts)


def is_untouched(vae: Any) -> bool:
    """Previews' tiny VAEs, and what makes sound or meshes: their convolutions are none of those
    that fail, and their axes are not those of frames."""
    model = getattr(vae, "first_stage_model", None)
    if model is None or getattr(vae, "extra_1d_channel", None) is not None:
        return True
    kind = f"{type(model).__module__}.{type(model).__name__}".lower()
    return vae.latent_dim not in (2, 3) or "taesd" in kind or "taehv" in kind or "audio" in kind


def _core_in_parts(
    name: str, vae: Any, own: Callable[[torch.Tensor], Any], given: Any, budget: str, strategy: str
) -> tuple[Any, str]:
    """What our node gives. own: ComfyUI's method, for where nothing else can be done."""
    asked: list[bool] = []

    def own_noted(tensor: Any) -> Any:
        asked.append(True)
        return own(tensor)

    encode = name == "encode"
    try:
        made, report = run_vae(
            vae, given, own=own_noted, encode=encode, budget=budget, strategy=strategy,
            who=f"VAE.{name}",
        )  # fmt: skip
    except management.InterruptProcessingException:
        raise
    except Exception as error:
        if asked:  # it is ComfyUI's method that failed
            raise
        why = running.said(error)
    else:
        return made, report_text(report, given, made, encode)
    raise LeftAlone(why)


def _core(path: str, original: Callable[..., Any], vae: Any, /, *args: Any, **kwargs: Any) -> Any:
    name, parameter = path.split(".")[1], KNOWN["expects"]["core-vae"][path]["parameters"][0]
    given = args[0] if args else kwargs.get(parameter)
    if is_untouched(vae) or not isinstance(given, torch.Tensor):
        return original(vae, *args, **kwargs)
    in_parts = None
    # Only where nothing but the tensor is given: other options only its own code knows.
    others = [value for key, value in kwargs.items() if key != parameter]
    if name in ("decode", "encode") and not any([*args[1:], *others]):
        in_parts = partial(_core_in_parts, name, vae, partial(original, vae), given)
    own_way = partial(original, vae, *args, **kwargs)
    return Work(vae, path, name.startswith("encode"), own_way, in_parts, given).run()


_HUNYUAN_CLASS = "AutoencoderKLCausal3D"
# What the HunyuanVideoWrapper's nodes set where "auto_tile_size" is on: its choice, not the user's.
_AUTOMATIC = {"tile_latent_min_tsize": 16, "tile_sample_min_size": 256, "tile_latent_min_size": 32}
# Arguments of WanVideoVAE's methods under which the frames are those of the plain decode.
_WAN_PLAIN = {"tiled": False, "end_": False, "sample": False}

# Whether it encodes, the call, budget, strategy: what the VAE's own code gives, and a report.
Split = Callable[[bool, inspect.BoundArguments, str, str], tuple[Any, str]]


def _wan(
    encode: bool, call: inspect.BoundArguments, budget: str, strategy: str
) -> tuple[Any, str]:  # fmt: skip
    """In float32: a list of (C, T, H, W), one for each video, as single_decode leaves them; latents
    (B, C, T, H, W) on the device that was named."""
    given = call.arguments
    for name, plain in _WAN_PLAIN.items():
        if given.get(name, plain) != plain:
            raise LeftAlone(f"{name} was asked for")
    source = _stacked(given["videos" if encode else "hidden_states"])
    made, report = wrapper_in_parts(given["self"], source, budget, strategy, encode=encode)
    return made.to(given["device"], torch.float32) if encode else list(made.float()), report


def _stacked(videos: Any) -> torch.Tensor:
    if isinstance(videos, torch.Tensor):
        return videos
    videos = list(videos)
    if len({video.shape for video in videos}) != 1:
        raise LeftAlone("the videos have different sizes")
    # One video, which is the usual call, is not copied.
    return videos[0][None] if len(videos) == 1 else torch.stack(videos)


def _hunyuan(
    encode: bool, call: inspect.BoundArguments, budget: str, strategy: str
) -> tuple[Any, str]:  # fmt: skip
    """(frames,) or (posterior,), or the object that the VAE's module has for these."""
    vae, source = call.arguments["self"], call.arguments["x" if encode else "z"]
    tiled = getattr(vae, "use_spatial_tiling", False) or getattr(vae, "use_temporal_tiling", False)
    if tiled and any(getattr(vae, name, size) != size for name, size in _AUTOMATIC.items()):
        raise LeftAlone("tile sizes were chosen")
    made, report = wrapper_in_parts(vae, source, budget, strategy, encode=encode, moments=encode)
    made = made.to(source.device)
    if encode:
        made = _named(vae, "DiagonalGaussianDistribution")(made)
    if not call.arguments["return_dict"]:
        return (made,), report
    if encode:
        return _named(vae, "AutoencoderKLOutput")(latent_dist=made), report
    return _named(vae, "DecoderOutput")(sample=made), report


def _named(vae: Any, name: str) -> Any:
    """An object of the module in which the VAE's class was written."""
    for base in type(vae).__mro__:
        if base.__name__ == _HUNYUAN_CLASS:
            return written(base.__dict__["decode"]).__globals__[name]
    raise LeftAlone(f"{type(vae).__name__} is no {_HUNYUAN_CLASS}")


def _wrapped(path: str, split: Split) -> Make:
    encode = path.endswith(".encode")

    def around(run: Callable[[], Any], bound: inspect.BoundArguments) -> Any:
        vae, source = list(bound.arguments.values())[:2]
        return Work(vae, path, encode, run, partial(split, encode, bound), source).run()

    return by_name(around)


def _spec(spec: str, split: Split | None = None) -> PatchSpec:
    """The methods that the patch relies on. split: of a wrapper's VAE, which has encode and
    decode."""
    makers = {
        path: calling(partial(_core, path)) if split is None else _wrapped(path, split)
        for path in KNOWN["expects"][spec]
    }
    return patch_of(spec, {}, makers, wanted=lambda: settings.current().vae != "off")


CORE_SPECS = (_spec("core-vae"), PROMPTS)
WAN_SPECS = (_spec("wan-vae", _wan),)
HUNYUAN_SPECS = (_spec("hunyuan-vae", _hunyuan),)
