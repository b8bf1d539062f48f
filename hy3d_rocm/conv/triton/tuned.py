"""Tiles that `hy3d-rocm tune` found best here, read from the verdict store at a shape's first use.

A record of the tier "triton" whose detail is "tile 128x128x64w4s3g8" names its tile. What is not
offered on the architecture any more (it would spill, or a new version dropped it) is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hy3d_rocm.conv.triton import configs, plan
from hy3d_rocm.conv.triton.configs import Config
from hy3d_rocm.conv.triton.layout import Layout, is_points
from hy3d_rocm.conv.triton.steps import Steps, Target, make_steps
from hy3d_rocm.conv.verdict_store.machine import this_machine
from hy3d_rocm.conv.verdict_store.records import make_key
from hy3d_rocm.conv.verdict_store.store import Store, store

if TYPE_CHECKING:
    from hy3d_rocm.conv.call import ConvCall, ConvSpec

TIER = "triton"
# Kernels whose constants end in block_p, block_n, block_k, group.
_TILED = frozenset({"conv_rows", "conv_points"})


def detail_of(config: Config) -> str:
    """A record's detail that names the tile."""
    return f"tile {config}"


def config_for(spec: ConvSpec, arch: str, dtype: str) -> Config | None:
    """The tuned tile of a convolution on a GPU of `arch`, or None: the guess then serves. Noted at
    the spec while nothing changes in the store."""
    known = store()
    noted: tuple[Store, int, Config | None] | None = spec.notes.get("tile")
    generation = known.generation
    if noted is not None and noted[0] is known and noted[1] == generation:
        return noted[2]
    record = known.records(make_key(spec, this_machine(spec.device))).get(TIER)
    found = None
    if record is not None and record.verdict == "ok":
        # The offered one: it brings its rate.
        every = configs.offered(arch, dtype)
        found = next((c for c in every if detail_of(c) == record.detail), None)
    spec.notes["tile"] = (known, generation, found)
    return found


def candidates(
    call: ConvCall, target: Target, dtype: str
) -> tuple[tuple[Config, ...], tuple[Config, ...]]:
    """The tiles that the guess takes, one, or two where boxes differ in size; and every other that
    makes sense for the call, the best guess first."""
    p, spec = plan.problem(call.spec), call.spec
    x = call.x if spec.batched else call.x.unsqueeze(0)
    out = torch.empty(spec.out_size, device="meta", memory_format=spec.memory_format)
    layout = Layout.of(x, out)
    made = make_steps(p, layout, dtype, call.bias is not None, target)
    every = configs.offered(target.arch, dtype)
    outputs = p.outputs * p.kernel[2] if made.narrow else p.outputs
    if is_points(p, layout):
        ranked = configs.ranked_points(every, outputs, p.channels)
    else:
        length = p.row_channels if made.narrow else p.tap_length
        positions = p.batch * p.out[0] * p.padded[1] * p.padded[2]
        ranked = configs.ranked(every, positions, outputs, length, target.units, p.taps)
    guess = tiles_of(made)
    return guess, tuple(config for config in ranked if config not in guess)


def tiles_of(made: Steps) -> tuple[Config, ...]:
    """The tiles of its launches, each once."""
    found: dict[Config, None] = {}
    for item in made.launches:
        if item.kernel in _TILED:
            p, n, k, group = item.constants[-4:]
            found[Config(p, n, k, item.num_warps, item.num_stages, group)] = None
    return tuple(found)
