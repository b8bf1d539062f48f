"""One decode (or encode) from a plan to frames: down the ladder of ways until one ends.

What an engine could not mend by trying a grain again (an allocation, a convolution that no tier
could do) ends the way that was taken, and the next cheaper one starts from the beginning: so a
result is that of one way, bit for bit, wherever the fault struck. NaN out of a finite latent starts
the same way again in a wider type.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.conv.errors import Kind, classify
from hy3d_rocm.decode import memory, ways
from hy3d_rocm.decode.copies import converted_family
from hy3d_rocm.decode.faults import is_out_of_memory
from hy3d_rocm.decode.placing import Placing
from hy3d_rocm.decode.precision import NonFiniteError, wider
from hy3d_rocm.decode.predict import CPU_ALLOWANCE_BYTES
from hy3d_rocm.decode.prices import Prices, plan_job
from hy3d_rocm.decode.report import DecodeReport, Step
from hy3d_rocm.decode.stages import StageLog, synchronize
from hy3d_rocm.decode.weights import ModuleWeights
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from hy3d_rocm.decode.budget import Budget
    from hy3d_rocm.decode.counter import Counter
    from hy3d_rocm.decode.layers import Weights
    from hy3d_rocm.decode.planner import Plan, Way
    from hy3d_rocm.decode.ways import Job, WayOptions

logger = logging.getLogger("hy3d_rocm")

# Share of what was planned with that is planned with after an allocation failed for good.
_LESS = 0.7


@dataclass
class Execution:
    """job: what is decoded. z: the latents (B, C, T, H, W), where the caller has them. placing:
    where the frames go. making: what an earlier run's frames depend on, which goes on here.
    make_weights: of a type and device; the host's own casting comes in here.
    """

    job: Job
    z: Tensor
    budget: Budget
    strategy: str
    options: WayOptions
    report: DecodeReport
    counter: Counter
    placing: Placing
    making: Mapping[str, Any] | None = None
    fallback: torch.dtype | None = None
    cleanup_frequency: int | None = None
    synchronization: bool = False
    make_weights: Callable[[torch.dtype, torch.device], Weights] = ModuleWeights
    tried: list[str] = field(default_factory=list)
    plan: Plan | None = None

    def run(self) -> None:
        """Frames to `placing`. Raises what the last way raised."""
        began = time.perf_counter()
        self._choose()
        self.report.planning_seconds = time.perf_counter() - began
        began = time.perf_counter()
        device = self.job.device
        logger.info("[VAE Decode] Attempting %s on %s", _where(device), device)
        with memory.PeakMeter(device, exact=False) as meter:
            while (failure := self._attempt()) is not None:
                memory.give_back(device)  # outside of the except block, which held tensors
                self._step_down(failure)
            synchronize(device)
        self.report.measured_peak_bytes = meter.peak_bytes
        self.report.seconds = time.perf_counter() - began
        self.report.steps = self.counter.done
        logger.info(
            "[VAE Decode] %s SUCCESS - result device cpu, shape %s, %.2f s",
            _where(device), self.job.out_shape, self.report.seconds,
        )  # fmt: skip

    # Plans

    def _choose(self) -> None:
        try:
            self.plan = plan_job(
                self.job, self.budget, self.strategy, self.options, self._may_be_taken
            )
        except ValueError as error:
            if self.making is None:
                raise
            raise ValueError(
                f"what is there was made by {self.making['strategy']!r} in {self.making['dtype']}, "
                f"and it can't go on so ({error}): give the same budget and strategy as then, or "
                "--restart"
            ) from error
        self._describe(self.plan)

    def _may_be_taken(self, way: Way) -> bool:
        """Not one that failed; one whose frames are made as those that are there."""
        goes_on = self.making is None or making_of(self.job, way) == self.making
        return goes_on and way.name not in self.tried

    def _describe(self, plan: Plan) -> None:
        report = self.report
        report.strategy, report.reason = plan.strategy, plan.reason
        if ways.is_opaque(self.job.family):
            report.reason = f"{plan.reason} {own_code_words(self.job, plan.way)}"
        report.plan = plan.describe()
        known = not plan.need.unknown
        report.predicted_peak_bytes = plan.need.device_bytes if known else 0
        report.predicted_host_bytes = plan.need.host_bytes if known else 0
        logger.info(
            "[VAE Decode] %s, planned peak %s of %s. %s",
            plan.way.name, plan.need.text(), size_text(self.budget.device_bytes, 2), report.reason,
        )  # fmt: skip

    def _step_down(self, failure: _Failure) -> None:
        """Plans what comes next; raises where nothing does."""
        plan = self.plan
        assert plan is not None
        event = {
            "event": failure.what, "way": plan.way.name, "grain": self.counter.done,
            "grains": self.counter.total, "error": failure.text,
        }  # fmt: skip
        self.report.events.append(event)
        if failure.what == "not finite" and failure.wider is None:
            raise failure.final(self, ValueError("no wider type is left"))
        if failure.wider is not None:
            self.job = replace(self.job, dtype=failure.wider)
            self.report.dtype = event["next_dtype"] = name_of(failure.wider)
        else:
            self.tried.append(plan.way.name)
        self.making = None
        try:
            self._choose_again(plan, failure)
        except ValueError as error:
            raise failure.final(self, error) from None
        event["next_way"] = self.plan.way.name if self.plan is not None else ""
        logger.warning(
            "[VAE Decode] %s in grain %d of %s (%s): starting again %s%s",
            failure.what.capitalize(), self.counter.done + 1, plan.way.name, failure.text,
            event["next_way"], f" in {self.report.dtype}" if failure.wider is not None else "",
        )  # fmt: skip

    def _choose_again(self, failed: Plan, failure: _Failure) -> None:
        """Where memory was planned with that is not there, with less; else what is left."""
        if failure.what == "out of memory" and not failed.need.unknown:
            allowance = CPU_ALLOWANCE_BYTES if self.job.device.type == "cpu" else 0
            room = min(self.budget.device_bytes, failed.need.device_bytes)
            less = int((room - allowance) * _LESS) + allowance
            before = self.budget
            self.budget = replace(before, device_bytes=max(less, 0))
            try:
                return self._choose()
            except ValueError:
                self.budget = before
        return self._choose()

    # Attempts

    def _attempt(self) -> _Failure | None:
        assert self.plan is not None
        way = self.plan.way
        self.counter.done = 0
        try:
            with ExitStack() as stack:
                if way.strategy == "cpu":
                    from hy3d_rocm.conv.router import protect

                    stack.enter_context(protect(policy="pin:cpu"))
                self._carry_out(way)
        except NonFiniteError as error:
            return _Failure("not finite", str(error), wider(self.job.dtype_of(way), self.fallback))
        except (RuntimeError, MemoryError) as error:
            return _failure_of(error)
        return None

    def _carry_out(self, way: Way) -> None:
        job, device = self.job, self.job.device_of(way)
        if ways.runs_own_code(job, way):
            job = replace(job, family=converted_family(job.family, job.dtype_of(way)))
        weights = self.make_weights(job.dtype_of(way), device)
        backend = job.make_backend(weights, device)
        stages = StageLog(self.counter, device, self.synchronization)
        tools = ways.Tools(backend, device, stages, lambda: memory.give_back(device))
        synchronize(device)
        self.placing.begin(making_of(self.job, way))
        stages.expect(self._grains(way))
        for sample in range(self.z.shape[0]):
            if ways.is_tiled(way):
                self._in_tiles(job, way, sample, tools)
            else:
                self._in_order(job, way, sample, tools)
        synchronize(device)
        self.report.delegated = dict(getattr(backend, "delegated", {}))

    def _grains(self, way: Way) -> int:
        """That will be counted; 0 where some of a sample's frames are there already."""
        frames, samples = self.job.out_shape[2], range(self.z.shape[0])
        if ways.is_tiled(way):
            return len(samples) * Prices(self.job).grains(way)
        wanted = [self.placing.first_wanted(sample) for sample in samples]
        if any(0 < first < frames for first in wanted):
            return 0
        return sum(first < frames for first in wanted) * Prices(self.job).grains(way)

    def _in_order(self, job: Job, way: Way, sample: int, tools: ways.Tools) -> None:
        wanted = self.placing.first_wanted(sample)
        if wanted >= job.out_shape[2]:
            return
        z = self.z[sample : sample + 1]
        for number, (first, frames) in enumerate(ways.run(job, way, z, tools, sample, wanted), 1):
            self.placing.put(sample, first, frames)
            del frames
            self._clean_up(number, tools.device)
        if way.strategy == "whole":
            count, height, width = job.out_shape[2:]
            self.counter.tick(Step("whole", sample, 0, 0, (0, count), (0, height), (0, width)))

    def _in_tiles(self, job: Job, way: Way, sample: int, tools: ways.Tools) -> None:
        """Tiles are added up in one tensor."""
        run = ways.tiled_run(job, way, tools, sample=sample)
        run.run(self.z[sample : sample + 1], self.placing.whole()[sample : sample + 1])
        error = run.report.estimate_error
        if error is not None:
            self.report.estimate_error = max(error, self.report.estimate_error or 0.0)
        self.placing.put_whole(sample)

    def _clean_up(self, number: int, device: torch.device) -> None:
        """After each result the host's heap, or glibc's fragments add up (2 MB a grain measured);
        a GPU's allocator only if it was asked for, since filling it again takes time."""
        if self.cleanup_frequency is None:
            memory.trim_malloc()
        elif self.cleanup_frequency and number % self.cleanup_frequency == 0:
            memory.give_back(device)


@dataclass(frozen=True)
class _Failure:
    """Why a way ended; wider: the type to try it again in."""

    what: str
    text: str
    wider: torch.dtype | None = None
    error: BaseException | None = None

    def final(self, execution: Execution, why: Exception) -> Exception:
        """The error where nothing is left to try."""
        plan = execution.plan
        taken = plan.way.name if plan is not None else execution.strategy
        text = (
            f"the decode ended: {self.what} in {taken} ({self.text}), and nothing is left to try "
            f"({why}): free memory, or decode fewer frames or a smaller picture"
        )
        return MemoryError(text) if self.what == "out of memory" else RuntimeError(text)


def _failure_of(error: Exception) -> _Failure | None:
    """What the next way may cure; everything else passes."""
    text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if is_out_of_memory(error):
        return _Failure("out of memory", text)
    known = classify(error)
    if known is None or known.kind is Kind.DEVICE_LOST:
        raise error
    return _Failure("a convolution that failed", text)


def making_of(job: Job, way: Way) -> dict[str, Any]:
    """What the frames of a way depend on, JSON-able; not where activations lie meanwhile."""
    parameters = {k: v if isinstance(v, (int, str)) else str(v) for k, v in way.parameters.items()}
    dtype = name_of(job.dtype_of(way))
    return {"strategy": way.strategy, "dtype": dtype, "parameters": parameters}


def own_code_words(job: Job, way: Way) -> str:
    """What is to be said of a VAE whose layers are not known."""
    said = f"Its own code runs, since {job.family.why}."
    if way.strategy != "tiled":
        return said
    return (
        f"{said} Tiles of it are an approximation whose error can't be known: norms and attention "
        'see one tile at a time. strategy="whole" with a larger budget gives its own decode.'
    )


def _where(device: torch.device) -> str:
    return "GPU decode" if device.type == "cuda" else "CPU decode"


def name_of(dtype: torch.dtype) -> str:
    """ "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def make_report(job: Job, z: Tensor, budget: Budget, **more: Any) -> DecodeReport:
    """A report with what is known before anything is planned."""
    return DecodeReport(
        job.family.name, tuple(z.shape), job.out_shape, str(job.device), name_of(job.dtype),
        budget.device_bytes, budget.rule, **more,
    )  # fmt: skip
