"""Before MIOpen is called here: its shapes are tried in a child process, since it may hang."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hy3d_rocm.conv import probe as probing
from hy3d_rocm.conv.call import ConvSpec, make_spec
from hy3d_rocm.conv.choice import VENDOR_TIERS
from tools.dev.bench.gpu_cells import DTYPES, LAYOUTS
from tools.dev.bench.gpu_layers import Layer

# What one shape may take; a find of MIOpen that is slow and no hang takes tens of seconds.
_CASE_S = 60.0


def spec_of(layer: Layer, dtype: str, layout: str, device: torch.device) -> ConvSpec:
    """The spec of a layer's call, without its tensors."""
    sizes = (layer.input, layer.weight, layer.weight[:1])
    one = torch.empty((), dtype=DTYPES[dtype], device="cpu")
    stand_ins = [one.expand(size) for size in sizes]
    rest = (layer.stride, layer.padding, layer.dilation, layer.groups)
    spec = make_spec((*stand_ins, *rest), layer.ndim)
    assert spec is not None, "load_layers() has checked the sizes"
    return dataclasses.replace(spec, device=device, channels_last=layout == LAYOUTS[1])


def unproven(
    layers: Sequence[Layer],
    dtypes: Sequence[str],
    tiers: Sequence[str],
    device: torch.device,
    seconds: float,
    say: Callable[[str], None],
    probe: Callable[..., Any] = probing.probe,
) -> Mapping[tuple[str, ConvSpec], str]:
    """Why a tier of the library is not to be called for a spec: what the child did not do."""
    names = ["vendor", *(t for t in tiers if t in VENDOR_TIERS and t != "vendor")]
    specs = [spec_of(layer, d, at, device) for d in dtypes for layer in layers for at in LAYOUTS]
    pairs = [(name, spec) for spec in specs for name in names]
    cases = [probing.Case(name, spec) for name, spec in pairs]
    say(f"trying {len(cases)} calls of MIOpen in a child process, {seconds:.0f} s at most")

    def heard(progress: probing.Progress) -> None:
        if progress.outcome is not None and progress.outcome.verdict != "ok":
            say(f"{progress.case.tier}: {progress.outcome.verdict}: {progress.outcome.detail}")

    outcomes = probe(cases, limit_s=seconds, case_limit_s=_CASE_S, progress=heard)
    return {
        pair: f"not called: {outcome.verdict} in a child: {outcome.detail}"
        for pair, outcome in zip(pairs, outcomes, strict=True)
        if outcome.verdict not in ("ok", "slow-find")
    }
