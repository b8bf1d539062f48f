"""What a decode would do, without doing it: every candidate, and which would be taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hy3d_rocm import _native, meter
from hy3d_rocm.decoding.black_box import is_opaque
from hy3d_rocm.decoding.memory.budget import Budget, make_budget
from hy3d_rocm.decoding.planning.compiled import Compiled, plan_job
from hy3d_rocm.decoding.planning.jobs import Job, best_backend, torch_backend, unused_sizes
from hy3d_rocm.decoding.planning.planner import Candidate, Plan, smallest_budget
from hy3d_rocm.decoding.precision import name_of
from hy3d_rocm.decoding.report import DecodeOptions
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from hy3d_rocm.tools.runs import Subject

NOMINAL = "seconds are estimates with nominal rates: they compare candidates, they promise nothing"
Progress = Callable[[int, int], object]
# From here on a candidate's work is told against the least.
_MORE_WORK = 1.05


@dataclass(frozen=True)
class Explained:
    """candidates: in the order of preference. plan: None where nothing fits (`why` says so)."""

    job: Job
    budget: Budget
    options: DecodeOptions
    candidates: list[Candidate]
    plan: Plan | None
    why: str = ""

    def is_taken(self, candidate: Candidate) -> bool:
        """Whether the plan is this one."""
        return self.plan is not None and self.plan.variant.name == candidate.variant.name

    @property
    def ignored(self) -> list[str]:
        """Sentences about sizes that mean nothing to what is taken."""
        return [] if self.plan is None else unused_sizes(self.job, self.plan.variant, self.options)

    def lines(self) -> list[str]:
        """The plan in words, a line for each candidate."""
        job = self.job
        size, latent = ("x".join(map(str, shape)) for shape in (job.out_shape, job.shape))
        dtype = name_of(job.dtype)
        needs = [c.need for c in self.candidates if c.need is not None]
        least = min((need.macs for need in needs if need.macs), default=0)
        lines = [
            f"{job.family.name}: latents {latent} -> {size} on {job.device} in {dtype}",
            f"budget: {self.budget.rule}",
            *([NOMINAL] if any(need.seconds for need in needs) else []),
            *(self._line(c, least) for c in self.candidates),
        ]
        if self.plan is None:
            return [*lines, f"nothing is taken: {self.why}"]
        return [*lines, f"taken: {self.plan.variant.name}. {self.plan.more}".strip(), *self.ignored]

    def _line(self, candidate: Candidate, least_macs: int) -> str:
        name, need = candidate.variant.name, candidate.need
        if need is None:
            return f"  {name}: can't be told ({candidate.note})"
        taken = self.is_taken(candidate)
        word = "taken" if taken else "fits" if candidate.fits else "does not fit"
        note = f" ({candidate.note})" if candidate.note else ""
        if not candidate.fits:
            least, host = smallest_budget(need, self.budget), need.host_bytes
            is_short = not self.budget.is_unified and host > self.budget.host_bytes
            sizes = [size_text(least, 2)] if least or not is_short else []
            sizes += [f"{size_text(host, 2)} on the host"] if is_short else []
            note += f", from a budget of {' and of '.join(sizes)}"
        said = [f"planned peak {need.text()}"]
        if need.seconds:
            said.append(f"estimated {seconds_text(need.seconds)}")
        said.append(transfers(need.stored_bytes, need.loaded_bytes))
        work = need.macs / least_macs if least_macs else 0.0
        said += [f"{work:.1f}x the work"] if work >= _MORE_WORK else []
        if need.prepared_bytes and not taken:
            kept = size_text(need.prepared_bytes, 2)
            said.append(f"and {kept} of prepared weights if there is room")
        return f"  {name}: {', '.join(filter(None, [*said, word]))}{note}"

    def describe(self) -> dict[str, Any]:
        """JSON-able."""
        job, budget, plan = self.job, self.budget, self.plan
        return {
            "vae": job.family.name,
            "latent_shape": list(job.shape),
            "out_shape": list(job.out_shape),
            "device": str(job.device),
            "dtype": name_of(job.dtype),
            "budget_bytes": budget.device_bytes,
            "host_budget_bytes": budget.host_bytes,
            "budget_rule": budget.rule,
            "seconds_are": NOMINAL,
            "candidates": [c.describe() | {"taken": self.is_taken(c)} for c in self.candidates],
            "taken": None if plan is None else plan.variant.name,
            "reason": self.why if plan is None else plan.reason,
            "ignored": self.ignored,
        }


def explain(
    job: Job, budget: Budget, strategy: str = "auto", options: DecodeOptions | None = None,
    look: Callable[[], object] = lambda: None, progress: Progress = lambda done, total: None,
) -> Explained:  # fmt: skip
    """All candidates of a VAE whose layers are known, though one before them fits; of a VAE's own
    code those that were looked at. look: called all along; raises after a cancel. progress: gets
    how many of how many compilations are done. ValueError (a sentence) for a strategy that is
    none."""
    options = options or DecodeOptions()
    plan, why = None, ""
    has_program = _native.available and not is_opaque(job.family)
    asked = list(dict.fromkeys(("auto", strategy, "whole"))) if has_program else []
    progress(0, 1 + len(asked))

    def go_on(_: object) -> bool:
        look()
        return True

    try:
        plan = plan_job(job, budget, strategy, options, go_on)
    except ValueError as error:
        why = str(error)
    like = None if plan is None else plan.compiled
    looked = _all_of(job, budget, asked, options, look, progress, like)
    if job.device.type == "cpu" and strategy != "cpu":  # there the others are the same
        looked = [c for c in looked if c.variant.strategy != "cpu"]
    if plan is not None:
        taken = next(c for c in (*plan.candidates, *looked) if c.variant.name == plan.variant.name)
        taken = replace(taken, need=plan.peak)  # with the weights that are going to be prepared
        names = {c.variant.name for c in looked}
        looked = [taken if c.variant.name == plan.variant.name else c for c in looked]
        looked += [taken if c.variant.name == plan.variant.name else c
                   for c in plan.candidates
                   if c.variant.name not in names and not (c.need and c.need.unknown)]  # fmt: skip
    return Explained(job, budget, options, _in_order(looked, job), plan, why)


def _all_of(
    job: Job, budget: Budget, asked: list[str], options: DecodeOptions, look: Callable[[], object],
    progress: Progress, like: Compiled | None,
) -> list[Candidate]:  # fmt: skip
    """Of each strategy in `asked`: "auto", the one that is wanted, and the VAE's own code, which
    "auto" leaves out where it is slower as well as larger. like: see Compiled."""
    found: dict[str, Candidate] = {}
    for number, strategy in enumerate(asked, 1):
        progress(number, 1 + len(asked))
        if strategy == "whole" and "whole" in found:
            continue
        look()
        try:
            like = Compiled(
                job, budget, strategy, options, compiles_all=True, check=look, like=like
            )
        except ValueError:
            continue  # the plan's sentence says why
        for candidate in like.candidates():
            found.setdefault(candidate.variant.name, candidate)
    progress(1 + len(asked), 1 + len(asked))
    return list(found.values())


def _in_order(candidates: list[Candidate], job: Job) -> list[Candidate]:
    """As they are preferred, tiles from large to small."""
    first = ("streamed", "whole") if job.is_fused else ("whole", "streamed")
    rank = {name: number for number, name in enumerate((*first, "tiled", "cpu"))}

    def key(candidate: Candidate) -> tuple[int, bool, bool, int]:
        way = candidate.variant
        level = int(way.parameters.get("level", -1))
        return rank[way.strategy], level >= 0, way.again, level if not way.again else 0

    return sorted(candidates, key=key)


def transfers(stored_bytes: int, loaded_bytes: int) -> str:
    """What is copied to and from the host, "" where nothing is."""
    if not stored_bytes and not loaded_bytes:
        return ""
    return f"{size_text(stored_bytes, 2)} to the host and {size_text(loaded_bytes, 2)} back"


def seconds_text(value: float) -> str:
    """ "0.38 s", "33.1 s", "1119 s"."""
    if value < 1:
        return f"{value:.2g} s"
    return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def plan_of(subject: Subject, budget: int | str | None = None, strategy: str = "auto") -> Plan:
    """The plan that decode() would make now. ValueError (a sentence) where nothing fits."""
    family, device = subject.family, subject.device
    opaque = is_opaque(family)
    backend = torch_backend if opaque else best_backend(device, family.dtype)
    made = family.result_dtype if opaque else family.dtype
    job = Job(family, tuple(subject.latents.shape), device, family.dtype, made, backend)
    room = make_budget(budget, meter.machine_of(device))
    return plan_job(job, room, strategy)
