"""Tiles that `hy3d-rocm tune` found best here, read from the verdict store at a shape's first use.

A record of the tier "triton" whose detail is "tile 128x128x64w4s3g8" names its tile. What is not
offered on the architecture any more (it would spill, or a new version dropped it) is left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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
_HEAD = "tile "
# Kernels whose constants end in block_p, block_n, block_k, group.
_TILED = frozenset({"conv_rows", "conv_points"})


def detail_of(config: Config) -> str:
    """A record's detail that names the tile."""
    return f"{_HEAD}{config}"


def config_of(detail: str, offered: Sequence[Config]) -> Config | None:
    """The tile that a detail names, where it is one of `offered`, else None."""
    if not detail.startswith(_HEAD):
        return None
    try:
        wanted = Config.parse(detail.removeprefix(_HEAD))
    except ValueError:
        return None
    # The offered one: it brings its rate.
    return next((c for c in offered if c == wanted), None)


def tile_of(
    spec: ConvSpec, store: Store, key: Callable[[], Any], offered: Sequence[Config]
) -> Config | None:
    """The tile that `store` has for `spec`, or None; noted at the spec while nothing changes."""
    noted: tuple[Store, int, Config | None] | None = spec.notes.get("tile")
    generation = store.generation
    if noted is not None and noted[0] is store and noted[1] == generation:
        return noted[2]
    record = store.records(key()).get(TIER)
    detail = "" if record is None or record.verdict != "ok" else str(record.detail)
    found = config_of(detail, offered)
    spec.notes["tile"] = (store, generation, found)
    return found


def config_for(spec: ConvSpec, arch: str, dtype: str) -> Config | None:
    """The tuned tile of a convolution on a GPU of `arch`, or None: the guess then serves."""

    def key() -> Any:
        return make_key(spec, this_machine(spec.device))

    return tile_of(spec, store(), key, configs.offered(arch, dtype))


def candidates(call: ConvCall, target: Target, dtype: str) -> tuple[Config, ...]:
    """Every tile that makes sense for the call, the best guess first."""
    p = plan.problem(call.spec)
    layout = _layout(call)
    made = make_steps(p, layout, dtype, call.bias is not None, target)
    every = configs.offered(target.arch, dtype)
    outputs = p.outputs * p.kernel[2] if made.narrow else p.outputs
    length = p.row_channels if made.narrow else p.tap_length
    if is_points(p, layout):
        length = p.channels
        pick: Any = functools.partial(configs.guess_points, channels=outputs, length=length)
    else:
        positions = p.batch * p.out[0] * p.padded[1] * p.padded[2]
        pick = functools.partial(
            configs.guess, positions=positions, channels=outputs, length=length, units=target.units,
            taps=p.taps,
        )  # fmt: skip
    left = configs.fitting(every, outputs, length)
    ordered: list[Config] = list(tiles_of(made))
    left = tuple(c for c in left if c not in ordered)
    while left:
        best = pick(left)
        ordered.append(best)
        left = tuple(c for c in left if c != best)
    return tuple(ordered)


def chosen(call: ConvCall, target: Target, dtype: str) -> tuple[Config, ...]:
    """The tiles that the guess takes: one, or two where boxes differ in size."""
    p = plan.problem(call.spec)
    return tiles_of(make_steps(p, _layout(call), dtype, call.bias is not None, target))


def tiles_of(made: Steps) -> tuple[Config, ...]:
    """The tiles of its launches, each once."""
    found: dict[Config, None] = {}
    for item in made.launches:
        if item.kernel in _TILED:
            p, n, k, group = item.constants[-4:]
            found[Config(p, n, k, item.num_warps, item.num_stages, group)] = None
    return tuple(found)


def _layout(call: ConvCall) -> Layout:
    """As launch.convolve sees it."""
    spec = call.spec
    x = call.x if spec.batched else call.x.unsqueeze(0)
    out = torch.empty(spec.out_size, device="meta", memory_format=spec.memory_format)
    return Layout.of(x, out)
