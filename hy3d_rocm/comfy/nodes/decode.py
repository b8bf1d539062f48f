"""The nodes that decode and encode, and the one that gives VAE objects for other nodes, whose
decode and encode are protected or run under a budget.

What the latter gives is a shallow copy of the VAE of a class of its own: the same model, patcher
and weights, other methods. The VAE that came in keeps its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from comfy_api.v0_0_2 import io

from hy3d_rocm.comfy import memory, reports, vaes
from hy3d_rocm.comfy.decode import decode_latent, encode_pixels, run_own_code, run_vae
from hy3d_rocm.comfy.nodes.common import Node, asked
from hy3d_rocm.comfy.reports import report_text
from hy3d_rocm.decoding.checks import STRATEGIES, check_choice
from hy3d_rocm.decoding.memory.budget import parse_budget
from hy3d_rocm.decoding.planning.planner import DoesNotFitError
from hy3d_rocm.decoding.precision import PRECISIONS
from hy3d_rocm.decoding.stages import stage_of

MODES = ("protect", "full")
# What other nodes call; a VAE has some of them.
METHODS = ("decode", "decode_tiled", "encode", "encode_tiled")
Wishes = tuple[str, str, str]  # budget, strategy, precision
_MARK = "_hy3d_rocm_guards"


class Hy3DRocmVAEDecode(Node):
    """VAEDecode that finishes: under a memory budget, through failing convolutions."""

    @classmethod
    def execute(
        cls, samples: Any, vae: Any, budget: str, strategy: str, precision: str, **options: Any
    ) -> io.NodeOutput:
        wanted = asked(budget, strategy, precision, options, "VAE Decode (ROCm)")
        return io.NodeOutput(*decode_latent(vae, samples, wanted))


class Hy3DRocmVAEEncode(Node):
    """VAEEncode that finishes: under a memory budget, through failing convolutions."""

    @classmethod
    def execute(
        cls, pixels: Any, vae: Any, budget: str, strategy: str, precision: str, **options: Any
    ) -> io.NodeOutput:
        wanted = asked(budget, strategy, precision, options, "VAE Encode (ROCm)")
        return io.NodeOutput(*encode_pixels(vae, pixels, wanted))


class Hy3DRocmProtectVAE(Node):
    """A VAE for other nodes, whose decode and encode finish."""

    @classmethod
    def execute(
        cls, vae: Any, mode: str, budget: str, strategy: str, precision: str
    ) -> io.NodeOutput:
        return io.NodeOutput(*guard(vae, mode, budget, strategy, precision))


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
    # How it decodes and encodes then; None: as its own code does.
    wishes = (budget.strip() or "auto", strategy, precision) if is_full else None
    methods = {name: _method(source, name, wishes) for name in found}
    made = copy.copy(source)  # shallow: a module's tables of parameters and modules are the same
    if made is source:
        raise TypeError(f"a {type(source).__name__} can't be copied, so it can't be protected")
    made.__class__ = type(f"Protected{type(source).__name__}", (type(source),), methods)
    object.__setattr__(made, _MARK, source)
    return made, _report(source, mode, found, wishes)


def _method(source: Any, name: str, wishes: Wishes | None) -> Callable[..., Any]:
    """`name` of the guarded class. Options that only the VAE's own code knows leave it to that."""
    own = getattr(type(source), name)

    @wraps(own)
    def protected(self: Any, *given: Any, **more: Any) -> Any:
        first = next(iter((*given, *more.values())), None)
        encodes = name.startswith("encode")
        stage = stage_of(encodes)
        before = "VAE Load" if vaes.is_managed(source) else stage
        with memory.stage_lines(before, stage):
            work = partial(own, self, *given, **more)
            return run_own_code(f"Protect VAE: {name}", source, work, first, encodes)

    # The tiled methods keep their tiles: somebody has chosen them.
    if wishes is None or name not in ("decode", "encode"):
        return protected
    encode, (budget, strategy, precision) = name == "encode", wishes
    possible = "auto" if encode and strategy == "tiled" else strategy  # an encode has no tiles

    @wraps(own)
    def full(self: Any, first: Any, *given: Any, **more: Any) -> Any:
        if not isinstance(first, torch.Tensor) or more.get("vae_options"):
            return protected(self, first, *given, **more)

        def as_before(tensor: torch.Tensor) -> Any:
            return own(self, tensor, *given, **more)

        try:
            made, report = run_vae(
                source, first, own=as_before, encode=encode, budget=budget, strategy=possible,
                precision=precision, who=f"Protect VAE: {name}",
            )  # fmt: skip
        except DoesNotFitError as error:
            raise ValueError(f"Protect VAE: {error}") from error
        text = report_text(report, first, made, encode)
        reports.remember(f"Protect VAE: {name}, {text}")
        return made

    return full


def _report(source: Any, mode: str, found: list[str], wishes: Wishes | None) -> str:
    inner = getattr(source, "first_stage_model", source)
    lines = [
        f"{type(inner).__name__}: {', '.join(found)} run with failing convolutions caught and "
        "computed in another way"
    ]
    if wishes is not None:
        budget, strategy, precision = wishes
        lines.append(
            f"within a budget ({budget}), strategy {strategy}, precision {precision}: decode and "
            "encode; the tiled ones keep their tiles"
        )
    elif mode == "full":
        lines.append(
            "no budget: this is no VAE of ComfyUI's own, and its decode takes other arguments; "
            "VAE Decode (ROCm, bounded memory) decodes it within one"
        )
    return "\n".join(lines)
