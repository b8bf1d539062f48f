"""One decode (or encode) from a plan to frames: one candidate after the other until one ends.

What no other attempt at a step could mend (an allocation, a convolution that no tier could do) ends
the program that runs, and the one that the C core names next starts from the beginning: so a result
is that of one program, bit for bit, wherever the fault struck. NaN out of a finite latent starts
the decode again in a wider type. A VAE's own code runs whole or in tiles (black_box.py).
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from hy3d_rocm.conv.prepared import cache, give_back, steady
from hy3d_rocm.conv.room import within
from hy3d_rocm.decode import black_box
from hy3d_rocm.decode.backends.native import NativeBackend
from hy3d_rocm.decode.copies import converted_family
from hy3d_rocm.decode.counter import native_flag
from hy3d_rocm.decode.failures import (
    CONVOLUTION,
    NOT_FINITE,
    OUT_OF_MEMORY,
    Failure,
    failure_of,
)
from hy3d_rocm.decode.faults import ATTEMPTS, is_out_of_memory
from hy3d_rocm.decode.graph import record
from hy3d_rocm.decode.memory import meter
from hy3d_rocm.decode.memory.black_box import grains
from hy3d_rocm.decode.memory.predict import CPU_ALLOWANCE_BYTES
from hy3d_rocm.decode.placing import Placing
from hy3d_rocm.decode.planning.backends import is_native
from hy3d_rocm.decode.planning.compiled import compile_job, plan_job
from hy3d_rocm.decode.planning.jobs import unused_sizes
from hy3d_rocm.decode.precision import NonFiniteError, wider
from hy3d_rocm.decode.report import DecodeCancelled, DecodeReport, Step
from hy3d_rocm.decode.restart import start_latent
from hy3d_rocm.decode.run import Run
from hy3d_rocm.decode.stages import (
    StageLog,
    say_attempt,
    say_success,
    stage_of,
    synchronize,
)
from hy3d_rocm.decode.tiled import TiledRun
from hy3d_rocm.decode.transfers import StreamMover
from hy3d_rocm.decode.watched import LayerByLayer, Narrowing
from hy3d_rocm.decode.weights import ModuleWeights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from hy3d_rocm.decode.counter import Counter
    from hy3d_rocm.decode.layers import Backend, Weights
    from hy3d_rocm.decode.memory.budget import Budget
    from hy3d_rocm.decode.planning.compiled import Compiled
    from hy3d_rocm.decode.planning.jobs import Job, WayOptions
    from hy3d_rocm.decode.planning.planner import Plan, Way

logger = logging.getLogger("hy3d_rocm")

_Interpreter = TypeVar("_Interpreter", bound=Run)

Reason = Literal["out of memory", "out of host memory", "no kernel"]
# What the C core is told, by what failed and whether it was the host's memory.
_REASONS: dict[tuple[str, bool], Reason] = {
    (OUT_OF_MEMORY, False): "out of memory", (OUT_OF_MEMORY, True): "out of host memory",
    (CONVOLUTION, False): "no kernel", (CONVOLUTION, True): "no kernel",
}  # fmt: skip

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
    tried: list[tuple[Any, ...]] = field(default_factory=list)
    plan: Plan | None = None
    _action: str | None = None  # what the C core said after a step failed

    def run(self) -> None:
        """Frames to `placing`. Raises what the last way raised."""
        began = time.perf_counter()
        self._choose()
        self.report.planning_seconds = time.perf_counter() - began
        began = time.perf_counter()
        device = self.job.device
        say_attempt(self._device(), self.job.encode)
        with meter.PeakMeter(device, exact=False) as peak:
            while (failure := self._attempt()) is not None:
                meter.give_back(device)  # outside of the except block, which held tensors
                self._step_down(failure)
            synchronize(device)
        self.report.measured_peak_bytes = peak.peak_bytes
        self.report.seconds = time.perf_counter() - began
        self.report.steps = self.counter.done
        result = f"device cpu, shape {self.job.out_shape}"
        say_success(self._device(), result, self.report.seconds, self.job.encode)

    def _device(self) -> torch.device:
        """Where the plan has it computed."""
        return self.job.device if self.plan is None else self.job.device_of(self.plan.way)

    # Plans

    def _choose(self) -> None:
        try:
            plan = self._planned()
            if self.making is not None:
                if self.strategy not in ("auto", self.making["strategy"]):
                    raise ValueError(f"the strategy {self.strategy!r} was asked for")
                plan = _plan_going_on(self.job, plan, self.making)
            self.plan = plan
        except ValueError as error:
            if self.making is None:
                raise
            raise ValueError(
                f"what is there was made by {self.making['strategy']!r} in {self.making['dtype']}, "
                f"and it can't go on so ({error}): give the same budget and strategy as then, or "
                "--restart"
            ) from error
        self._describe(self.plan)

    def _planned(self) -> Plan:
        wanted, counter = self._may_be_taken, self.counter
        if not black_box.is_opaque(self.job.family):
            wanted = partial(_any_way, counter)  # a schedule keeps it: it must not lead back here
        return plan_job(self.job, self.budget, self.strategy, self.options, wanted, self.making)

    def _may_be_taken(self, way: Way) -> bool:
        """Of a VAE's own code: not one that failed; one whose frames are made as those that are
        there. Asked before each way is priced, so a cancel is looked at."""
        self.counter.check()
        goes_on = self.making is None or making_of(self.job, way) == self.making
        return goes_on and _key(way) not in self.tried

    def _describe(self, plan: Plan) -> None:
        report = self.report
        own = own_code_words(self.job, plan.way) if black_box.is_opaque(self.job.family) else ""
        if plan.compiled is not None and plan.compiled.cuts_norms:
            own = _TILED_NORMS
        report.strategy, report.reason = plan.strategy, f"{plan.reason} {own}".strip()
        report.plan = plan.describe()
        report.ignored = unused_sizes(self.job, plan.way, self.options)
        for sentence in report.ignored:
            logger.info("[VAE Decode] %s", sentence)
        known = not plan.need.unknown
        report.predicted_peak_bytes = plan.peak.device_bytes if known else 0
        report.predicted_host_bytes = plan.peak.host_bytes if known else 0
        logger.info("[%s] %s", stage_of(self.job.encode), plan.line(own))

    def _step_down(self, failure: Failure) -> None:
        """Plans what comes next; raises where nothing does."""
        plan = self.plan
        assert plan is not None
        event = {
            "event": failure.what, "way": plan.way.name, "grain": self.counter.done,
            "grains": self.counter.total, "error": failure.text,
        }  # fmt: skip
        self.report.events.append(event)
        if failure.what == NOT_FINITE and failure.wider is None:
            raise failure.final(plan.way.name, ValueError("no wider type is left"))
        if plan.compiled is not None and failure.wider is None:
            self._begin_again(plan, failure)
            event["next_way"] = self.plan.way.name if self.plan is not None else ""
            self._say_again(plan, failure, event)
            return
        if failure.wider is not None:
            self.job = replace(self.job, dtype=failure.wider)
            self.report.dtype = event["next_dtype"] = name_of(failure.wider)
        elif failure.what != OUT_OF_MEMORY or plan.need.unknown:
            self.tried.append(_key(plan.way))
        self.making = None
        try:
            self._choose_again(plan, failure)
        except ValueError as error:
            raise failure.final(plan.way.name, error) from None
        event["next_way"] = self.plan.way.name if self.plan is not None else ""
        self._say_again(plan, failure, event)

    def _begin_again(self, plan: Plan, failure: Failure) -> None:
        """With the program that the C core gives after a failure; raises where it has none."""
        compiled, action, self._action = plan.compiled, self._action, None
        try:
            if self.making is not None:  # now others can be had than those that could go on
                self.making = None
                other = self._planned()
                compiled = other.compiled
                action = None if _key(other.way) == _key(plan.way) else "begin again"
            if action is None:  # no step failed, or one that another attempt can't cure
                action = self._fall_back(compiled, ATTEMPTS, failure)
            if action != "begin again":
                raise ValueError("every other candidate failed or needs more")
            self.plan = compiled.plan()
        except (ValueError, MemoryError) as error:
            raise failure.final(plan.way.name, error) from None
        self._describe(self.plan)

    def _fall_back(self, compiled: Compiled, attempts: int, failure: Failure) -> str:
        """What the C core says comes next. ValueError (a sentence) where it has no program left."""
        program = compiled.schedule.program
        if program is None:
            raise ValueError("every other candidate failed or needs more")
        return program.fallback(attempts, _REASONS[failure.what, failure.on_host])

    def _recover(self, step: int, attempts: int, error: BaseException) -> bool:
        """After a step failed so often: whether it is to be made again."""
        plan = self.plan
        assert plan is not None
        assert plan.compiled is not None
        if not isinstance(error, Exception) or not is_out_of_memory(error):
            return False
        device = self.job.device_of(plan.way)
        failure = failure_of(error, device.type == "cpu")
        try:
            action = self._fall_back(plan.compiled, attempts, failure)
        except ValueError:  # no program is left: what failed is told
            return False
        if action != "step again":
            self._action = action
            return False
        _relieve(device)
        return True

    def _say_again(self, plan: Plan, failure: Failure, event: dict[str, Any]) -> None:
        logger.warning(
            "[%s] %s in grain %d of %s (%s): starting again %s%s",
            stage_of(self.job.encode), failure.what.capitalize(), self.counter.done + 1,
            plan.way.name, failure.text, event["next_way"],
            f" in {self.report.dtype}" if failure.wider is not None else "",
        )  # fmt: skip

    def _choose_again(self, failed: Plan, failure: Failure) -> None:
        """Where memory was planned with that is not there, with less, if need be the same way with
        less of it resident; else what is left. It ends: each time the way needs less than before,
        or a way fewer is left."""
        if failure.what != OUT_OF_MEMORY or failed.need.unknown:
            return self._choose()
        before = self.budget
        self.budget = _lowered(before, failed, failure, self.job.device.type == "cpu")
        try:
            self._choose()
        except ValueError:
            self.budget = before
        else:
            assert self.plan is not None
            if _key(self.plan.way) != _key(failed.way) or _is_less(self.plan, failed, failure):
                return None
        self.tried.append(_key(failed.way))
        return self._choose()

    # Attempts

    def _attempt(self) -> Failure | None:
        assert self.plan is not None
        way = self.plan.way
        self.counter.done = 0
        try:
            with ExitStack() as stack:
                stack.enter_context(steady())  # nobody writes to the weights meanwhile
                stack.enter_context(within(self._most_prepared()))
                if way.strategy == "cpu":
                    from hy3d_rocm.conv.router import protect

                    flag = native_flag(self.counter.cancel)
                    stack.enter_context(protect(policy="pin:cpu", cancel=flag))
                self._carry_out(way)
        except NonFiniteError as error:
            return Failure(NOT_FINITE, str(error), wider(self.job.dtype, self.fallback))
        except DecodeCancelled:
            raise
        except (RuntimeError, MemoryError) as error:
            self.counter.check()  # a cancel may have cut a convolution short
            return failure_of(error, self.job.device_of(way).type == "cpu")
        return None

    def _most_prepared(self) -> int:
        """Bytes of prepared weights that may be in memory while the plan is carried out: what was
        planned beside those that are there, or, of a way that only a failing convolution brings to
        prepare any, what the budget leaves. Never a bit of the frames depends on it."""
        plan = self.plan
        assert plan is not None
        planned = plan.way.strategy == "cpu" or is_native(self.job, plan.way)
        return cache().stats().bytes + (plan.prepared_bytes if planned else plan.host_room)

    def _carry_out(self, way: Way) -> None:
        job, device = self.job, self.job.device_of(way)
        own, backend = black_box.runs_own_code(job, way), None
        if own:
            job = replace(job, family=converted_family(job.family, job.dtype))
        else:
            backend = job.make_backend(self.make_weights(job.dtype, device), device)
        if isinstance(backend, NativeBackend):
            backend.cancel = native_flag(self.counter.cancel)
            backend.check = self.counter.check
        stages = StageLog(self.counter, device, self.synchronization, job.encode)
        synchronize(device)
        self.report.estimate_error = None  # that of an attempt that failed says nothing now
        self.placing.begin(making_of(self.job, way))
        stages.expect(self._grains(way))
        narrowing = Narrowing(job.dtype) if job.dtype == torch.float64 else None
        if narrowing is not None and not own:
            with narrowing:
                record(job.family, job.encode)  # what a timestep becomes is in the layers
        for sample in range(self.z.shape[0]):
            if black_box.is_tiled(way):
                self._in_tiles(job, way, sample, backend, stages, narrowing)
            else:
                self._in_order(job, way, sample, backend, stages, narrowing)
        synchronize(device)
        if narrowing is not None and narrowing.found:
            self.report.precision_reason += f", {narrowing.words()}"
            logger.info("[VAE Decode] The frames are float64, %s", narrowing.words())
        self.report.delegated = dict(getattr(backend, "delegated", {}))

    def _grains(self, way: Way) -> int:
        """That will be counted; 0 where some of a sample's frames are there already."""
        frames, samples = self.job.out_shape[2], range(self.z.shape[0])
        compiled = None if self.plan is None else self.plan.compiled
        count = grains(self.job, way) if compiled is None else compiled.program.candidate["steps"]
        if black_box.is_tiled(way):
            return len(samples) * count
        wanted = [self.placing.first_wanted(sample) for sample in samples]
        if any(0 < first < frames for first in wanted):
            return 0
        return sum(first < frames for first in wanted) * count

    def _in_order(
        self, job: Job, way: Way, sample: int, backend: Backend | None, stages: StageLog,
        narrowing: Narrowing | None,
    ) -> None:  # fmt: skip
        wanted, device = self.placing.first_wanted(sample), job.device_of(way)
        if wanted >= job.out_shape[2]:
            return
        z = self.z[sample : sample + 1]
        with ExitStack() as stack:
            if backend is None:
                stack.enter_context(LayerByLayer(stages.check))
                made = _whole(job, z.to(device, job.dtype))
            else:
                made = self._made(job, way, z, backend, stages, sample, wanted)
            for number, (first, frames) in enumerate(_within(narrowing, made), 1):
                self.placing.put(sample, first, frames)
                del frames
                self._clean_up(number, device)
        if backend is None:
            count, height, width = job.out_shape[2:]
            self.counter.tick(Step("whole", sample, 0, 0, (0, count), (0, height), (0, width)))

    def _made(
        self, job: Job, way: Way, z: Tensor, backend: Backend, stages: StageLog, sample: int,
        wanted: int,
    ) -> Iterator[tuple[int, Tensor]]:  # fmt: skip
        """(first frame, frames) of one sample in order, by its program."""
        compiled, start = self._compiled(), 0
        if wanted and "chunk" in way.parameters and not job.encode:
            start = start_latent(job.family, way.parameters["chunk"], wanted)
        if start:
            shape = (*job.shape[:2], job.shape[2] - start, *job.shape[3:])
            making = making_of(job, way)
            rest = compile_job(
                replace(job, shape=shape), self.budget, way.strategy, self.options, making=making
            )
            compiled = _plan_going_on(job, rest.plan(), making).compiled
        run = self._interpreter(Run, compiled, job, backend, stages, sample)
        given, offset = z[:, :, start:], start * job.family.factor[0]
        for first, frames in run.section(compiled.program, 0, lambda r: given[:, :, slice(*r)]):
            at = first + offset
            if at + frames.shape[2] > wanted:
                yield max(at, wanted), frames[:, :, max(wanted - at, 0) :]
            del frames

    def _compiled(self) -> Compiled:
        assert self.plan is not None
        found: Compiled | None = self.plan.compiled
        assert found is not None, "layers are carried out by a program"
        return found

    def _interpreter(
        self, kind: type[_Interpreter], compiled: Compiled, job: Job, backend: Backend,
        stages: StageLog, sample: int,
    ) -> _Interpreter:  # fmt: skip
        stores = compiled.program.candidate["stored_bytes"] > 0
        assert self.plan is not None
        device = job.device_of(self.plan.way)
        return kind(
            compiled.graph, backend, device, job.dtype, counter=stages, recover=self._recover,
            mover=StreamMover(device) if stores else None, sample=sample,
        )  # fmt: skip

    def _in_tiles(
        self, job: Job, way: Way, sample: int, backend: Backend | None, stages: StageLog,
        narrowing: Narrowing | None,
    ) -> None:  # fmt: skip
        """Tiles are added up in one tensor."""
        whole, device = self.placing.whole(), job.device_of(way)
        z, out = self.z[sample : sample + 1], whole[sample : sample + 1]
        with narrowing or nullcontext():
            if backend is not None:
                compiled = self._compiled()
                tiles = self._interpreter(TiledRun, compiled, job, backend, stages, sample)
                tiles.run(compiled.program, z, out)
                if not compiled.cuts_norms:
                    error = max(tiles.estimate_error, self.report.estimate_error or 0.0)
                    self.report.estimate_error = error
            else:
                plan = black_box.plan_own_tiles(job.family, job.shape, way.parameters)
                black_box.OwnTiles(
                    job.family, plan, device, job.dtype, counter=stages,
                    on_pressure=partial(_relieve, device), sample=sample,
                ).run(z, out)  # fmt: skip
        self.placing.put_whole(sample)
        self._clean_up(self.cleanup_frequency or 1, device)

    def _clean_up(self, number: int, device: torch.device) -> None:
        """After each result the host's heap, or glibc's fragments add up (2 MB a grain measured);
        a GPU's allocator only if it was asked for, since filling it again takes time."""
        if self.cleanup_frequency is None:
            meter.trim_malloc()
        elif self.cleanup_frequency and number % self.cleanup_frequency == 0:
            meter.give_back(device)


def _whole(job: Job, z: Tensor) -> Iterator[tuple[int, Tensor]]:
    """All frames by the VAE's own code."""
    with torch.no_grad():
        yield 0, black_box.own_code(job)(z)


def _within(
    narrowing: Narrowing | None, made: Iterator[tuple[int, Tensor]]
) -> Iterator[tuple[int, Tensor]]:
    """What is made, each of it made in the scope of `narrowing`."""
    while True:
        with narrowing or nullcontext():
            item = next(made, None)
        if item is None:
            return
        yield item
        del item  # the caller's alone while the next is made


def _relieve(device: torch.device) -> None:
    """What is kept only to be faster is given back."""
    if device.type == "cpu":
        give_back()
    meter.give_back(device)


def _key(way: Way) -> tuple[Any, ...]:
    """What a way is, however much of it is resident."""
    return way.strategy, way.again, *sorted((k, str(v)) for k, v in way.parameters.items())


def _is_less(plan: Plan, failed: Plan, failure: Failure) -> bool:
    """Whether a plan needs less of what was short."""
    if failure.on_host and failed.need.host_bytes:
        return plan.need.host_bytes < failed.need.host_bytes
    return plan.need.device_bytes < failed.need.device_bytes


def _lowered(budget: Budget, failed: Plan, failure: Failure, on_cpu: bool) -> Budget:
    """Less of the memory that was short than what was planned with."""
    if failure.on_host and not on_cpu and not budget.is_unified:
        room = min(budget.host_bytes, failed.need.host_bytes)
        return replace(budget, host_bytes=int(room * _LESS))
    allowance = CPU_ALLOWANCE_BYTES if on_cpu else 0
    room = min(budget.device_bytes, failed.need.device_bytes)
    return replace(budget, device_bytes=max(int((room - allowance) * _LESS) + allowance, 0))


def making_of(job: Job, way: Way) -> dict[str, Any]:
    """What the frames of a way depend on, JSON-able; not where activations lie meanwhile."""
    parameters = {k: v if isinstance(v, (int, str)) else str(v) for k, v in way.parameters.items()}
    made = {"strategy": way.strategy, "dtype": name_of(job.dtype), "parameters": parameters}
    if is_native(job, way):
        made["backend"] = "native"
    return made


def _any_way(counter: Counter, way: Way) -> bool:
    """Unless it was cancelled."""
    counter.check()
    return True


def _plan_going_on(job: Job, plan: Plan, making: Mapping[str, Any]) -> Plan:
    """The plan whose frames depend on what those depend on that are there; ValueError: none."""
    while plan.compiled is not None and making_of(job, plan.way) != making:
        plan.compiled.program.fallback(ATTEMPTS, "no kernel")
        plan = plan.compiled.plan()
    return plan


_TILED_NORMS = (
    "Tiles are an approximation whose error can't be known: this VAE's norms see one tile at a "
    'time in place of a frame. strategy="streamed" gives its own frames.'
)


def own_code_words(job: Job, way: Way) -> str:
    """What is to be said of a VAE whose layers are not known."""
    said = f"Its own code runs, since {job.family.why}."
    if way.strategy != "tiled":
        return said
    return (
        f"{said} Tiles of it are an approximation whose error can't be known: norms and attention "
        'see one tile at a time. strategy="whole" with a larger budget gives its own decode.'
    )


def name_of(dtype: torch.dtype) -> str:
    """ "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def make_report(job: Job, z: Tensor, budget: Budget, **more: Any) -> DecodeReport:
    """A report with what is known before anything is planned."""
    return DecodeReport(
        job.family.name, tuple(z.shape), job.out_shape, str(job.device), name_of(job.dtype),
        budget.device_bytes, budget.rule, **more,
    )  # fmt: skip
