"""VAE objects for other nodes, whose decode and encode are protected or run under a budget.

What comes out is a shallow copy of the VAE of a class of its own: the same model, patcher and
weights, other methods. The VAE that came in keeps its own.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from hy3d_rocm.comfy import memory, status, vaes
from hy3d_rocm.comfy.decode import decode_samples
from hy3d_rocm.comfy.encode import encode_images
from hy3d_rocm.comfy.reports import own_code_text, report_text
from hy3d_rocm.comfy.running import caught, own_code, running
from hy3d_rocm.decoding.checks import STRATEGIES, check_choice
from hy3d_rocm.decoding.memory.budget import parse_budget
from hy3d_rocm.decoding.planning.planner import DoesNotFitError
from hy3d_rocm.decoding.precision import PRECISIONS
from hy3d_rocm.decoding.stages import stage_of

__all__ = ["MODES", "guard"]

logger = logging.getLogger("hy3d_rocm")

MODES = ("protect", "full")
# What other nodes call; a VAE has some of them.
METHODS = ("decode", "decode_tiled", "encode", "encode_tiled")
_MARK = "_hy3d_rocm_guards"


@dataclass(frozen=True)
class Wishes:
    """How a guarded VAE decodes and encodes in mode "full"."""

    budget: str
    strategy: str
    precision: str


def guard(
    vae: Any, mode: str, budget: str = "auto", strategy: str = "auto", precision: str = "auto"
) -> tuple[Any, str]:
    """A VAE as the module's text says, and a report. ValueError or TypeError (sentences) for a
    mode or budget that is none, and for what is no VAE.

    mode: "protect" or "full". A VAE that is guarded already is guarded anew, not twice.
    """
    check_choice("mode", mode, MODES)
    check_choice("strategy", strategy, STRATEGIES)
    check_choice("precision", precision, PRECISIONS)
    parse_budget(budget.strip() or None)
    source = getattr(vae, _MARK, vae)
    found = [name for name in METHODS if callable(getattr(source, name, None))]
    if not found:
        raise TypeError(
            f"vae is a {type(source).__name__} without {', '.join(METHODS)}: connect a VAE loader"
        )
    is_full = mode == "full" and vaes.is_managed(source)
    wishes = Wishes(budget.strip() or "auto", strategy, precision) if is_full else None
    methods = {name: _method(source, name, wishes) for name in found}
    made = _copy(source)
    made.__class__ = type(f"Protected{type(source).__name__}", (type(source),), methods)
    object.__setattr__(made, _MARK, source)
    return made, _report(source, mode, found, wishes)


def _copy(vae: Any) -> Any:
    """Shallow; a module's tables of parameters and modules are the same ones."""
    made = copy.copy(vae)
    if made is vae:
        raise TypeError(f"a {type(vae).__name__} can't be copied, so it can't be protected")
    return made


def _method(source: Any, name: str, wishes: Wishes | None) -> Callable[..., Any]:
    """`name` of the guarded class. Options that only the VAE's own code knows leave it to that."""
    own = getattr(type(source), name)

    @wraps(own)
    def protected(self: Any, *given: Any, **more: Any) -> Any:
        first = next(iter((*given, *more.values())), None)
        what, encodes = f"Protect VAE: {name}", name.startswith("encode")
        stage, began = stage_of(encodes), time.perf_counter()
        before = "VAE Load" if vaes.is_managed(source) else stage
        with memory.stage_lines(before, stage), running() as run:
            made = own_code(source, lambda: own(self, *given, **more), first, encodes)
        seconds, stats = time.perf_counter() - began, run.guard.stats
        status.remember(own_code_text(what, caught(), first, made, seconds, stats))
        return made

    if wishes is None or name not in _FULL:
        return protected
    run = _FULL[name]

    @wraps(own)
    def full(self: Any, first: Any, *given: Any, **more: Any) -> Any:
        if not isinstance(first, torch.Tensor) or more.get("vae_options"):
            return protected(self, first, *given, **more)

        def as_before(tensor: torch.Tensor) -> Any:
            return own(self, tensor, *given, **more)

        try:
            made, report = run(
                source, first, budget=wishes.budget, strategy=_possible(name, wishes.strategy),
                precision=wishes.precision, own=as_before, who=f"Protect VAE: {name}",
            )  # fmt: skip
        except DoesNotFitError as error:
            raise ValueError(f"Protect VAE: {error}") from error
        kind = "pixels" if name == "encode" else "latents"
        text = report_text(report, first, made, report.seconds, "", kind)
        status.remember(f"Protect VAE: {name}, {text}")
        return made

    return full


# The tiled methods keep their tiles: somebody has chosen them.
_FULL: dict[str, Callable[..., Any]] = {"decode": decode_samples, "encode": encode_images}


def _possible(name: str, strategy: str) -> str:
    """An encode has no tiles."""
    return "auto" if strategy == "tiled" and name.startswith("encode") else strategy


def _report(source: Any, mode: str, found: list[str], wishes: Wishes | None) -> str:
    inner = getattr(source, "first_stage_model", source)
    lines = [
        f"{type(inner).__name__}: {', '.join(found)} run with failing convolutions caught and "
        "computed in another way",
    ]
    if wishes is not None:
        lines.append(
            f"within a budget ({wishes.budget}), strategy {wishes.strategy}, precision "
            f"{wishes.precision}: decode and encode; the tiled ones keep their tiles"
        )
    elif mode == "full":
        lines.append(
            "no budget: this is no VAE of ComfyUI's own, and its decode takes other arguments; "
            "VAE Decode (ROCm, bounded memory) decodes it within one"
        )
    return "\n".join(lines)
