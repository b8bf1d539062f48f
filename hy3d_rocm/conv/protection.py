"""protect(): a scope in which each convolution is computed by the tier that does it best.

router.py does it; here stand the functions that open a scope, or tell one something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import torch

from hy3d_rocm.conv.call import dtype_name, size_text
from hy3d_rocm.conv.choice import TIERS, parse_policy
from hy3d_rocm.conv.fallback import Settings
from hy3d_rocm.conv.policy import Planner, all_tiers
from hy3d_rocm.conv.router import LOCAL, Guard
from hy3d_rocm.conv.stats import Named, OnEvent
from hy3d_rocm.conv.tiers import Limits, Tier, make_tier

__all__ = ["aside", "note", "protect"]


def protect(
    *,
    policy: str | None = None,
    when: str = "always",
    tiers: Sequence[str | Tier] | None = None,
    budget: int | None = None,
    memory_threshold: float = 0.8,
    on_event: OnEvent | None = None,
    check_finite: bool = False,
    synchronize: bool = False,
    on_oom: str = "retry",
    threads: int | None = None,
    workspace_limit: int | None = None,
    cancel: object = None,
    accuracy: str = "fast",
) -> Guard:
    """A scope in which the best tier (implementation) computes each conv2d and conv3d, and another
    takes over if it fails.

        with protect() as guard:
            frames = vae.decode(latents)
        print(guard.stats.table())

    policy: "auto" (the default) takes the cheapest healthy tier by measured time, else by
    estimate; on NVIDIA that is PyTorch as it is set up, until that fails. The vendor's library is
    called only for shapes that have been proven (`hy3d-rocm tune`), since MIOpen can hang. "safe"
    asks for the proof on NVIDIA too, and never starts a child process. "vendor-first" prefers the
    library, after a child process has tried the shape where it is unproven. "pin:<tier>" puts one
    tier first. tiers: the exact order instead ("current", "vendor", "triton", "gemm", "conv2d",
    "native", "cpu", or objects with a Tier's methods); not together with policy. What failed is
    remembered for the process (hy3d_rocm.conv.forget() drops it) and, on a GPU, in the store.

    when: "always" (the default); "amd" acts only if this PyTorch is a ROCm build, and otherwise
    does nothing at all.
    budget: bytes that a tier's workspace and output may take; memory_threshold: share of the free
    memory that they may take. on_event: called with an Event for each attempt, on the calling
    thread; what it raises is not caught. check_finite: a tier that gives NaN or infinity for
    finite input has failed (costs a pass over each result, and a wait for the GPU).
    synchronize: wait for the GPU after each attempt, so that seconds are those of the kernel and
    errors come up at the call that made them. on_oom: "raise" lets an out-of-memory error pass to
    a caller who can do with less (smaller tiles), "retry" tries the next tier. threads,
    workspace_limit, cancel, accuracy ("fast" or "exact"): for the C conv3d.

    Gradients: forward is routed all the same, and a backward that fails as a back-end does is
    computed in another way (docs/router.md). What torch.func, forward-mode AD, tracing or make_fx
    record is left to PyTorch, which stats.unprotected says. Raises ValueError for a wrong argument
    or a wrong HY3D_FAULTS.
    """
    _check_words(when, on_oom, accuracy, memory_threshold, budget)
    cpu = {"threads": threads, "workspace_limit": workspace_limit, "cancel": cancel}
    cpu["accuracy"] = accuracy
    limits = Limits(budget, memory_threshold)
    if tiers is None:
        chosen = parse_policy("auto" if policy is None else policy, TIERS)
        planner = Planner(chosen, all_tiers(**cpu), limits)
    else:
        if policy is not None:
            raise ValueError(
                f"protect: policy={policy!r} and tiers={tiers!r} both say which tier comes first;"
                " give one of them"
            )
        planner = Planner(None, _made(tiers, cpu), limits)
    settings = Settings(limits, on_event, check_finite, synchronize, raise_oom=on_oom == "raise")
    active = when == "always" or torch.version.hip is not None
    return Guard(settings, planner, active=active)


def aside(*, check_finite: bool = False) -> Guard:
    """A scope for convolutions that are not what was asked for, as a question to a VAE beforehand:
    protected as around it, but those around it do not count them. Nothing where nothing is around.
    """
    if not LOCAL.modes:
        return Guard(Settings(Limits()), Planner(None, (), Limits()), active=False)
    around = LOCAL.modes[-1]
    settings = replace(around.settings, check_finite=check_finite or around.settings.check_finite)
    return Guard(settings, around.planner, is_aside=True)


def note(size: Sequence[int], outputs: int, dtype: torch.dtype, tier: str, seconds: float) -> None:
    """Tells the innermost protect() of this thread, where there is one, of a convolution in 3D that
    was computed past it. size: (N, C, T, H, W) of what was convolved; outputs: channels."""
    if LOCAL.modes and not LOCAL.modes[-1].busy[0]:
        what = Named("conv3d", f"{size_text(size)} -> {outputs}", dtype_name(dtype))
        audience = LOCAL.modes[-1].audience
        audience.count(audience.rows(what, tier), seconds)


def _check_words(when: str, on_oom: str, accuracy: str, memory_threshold: Any, budget: Any) -> None:
    for name, word, one, other in (
        ("when", when, "always", "amd"), ("on_oom", on_oom, "retry", "raise"),
        ("accuracy", accuracy, "fast", "exact"),
    ):  # fmt: skip
        if word not in (one, other):
            raise ValueError(f"protect: {name}={word!r} is neither {one!r} nor {other!r}")
    if not isinstance(memory_threshold, Real) or not 0 < float(memory_threshold) <= 1:
        raise ValueError(f"protect: memory_threshold={memory_threshold!r} is not in (0, 1]")
    if budget is not None and (not isinstance(budget, Real) or float(budget) < 0):
        raise ValueError(
            f"protect: budget={budget!r} is negative, or no number of bytes; None means no budget"
        )


def _made(tiers: Sequence[str | Tier], cpu_options: dict[str, object]) -> tuple[Tier, ...]:
    """The tiers of protect(tiers=...)."""
    if isinstance(tiers, str) or not tiers:
        raise ValueError(f"protect: tiers={tiers!r} is not a list such as ['current', 'cpu']")
    made = tuple(make_tier(t, **cpu_options) if isinstance(t, str) else t for t in tiers)
    if len({tier.name for tier in made}) != len(made):
        raise ValueError(f"protect: tiers={tiers!r} names a tier twice")
    return made
