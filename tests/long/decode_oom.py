"""One tiny decode whose memory runs out at chosen places, and what it must then give."""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from core_memory import memory  # noqa: E402
from decode_doubles import (  # noqa: E402
    EVERY_KIND,
    TIMESTEP,
    relative_error,
    tiles_of_level,
    tiny_latents,
    tiny_vae,
)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from unknown_vaes import ConvNet  # noqa: E402

from hy3d_rocm.conv.prepared import give_back  # noqa: E402
from hy3d_rocm.decoding import (  # noqa: E402
    black_box,
    decode_into,
    decode_with_report,
    encode_with_report,
    execution,
    faults,
    run,
    stages,
)
from hy3d_rocm.decoding.black_box import is_opaque  # noqa: E402
from hy3d_rocm.decoding.families import family_for  # noqa: E402
from hy3d_rocm.decoding.report import DecodeOptions  # noqa: E402
from hy3d_rocm.frames.sinks import MemmapSink  # noqa: E402

try:
    from hy3d_rocm import _core as core
except ImportError:
    core = None  # type: ignore[assignment]

OWN = "own code"
# Of the range: what decoding/families/test_layers.py allows two float32 ways of a decode.
CLOSE = 1e-5
KINDS = (*EVERY_KIND, OWN)
BUDGET = "8GB"  # a number: what else is in memory must not choose the way
ENDED = "the decode ended: out of memory in "
LEFT = ", and nothing is left to try ("


class OomError(AssertionError):
    """A decode that broke its promise."""


@dataclass(frozen=True)
class Faults:
    """Where memory runs out. steps: numbers of attempts at a step of a program, or at a tile of a
    VAE's own code. onward: at all attempts from this one on. operators: numbers of torch's
    operators. core: the number of an allocation of the C core, forever: and all after it."""

    steps: tuple[int, ...] = ()
    onward: int | None = None
    operators: tuple[int, ...] = ()
    core: int = 0
    forever: bool = False


class Injector:
    """Counts the places of a decode's attempts, and fails at those that were chosen."""

    def __init__(self, chosen: Faults) -> None:
        self.chosen = chosen
        self.steps = self.operators = self.attempts = self.failed = 0
        self.running = False
        self.plan: Any = None

    def counted(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """work(), each call of which is an attempt."""

        def attempt(*given: Any) -> Any:
            self.attempted()
            return work(*given)

        return attempt

    def attempted(self) -> None:
        """One more attempt begins; fails if it is to."""
        if not self.running:  # planning goes the same ways, on shapes
            return
        number = self.steps
        self.steps += 1
        onward = self.chosen.onward
        if number in self.chosen.steps or (onward is not None and number >= onward):
            self.fail(f"attempt {number}")

    def operator(self, name: str) -> None:
        number = self.operators
        self.operators += 1
        if number in self.chosen.operators:
            self.fail(f"operator {number}, {name}")

    def fail(self, where: str) -> None:
        self.failed += 1
        raise torch.OutOfMemoryError(f"the check's, at {where}")


class _Operators(TorchDispatchMode):
    def __init__(self, injector: Injector) -> None:
        super().__init__()
        self.injector = injector

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        makes = isinstance(found, torch.Tensor) and not (func.is_view or func._schema.is_mutable)
        if self.injector.running and makes:
            self.injector.operator(str(func))
        return found


@contextmanager
def injected(chosen: Faults, plan_with: Callable[..., Any]) -> Iterator[Injector]:
    """A decode in this block meets `chosen`. plan_with: in the place of the planner."""
    injector = Injector(chosen)
    attempt, plan_job = execution.Execution._attempt, execution.plan_job
    tried, check = faults.attempt, stages.Counter.check

    def checked(self: Any) -> None:  # the first that each attempt at a step does
        injector.attempted()
        check(self)

    def begin(self: Any) -> Any:
        if chosen.core and not injector.attempts:
            memory.fail(chosen.core, chosen.forever)
        injector.attempts += 1
        injector.plan = self.plan
        injector.running = True
        try:
            return attempt(self)
        finally:
            injector.running = False

    def plan(*arguments: Any) -> Any:
        found = plan_with(plan_job, *arguments)
        if found.compiled is not None:
            found.compiled.key = None  # the injector has it: no decode may be given it
        return found

    try:
        execution.Execution._attempt = begin  # type: ignore[method-assign]
        execution.plan_job = plan
        for module in (black_box, run):
            module.attempt = lambda work, *given, **how: tried(  # type: ignore[attr-defined]
                work if how.get("check") else injector.counted(work), *given, **how
            )
        stages.Counter.check = checked  # type: ignore[method-assign]
        # Watching operators makes planning several times slower.
        with _Operators(injector) if chosen.operators else nullcontext():
            yield injector
    finally:
        for module in (black_box, run):
            module.attempt = tried  # type: ignore[attr-defined]
        stages.Counter.check = check  # type: ignore[method-assign]
        execution.plan_job = plan_job
        execution.Execution._attempt = attempt  # type: ignore[method-assign]
        if chosen.core:
            memory.fail(0)


@dataclass
class Job:
    """kind: of tiny VAE. what: "decode" or "encode". strategy, backend: as decode() takes them.
    is_cut: only tiles of which there are several."""

    kind: str
    what: str
    strategy: str
    backend: str
    is_cut: bool = False
    device: str = "cpu"
    first: str = ""  # the name of an undisturbed run's way
    wanted: dict[tuple[str, bool], Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        cut = ", several" if self.is_cut else ""
        return f"{self.kind}, {self.what}, {self.strategy}{cut}, {self.backend}"

    def prepare(self) -> None:
        """The VAE and what it decodes; the places of an undisturbed run are counted."""
        image = self.kind.startswith("image")
        tiled = self.strategy == "tiled"
        side = (8 if self.kind == "image16" else 4) if tiled else 2
        small = {"halo_pixels": 0, "overlap_pixels": 4, "min_tile_pixels": 8} if tiled else {}
        if self.kind == OWN:
            self.vae, side = ConvNet(), 16
            generator = torch.Generator().manual_seed(1)
            self.source = torch.randn((1, 4, 3, side, side), generator=generator)
        else:
            vae = tiny_vae(self.kind)
            self.vae = vae if self.device == "cpu" else vae.to(self.device)
            self.source = tiny_latents(vae, 1 if image else 2, side, side)
            if self.kind in TIMESTEP:
                self.vae = family_for(self.vae, timestep=TIMESTEP[self.kind])
        if self.what == "encode":
            undisturbed, _ = decode_with_report(self.vae, self.source, BUDGET, "whole")
            self.source = undisturbed.clamp(-1, 1)
        self.options = DecodeOptions(backend=self.backend, statistic_passes=1, **small)
        self.run(Faults())  # what is made once, prepared weights among it, is made here
        before = self.allocations_now()
        injector, got, text = self.run(Faults(operators=(-1,)))
        if got is None:
            raise OomError(f"it does not work undisturbed: {text}")
        self.steps, self.operators = injector.steps, injector.operators
        self.allocations = self.allocations_now() - before
        self.first, wanted = self.reference(injector.plan, is_watched=True)
        _, alone = self.reference(injector.plan, is_watched=False)
        del injector
        self.clean()
        gc.collect()  # schedules of decodes before, which errors may still hold
        self.live = memory.live() if core is not None else 0
        for one, two in ((got, wanted), (self.run(Faults())[1], alone)):
            if not np.array_equal(one, two):
                raise OomError(f"{self.name}: two undisturbed runs differ")

    def allocations_now(self) -> int:
        return memory.asked() if core is not None else 0

    def clean(self) -> None:
        give_back()
        if core is not None:
            core.trim()

    def call(self, placing: int, folder: str) -> Any:
        """The result as an array. placing: 0 as a new tensor, 1 in the caller's, 2 as a file."""
        asked = (self.vae, self.source, BUDGET, self.strategy)
        if self.what == "encode":
            return encode_with_report(*asked, options=self.options)[0].numpy()
        if placing == 0:
            return decode_with_report(*asked, options=self.options)[0].numpy()
        if placing == 1:
            out = torch.full(self.shape, 7.0)
            got, _ = decode_with_report(*asked, options=self.options, out=out)
            if got is not out:
                raise OomError("the frames are not in the tensor that was given")
            return got.numpy()
        path = Path(folder, "frames.npy")
        decode_into(MemmapSink(path), *asked, options=self.options)
        return np.load(path)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(next(iter(self.wanted.values())).shape)

    def plan(
        self, plan_job: Any, job: Any, budget: Any, strategy: str, more: Any, may: Any,
        resume_key: Any,
    ) -> Any:  # fmt: skip
        """As the planner, but several tiles where these are wanted."""
        if not self.is_cut:
            return plan_job(job, budget, strategy, more, may, resume_key)
        if not is_opaque(job.family):
            with tiles_of_level(1):
                return plan_job(job, budget, strategy, more, may, resume_key)
        return plan_job(
            job, budget, strategy, more, lambda way: "tiles of" in way.name and may(way),
            resume_key,
        )  # fmt: skip

    def run(
        self, chosen: Faults, placing: int = 0, plan_with: Any = None
    ) -> tuple[Injector, Any, str]:
        """What was injected; the result, or None and the sentence of the error."""
        with tempfile.TemporaryDirectory(prefix="decode_oom_") as folder:
            with injected(chosen, plan_with or self.plan) as injector:
                try:
                    return injector, self.call(placing, folder), ""
                except MemoryError as error:
                    text = str(error)
            left = [path.name for path in Path(folder).iterdir()]
            if left:
                raise OomError(f"a decode that ended left {left}")
        return injector, None, text

    def trial(self, number: int, chosen: Faults) -> str:
        """One decode with faults: "same way", "another way" or "ended". OomError where it is
        wrong."""
        injector, got, text = self.run(chosen, number % 3)
        key, wanted = "", None
        if got is not None:  # of one that ended the schedule has no program left
            key, wanted = self.reference(injector.plan, is_watched=bool(chosen.operators))
        del injector  # with its plan, which has a schedule
        self.clean()
        left = memory.live() - self.live if core is not None else 0
        if left:
            raise OomError(f"{left} allocations of the core are left")
        if got is None:
            if not (text.startswith(ENDED) and LEFT in text):
                raise OomError(f"the error is no sentence: {text!r}")
            return "ended"
        if got.shape != wanted.shape or not np.array_equal(got, wanted):
            if self.is_by_another_tier(chosen, got, wanted):
                return "another tier"
            raise OomError(f"the result differs from what {key} gives undisturbed")
        return "same way" if key == self.first else "another way"

    def is_by_another_tier(self, chosen: Faults, got: Any, wanted: Any) -> bool:
        """Whether protect(), under which "cpu" runs, has recovered: convolutions for which the C
        core had no memory are torch's then, whose sums are in another order."""
        may = chosen.core and self.strategy == "cpu" and self.backend == "torch"
        return bool(may) and relative_error(torch.from_numpy(got), torch.from_numpy(wanted)) < CLOSE

    def reference(self, plan: Any, is_watched: bool) -> tuple[str, Any]:
        """The way's name, and what an undisturbed run of it gives, computed once. is_watched: under
        a mode over operators, where torch itself chooses whether oneDNN is taken: other bits."""
        way = plan.variant
        key = json.dumps([way.name, way.strategy, sorted(way.parameters.items())], default=str)
        if (key, is_watched) not in self.wanted:
            quiet = Faults(operators=(-1,)) if is_watched else Faults()
            self.wanted[key, is_watched] = self.run(quiet, 0, lambda *_: plan)[1]
        return key, self.wanted[key, is_watched]
