"""Every injected fault at every tier and call of a small decode: no call lost, nothing wrong.

    python tests/long/check_router.py [--quick N] [--part K/N] [--seed N] [--json]

A real decoder (diffusers' HunyuanVideo VAE at reduced width, float32, on the CPU) runs under
protect(policy=...) on a machine of which only the tiers' names are those of a GPU: "current",
"triton" and "vendor" compute with PyTorch, "native", "gemm", "conv2d" and "cpu" are the real ones.
A fault is one kind at one tier: an error text or a Python exception at one call or from it on;
another size or slowness from it on; or a lie (wrong numbers, NaN) for the shape of that call: the
self-check looks at a tier's first result for a shape, and a tier that turns bad later without an
error is not what it is for. For each:

  - every convolution's result is within the proven bound of docs/numerics.md of exact sums of the
    input that it got, at every output;
  - the decode finishes, and counts as many convolutions as the undisturbed one: 0 calls lost;
  - a lie is on record.

Without --quick all kinds at all tiers and all calls (some 4000 decodes); with it N random ones.
--part 1/4 runs every fourth, so that four processes share the work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from router_doubles import ScriptedTier, cpu_tier
from router_world import ListedMemory, Row

from hy3d_rocm.conv import faults, forget
from hy3d_rocm.conv.call import ConvCall
from hy3d_rocm.conv.choice import Setting
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.router import Guard
from hy3d_rocm.conv.tiers import Limits, Tier, make_tier

TIERS = ("current", "vendor", "triton", "gemm", "conv2d", "native", "cpu")
ROCM = Setting(on_gpu=True, is_rocm=True, current="other")
RAISED = ("no_algorithm", "unknown", "internal", "no_engine", "hip_oom", "block_allocator",
          "cpu_oom")  # fmt: skip
MISTAKES: dict[str, Callable[[], Exception]] = {
    "python": lambda: TypeError("a mistake of our own"),
    "torch oom": lambda: torch.OutOfMemoryError(faults.HIP_OOM),
    "memory error": MemoryError,
}
LIES = ("wrong", "nan", "zeros")
LASTING = ("shape", "slow")
# PyTorch itself, and the host's C code, may raise what is the caller's own; the fallback chain has
# to leave that alone. For them only texts of back-ends are injected.
NOT_OURS = ("current", "cpu")


@dataclass
class Trouble:
    """One fault: from call `first` on, `count` calls of `tier` (None: all) go wrong; a lie tells
    on all calls of that call's shape."""

    tier: str
    kind: str
    first: int
    count: int | None
    fired: int = 0

    def __str__(self) -> str:
        lasting = "for the shape of" if self.kind in LIES else "from"
        once = "once" if self.count else ""
        return f"{self.kind} at {self.tier} {lasting} call {self.first} {once}"


@dataclass
class Shaky:
    """A tier that computes as `inner` does, until the trouble comes."""

    name: str
    inner: Tier
    world: World

    def label(self, call: ConvCall) -> str:
        return f"{self.name} here"

    def workspace_bytes(self, spec: Any) -> int:
        return 0

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        return self.inner.refusal(call, limits)

    def run(self, call: ConvCall) -> torch.Tensor:
        trouble = self.world.due(self.name, call)
        if trouble is None:
            return self.inner.run(call)
        trouble.fired += 1
        if trouble.kind in faults.TEXTS:
            raise RuntimeError(faults.TEXTS[trouble.kind])
        if trouble.kind in MISTAKES:
            raise MISTAKES[trouble.kind]()
        if trouble.kind == "slow":
            time.sleep(0.001)
            return self.inner.run(call)
        result = self.inner.run(call)
        lies: dict[str, Callable[[], torch.Tensor]] = {
            "wrong": lambda: result + 1, "zeros": lambda: torch.zeros_like(result),
            "nan": lambda: torch.full_like(result, math.nan), "shape": lambda: result[..., :-1],
        }  # fmt: skip
        return lies[trouble.kind]()


@dataclass
class World:
    """The machine, and what is watched in it."""

    favourite: str = "triton"
    trouble: Trouble | None = None
    call: int = -1
    specs: dict[int, Any] = field(default_factory=dict)  # of each call, undisturbed
    worst: float = 0.0
    memory: ListedMemory = field(default_factory=ListedMemory)

    def due(self, tier: str, call: ConvCall) -> Trouble | None:
        trouble = self.trouble
        if trouble is None:
            self.specs[self.call] = call.spec
            return None
        if trouble.tier != tier:
            return None
        if trouble.kind in LIES:
            return trouble if call.spec == self.specs[trouble.first] else None
        if self.call < trouble.first:
            return None
        return None if trouble.count is not None and trouble.fired >= trouble.count else trouble

    def tiers(self, **options: Any) -> tuple[Tier, ...]:
        plain = ScriptedTier("plain", lambda call: call.run_current())
        real = {n: make_tier(n) for n in ("native", "gemm", "conv2d")} | {"cpu": cpu_tier()}
        return tuple(Shaky(name, real.get(name, plain), self) for name in TIERS)

    def ranked(self) -> dict[str, Row]:
        """The favourite is measured fastest, the others in their usual order behind it."""
        order = [self.favourite, *(t for t in TIERS if t != self.favourite)]
        return {tier: Row(seconds=1e-3 * (i + 1)) for i, tier in enumerate(order)}


@contextlib.contextmanager
def machine(world: World) -> Iterator[None]:
    """Puts the world in the place of this machine."""
    world.memory.usual = world.ranked()
    places = {
        "hy3d_rocm.conv.policy.setting_of": lambda call: ROCM,
        "hy3d_rocm.conv.policy.memory_for": lambda device: world.memory,
        "hy3d_rocm.conv.policy._rates": {},
        "hy3d_rocm.conv.protection.all_tiers": world.tiers,
        "hy3d_rocm.conv.releasing.release": lambda device: 0,
    }
    with contextlib.ExitStack() as stack:
        for name, value in places.items():
            stack.enter_context(mock.patch(name, value))
        yield


def audited(model: torch.nn.Module, world: World) -> list[Any]:
    """Hooks that number the convolutions of a model and check what they returned."""

    def before(module: Any, inputs: Any) -> None:
        world.call += 1

    def after(module: Any, inputs: Any, output: torch.Tensor) -> None:
        world.worst = max(world.worst, share_of_bound(module, inputs[0], output))

    hooks = []
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Conv3d):
            hooks.append(module.register_forward_pre_hook(before))
            hooks.append(module.register_forward_hook(after))
    return hooks


def share_of_bound(module: Any, x: torch.Tensor, got: torch.Tensor) -> float:
    """The largest |got - exact| as a share of gamma_(K+1) (sum |x w| + |b|), which every order of
    float32 sums keeps (docs/numerics.md); infinity for NaN or another shape."""
    function: Any = F.conv3d if isinstance(module, torch.nn.Conv3d) else F.conv2d
    options = (module.stride, module.padding, module.dilation, module.groups)
    with torch._C.DisableTorchFunction():
        wide = [None if t is None else t.double() for t in (x, module.weight, module.bias)]
        exact = function(*wide, *options)
        size = function(*(None if t is None else t.abs() for t in wide), *options)
        if exact.shape != got.shape:
            return math.inf
        count = math.prod(module.weight.shape[1:]) + 1
        bound = (_gamma(count, 2.0**-24) + _gamma(count, 2.0**-53)) * size
        share = ((got.double() - exact).abs() / bound.clamp_min(1e-300)).max()
    return math.inf if bool(share.isnan()) else float(share)


def _gamma(count: int, unit: float) -> float:
    return count * unit / (1 - count * unit)


def make_decoder() -> tuple[Any, torch.Tensor]:
    """diffusers' HunyuanVideo VAE, narrow, and latents of two frames."""
    import diffusers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = diffusers.AutoencoderKLHunyuanVideo(
            block_out_channels=(4, 4, 4, 4), layers_per_block=1, norm_num_groups=2,
            latent_channels=2,
        ).eval()  # fmt: skip
        return model, torch.randn(1, 2, 1, 2, 2)


def decode(model: Any, latents: torch.Tensor, world: World) -> Guard:
    """One decode in the world; its guard."""
    forget()
    world.call, world.worst = -1, 0.0
    # "auto" comes to the CPU last, whatever was measured.
    policy = "pin:cpu" if world.favourite == "cpu" else "auto"
    with machine(world), protect(policy=policy) as guard:
        model.decode(latents)
    return guard


def troubles(calls: int) -> Iterator[Trouble]:
    """Every kind at every tier and call."""
    for tier in TIERS:
        mistakes = () if tier in NOT_OURS else tuple(MISTAKES)
        for kind in (*RAISED, *mistakes, *LASTING, *LIES):
            for first in range(calls):
                yield Trouble(tier, kind, first, None)
                if kind in (*RAISED, *mistakes):
                    yield Trouble(tier, kind, first, 1)


@dataclass
class Outcome:
    """What a run of the check says."""

    decodes: int = 0
    convolutions: int = 0
    fired: int = 0
    never_fired: int = 0
    lost: int = 0
    worst_share_of_bound: float = 0.0
    said: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not (self.said or self.lost or self.never_fired)


def check(quick: int | None = None, seed: int = 0, part: slice = slice(None)) -> Outcome:
    """Runs every trouble, or `quick` random ones; of those `part`."""
    model, latents = make_decoder()
    world, outcome = World(), Outcome()
    hooks = audited(model, world)
    try:
        decode(model, latents, world)
        calls = world.call + 1
        if world.worst > 1:
            outcome.said.append(f"undisturbed: {world.worst:.3g} of the bound")
        planned = list(troubles(calls))
        if quick is not None:
            planned = random.Random(seed).sample(planned, quick)
        for trouble in planned[part]:
            world.favourite, world.trouble, world.memory = trouble.tier, trouble, ListedMemory()
            _one(model, latents, world, calls, outcome)
    finally:
        for hook in hooks:
            hook.remove()
        forget()
    return outcome


def _one(model: Any, latents: torch.Tensor, world: World, calls: int, outcome: Outcome) -> None:
    trouble = world.trouble
    assert trouble is not None
    outcome.decodes += 1
    try:
        guard = decode(model, latents, world)
    except Exception as error:  # noqa: BLE001  # whatever ends a decode is what is looked for
        outcome.lost += calls - world.call
        outcome.said.append(f"{trouble}: {type(error).__name__}: {error}")
        return
    outcome.convolutions += guard.stats.calls
    outcome.lost += max(0, calls - guard.stats.calls) + guard.stats.raised
    outcome.fired += trouble.fired
    outcome.never_fired += trouble.fired == 0
    outcome.worst_share_of_bound = max(outcome.worst_share_of_bound, world.worst)
    if world.worst > 1:
        outcome.said.append(f"{trouble}: {world.worst:.3g} of the bound")
    is_wrong = trouble.kind in (*LIES, "shape")
    if is_wrong and trouble.fired and "wrong" not in world.memory.verdicts().values():
        outcome.said.append(f"{trouble}: the lie is not on record")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", type=int, default=None, help="so many random ones, not all")
    parser.add_argument("--part", default="1/1", help="K/N: the K-th of N shares of the work")
    parser.add_argument("--seed", type=int, default=None, help="replays --quick")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    seed = random.randrange(2**32) if options.seed is None else options.seed
    share, shares = map(int, options.part.split("/"))
    torch.set_num_threads(1)
    start = time.perf_counter()
    with torch.inference_mode():
        outcome = check(options.quick, seed, slice(share - 1, None, shares))
    report = {**vars(outcome), "seed": seed, "seconds": time.perf_counter() - start}
    if options.json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        sys.stdout.write("\n".join(f"{k}: {v}" for k, v in report.items()) + "\n")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
