"""One decode from its plan to its frames: attempts, and what comes after a failure."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._C import DisableTorchFunction

from hy3d_rocm import meter
from hy3d_rocm.conv.prepared import give_back, stats_now, steady
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.tiers.vendor import library_name
from hy3d_rocm.decoding import black_box, faults, precision, stages, together
from hy3d_rocm.decoding.backends.native import NativeBackend
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend
from hy3d_rocm.decoding.backends.triton import selfcheck
from hy3d_rocm.decoding.backends.triton.backend import TritonBackend
from hy3d_rocm.decoding.compile_ahead import compile_ahead
from hy3d_rocm.decoding.copies import converted_family
from hy3d_rocm.decoding.graph import record
from hy3d_rocm.decoding.group import (
    Group,
    GroupLostError,
    Meeting,
    RankFailedError,
    is_settled,
)
from hy3d_rocm.decoding.layers import ModuleWeights
from hy3d_rocm.decoding.memory.budget import Budget
from hy3d_rocm.decoding.placing import Placing, Transfers
from hy3d_rocm.decoding.planning.compiled import Compiled, plan_job
from hy3d_rocm.decoding.planning.jobs import Job, best_backend, resume_key_of, unused_sizes
from hy3d_rocm.decoding.planning.planner import Plan, Variant
from hy3d_rocm.decoding.precision import Precision
from hy3d_rocm.decoding.report import DecodeCancelled, DecodeOptions, DecodeReport, Progress, Step
from hy3d_rocm.decoding.run import Run
from hy3d_rocm.decoding.shared_run import SharedRun, sent_rows
from hy3d_rocm.decoding.tiled_run import TiledRun
from hy3d_rocm.frames.output import Sink

logger = logging.getLogger("hy3d_rocm")

Result = TypeVar("Result")
Request = str | int | float | None
Frames = tuple[int, Tensor]  # the first one's number, and (1, C, t, H, W)
# Tiers that ask no vendor's library.
_WITHOUT_LIBRARY = ("triton", "gemm", "native")


@dataclass(frozen=True)
class DecodeRequest:
    """What is asked of a decode or encode, as executor.py's functions take it."""

    budget: Request = None
    strategy: str = "auto"
    precision: str = "auto"
    progress: Progress | None = None
    cancel: Any = None
    options: DecodeOptions = field(default_factory=DecodeOptions)
    out: Tensor | None = None
    sink: Sink | None = None
    resume_key: Mapping[str, Any] | None = None
    encode: bool = False
    group: Any = None


class Execution:
    """One decode (or encode) from a plan to frames: one candidate after the other until one ends.

    What no other attempt at a step could mend (an allocation, a convolution that no tier could do)
    ends the program that runs, and the one that the C core names next starts from the beginning: so
    a result is that of one program, bit for bit, wherever the fault struck. What may be a vendor's
    library's fault is made again without it, once. NaN out of a finite latent starts the decode
    again in a wider type. A VAE whose layers are not known has no program: its variants are chosen
    here.

    job: what is decoded. z: the latents (B, C, T, H, W), where the caller has them; of a rank that
    rank 0 sends what it needs their shape, on "meta". placing: where the frames go. resume_key:
    what an earlier run's frames depend on, which goes on here. plan: what is carried out, from
    run() on.
    """

    plan: Plan

    def __init__(
        self, job: Job, z: Tensor, budget: Budget, asked: DecodeRequest, chosen: Precision
    ) -> None:
        self.job, self.z, self.budget, self.asked = job, z, budget, asked
        self.group: Group | None = asked.group
        self.fallback, self.resume_key = chosen.fallback, asked.resume_key
        self.counter = stages.Counter(asked.progress, asked.cancel)
        self.placing = Placing(job.out_shape, job.result_dtype, asked.out, asked.sink)
        self.report = DecodeReport(
            job.family.name, tuple(z.shape), job.out_shape, str(job.device),
            precision.name_of(job.dtype), budget.device_bytes, budget.rule,
            precision_reason=chosen.reason,
        )  # fmt: skip
        self._tried: list[tuple[Any, ...]] = []
        self._may_blame_library = not job.without_library
        self._transfers: Transfers | None = None
        self._plans: Meeting | None = None  # of the group's, not compared yet

    @property
    def device(self) -> torch.device:
        return self.job.device_of(self.plan.variant)

    def run(self) -> None:
        """Frames to `placing`. Raises what the last variant raised."""
        encode, report, began = self.job.encode, self.report, time.perf_counter()
        self._take(self._planned(self._chosen))
        planned = time.perf_counter()
        report.planning_seconds = planned - began
        stages.say_attempt(self.device, encode)
        with meter.PeakMeter(self.job.device, exact=False) as peak:
            while (failure := self._attempt()) is not None:
                meter.give_back(self.job.device)  # the except block held tensors
                self._step_down(failure)
            stages.synchronize(self.job.device)
        report.measured_peak_bytes, report.steps = peak.peak_bytes, self.counter.done
        report.seconds = time.perf_counter() - planned
        if self.plan.compiled is not None and not report.events:
            self.plan.compiled.keep()
        result = f"device cpu, shape {self.job.out_shape}"
        stages.say_success(self.device, result, report.seconds, encode)

    # Plans

    def _chosen(self) -> Plan:
        resume_key, strategy, options = self.resume_key, self.asked.strategy, self.asked.options
        # A schedule keeps what it asks: that must not lead here.
        opaque = black_box.is_opaque(self.job.family)
        wanted = self._may_be_taken if opaque else self.counter.check_cancel
        try:
            if resume_key is not None and strategy not in ("auto", resume_key["strategy"]):
                raise ValueError(f"the strategy {strategy!r} was asked for")
            return plan_job(self.job, self.budget, strategy, options, wanted, resume_key)
        except ValueError as error:
            if resume_key is None:
                raise
            raise ValueError(
                f"what is there was made by {resume_key['strategy']!r} in {resume_key['dtype']}, "
                f"and it can't go on so ({error}): give the same budget and strategy as then, or "
                "--restart"
            ) from error

    def _may_be_taken(self, variant: Variant) -> bool:
        """Of a VAE's own code: not one that failed; one whose frames are made as those that are
        there. Asked before each variant's cost is computed, so a cancel is looked at."""
        self.counter.check_cancel()
        goes_on = self.resume_key is None or resume_key_of(self.job, variant) == self.resume_key
        return goes_on and black_box.key_of(variant) not in self._tried

    def _planned(self, work: Callable[..., Plan], *given: Any) -> Plan:
        """work(*given). What the other ranks of a group have planned is looked at later, where
        nobody has to wait for it any more: see _compare_plans()."""
        if self.group is None:
            return work(*given)
        plan, self._plans = self._meeting("a plan", work, *given, says=together.what_decides)
        if plan is None:
            self._plans.answer()  # raises
        return cast("Plan", plan)

    def _compare_plans(self) -> None:
        """GroupLostError where the ranks have planned other programs; what planning raised on one
        of them on all."""
        if self.group is not None and self._plans is not None:
            plans, self._plans = self._plans, None
            self.group.check_alike("planned", plans.answer())

    def _take(self, plan: Plan) -> None:
        self.plan, report, own = plan, self.report, ""
        if plan.compiled is None:
            own = black_box.own_code_words(self.job, plan.variant)
        elif plan.compiled.cuts_norms:
            own = _TILED_NORMS
        report.strategy, report.reason = plan.strategy, f"{plan.reason} {own}".strip()
        report.plan = plan.describe()
        report.ignored = unused_sizes(self.job, plan.variant, self.asked.options)
        for sentence in report.ignored:
            logger.info("[VAE Decode] %s", sentence)
        known = not plan.need.unknown
        report.predicted_peak_bytes = plan.peak.device_bytes if known else 0
        report.predicted_host_bytes = plan.peak.host_bytes if known else 0
        logger.info("[%s] %s", stages.stage_of(self.job.encode), plan.line(own))

    def _step_down(self, failure: faults.Failure) -> None:
        """Plans what comes next; raises where nothing does."""
        failed, report = self.plan, self.report
        event = {
            "event": failure.what, "way": failed.variant.name, "grain": self.counter.done,
            "grains": self.counter.total, "error": failure.text,
        }  # fmt: skip
        report.events.append(event)
        plan = self._planned(self._next_plan, failure, event)
        self._take(plan)
        event["next_way"] = plan.variant.name
        with_other = f" in {report.dtype}" if "next_dtype" in event else ""
        if failure.what == faults.WRONG_KERNEL:
            with_other = ", by PyTorch's operators"
        elif "without" in event:
            with_other = f", without {event['without']}"
        logger.warning(
            "[%s] %s in step %d of %s (%s): starting again %s%s",
            stages.stage_of(self.job.encode), failure.what.capitalize(), self.counter.done + 1,
            failed.variant.name, failure.text, plan.variant.name, with_other,
        )  # fmt: skip

    def _next_plan(self, failure: faults.Failure, event: dict[str, Any]) -> Plan:
        """What comes after a failure; `event` says which type, where that is another, or which
        library is left out."""
        failed = self.plan
        try:
            if failure.what in (faults.NOT_FINITE, faults.CONVOLUTION):
                if self._may_be_the_librarys(failure):
                    self._may_blame_library, self.resume_key = False, None
                    self.job = self.job.but(without_library=True)
                    event["without"] = library_name()
                    return failed
                self.job = self.job.but(without_library=False)  # it was not to blame
            if failure.what == faults.NOT_FINITE:
                dtype = precision.wider(self.job.dtype, self.fallback)
                if dtype is None:
                    raise ValueError("no wider type is left")
                self.job, self.resume_key = self.job.but(dtype=dtype), None
                event["next_dtype"] = self.report.dtype = precision.name_of(dtype)
                return self._chosen()
            if failure.what == faults.WRONG_KERNEL:  # on every rank: no decode to come has them
                selfcheck.distrust(self.job.device, failure.text)
                asked = self.asked.options.backend
                backend = best_backend(self.job.device, self.job.dtype, asked)
                self.job, self.resume_key = self.job.but(make_backend=backend), None
                return self._chosen()
            if failed.compiled is None:
                return self._next_own_way(failed, failure)
            return self._next_program(failed, failure)
        except (ValueError, MemoryError) as error:
            raise failure.final(failed.variant.name, error) from None

    def _may_be_the_librarys(self, failure: faults.Failure) -> bool:
        """Whether what failed may end without the vendor's library, which was not left out yet.
        MIOpen has no solution for some shapes, and now and then gives NaN
        (https://github.com/ModelTC/LightX2V/pull/1549)."""
        if not self._may_blame_library or not self.job.asks_library(self.plan.variant):
            return False
        return failure.what == faults.CONVOLUTION or torch.version.hip is not None

    def _next_program(self, plan: Plan, failure: faults.Failure) -> Plan:
        if self.resume_key is not None:  # now others can be had than those that could go on
            self.resume_key, failed = None, black_box.key_of(plan.variant)
            plan = self._chosen()
            if black_box.key_of(plan.variant) != failed:
                return plan
        if plan.compiled.program.fallback(faults.ATTEMPTS, failure.reason) != "begin again":
            raise ValueError("every other candidate failed or needs more")
        return cast("Plan", plan.compiled.plan())

    def _next_own_way(self, failed: Plan, failure: faults.Failure) -> Plan:
        """Of a VAE's own code: where memory was planned with that is not there, with less; else
        what is left."""
        self.resume_key, before = None, self.budget
        self._tried.append(black_box.key_of(failed.variant))
        if failure.what == faults.OUT_OF_MEMORY and not failed.need.unknown:
            on_cpu = self.job.device.type == "cpu"
            self.budget = black_box.lowered(before, failed, failure, on_cpu)
            try:
                return self._chosen()
            except ValueError:
                self.budget = before
        return self._chosen()

    # Attempts

    def _attempt(self) -> faults.Failure | None:
        """Carries the plan out; what ended it."""
        self._compare_plans()
        self.counter.done, narrowing = 0, faults.Narrowing(self.job.dtype)
        scope: Any = narrowing if self.job.dtype == torch.float64 else nullcontext()
        try:
            # Nobody writes to the weights.
            with steady(self._most_prepared()), self._routed(), scope, ExitStack() as ends:
                ends.push(self._end_transfers)
                if self.plan.compiled is None or not self.plan.compiled.program.copies_bytes:
                    meter.close_kept()  # which was planned with
                (job, backend, _), (wanted, *_) = self._together(
                    "its first step", self._begin, says=itemgetter(2)
                )
                for sample in range(self.z.shape[0]):
                    if black_box.is_tiled(self.plan.variant):
                        here, compiled = slice(sample, sample + 1), self.plan.compiled
                        z, whole = self.z[here], self.placing.whole()[here]
                        if backend is None:
                            black_box.in_own_tiles(
                                job, self.plan.variant, z, whole, self._recover(), self.counter,
                                sample,
                            )  # fmt: skip
                        else:  # here, in one frame of Python less
                            run = self._interpreter(TiledRun, compiled, backend, sample)
                            run.tiles(compiled.program, z, whole)
                            worst = max(run.estimate_error, self.report.estimate_error or 0.0)
                            self.report.estimate_error = None if compiled.cuts_norms else worst
                        with DisableTorchFunction():
                            self.placing.put_whole(sample)
                        self._clean_up(self.asked.options.cleanup_frequency or 1)
                    else:
                        self._place(sample, *self._frames(job, sample, backend, wanted[sample]))
                self._together("its end", self._settle)
        except precision.NonFiniteError as error:
            return faults.Failure(faults.NOT_FINITE, str(error))
        except RankFailedError as error:  # which counts here as it does there
            on_host = error.failure.on_host or self.device.type == "cpu"
            return replace(error.failure, on_host=on_host)
        except DecodeCancelled:
            raise
        except (RuntimeError, MemoryError) as error:
            if self.group is None:
                self.counter.check_cancel()  # it may have cut a convolution short
            elif not is_settled(error):
                raise
            return faults.failure_of(error, self.device.type == "cpu")
        if narrowing.found:
            self.report.precision_reason += f", {narrowing.words()}"
            logger.info("[VAE Decode] The frames are float64, %s", narrowing.words())
        self.report.delegated = {} if backend is None else dict(backend.delegated)
        return None

    def _routed(self) -> Any:
        """A scope in which convolutions are computed as the plan says."""
        if self.plan.strategy == "cpu":
            return protect(policy="pin:cpu", cancel=stages.native_flag(self.counter.cancel))
        return protect(tiers=_WITHOUT_LIBRARY) if self.job.without_library else nullcontext()

    def _together(
        self, about: str, work: Callable[..., Result], *given: Any,
        says: Callable[[Result], Any] = lambda made: None,
    ) -> tuple[Result, list[Any]]:  # fmt: skip
        """work(*given), and what says(it) gives on each rank (of JSON); in a group all ranks raise
        where one does."""
        if self.group is None:
            made = work(*given)
            return made, [says(made)]
        found, meeting = self._meeting(about, work, *given, says=says)
        return found, meeting.answer()

    def _meeting(
        self, about: str, work: Callable[..., Any], *given: Any, says: Callable[[Any], Any]
    ) -> tuple[Any, Meeting]:
        """work(*given), None where it fails, and the meeting to which this rank said how it went;
        a failure is raised by its answer()."""
        found, said, error = None, None, None
        assert self.group is not None
        try:
            found = work(*given)
            said = says(found)
        except GroupLostError:
            raise
        except BaseException as failed:  # noqa: BLE001
            found, error = None, failed
        return found, Meeting(self.group, about, error, said)

    def _place(self, sample: int, at: int, made: Generator[Frames]) -> None:
        """What comes goes to its place, `at` frames on. In a group what goes wrong there is every
        rank's: the run goes on to where they meet."""
        number, item = 0, next(made, None)
        while item is not None:
            first, frames = item
            item, error = None, cast("BaseException | None", None)
            try:
                if self.group is not None and self.placing.sink is not None:
                    # A file keeps what it got: nothing that NCCL gave up may come into it.
                    stages.synchronize(self.device)
                    self.group.settle()
                with DisableTorchFunction():  # a sink may write frames of another type
                    self.placing.put(sample, first + at, frames)
            except GroupLostError:
                raise
            except BaseException as failed:
                if self.group is None:
                    raise
                error = failed
            del frames
            number += 1
            self._clean_up(number)
            item = next(made, None) if error is None else made.throw(error)

    def _settle(self) -> None:
        self.placing.arrive()
        stages.synchronize(self.device)
        if self.group is not None:
            self.group.settle()

    def _begin(self) -> tuple[Job, TorchBackend | None, list[int]]:
        """The job over weights of its type; what computes its layers, None for the VAE's own code;
        and of each sample the first frame that is wanted."""
        job, device, backend = self.job, self.device, None
        if job.runs_own_code(self.plan.variant):
            job = job.but(family=converted_family(job.family, job.dtype))
        else:
            make_weights = getattr(job.family, "make_weights", ModuleWeights)
            backend = job.make_backend(make_weights(job.dtype, device), device)
            if device.type == "cuda" and isinstance(backend, TritonBackend):
                compile_ahead(job, self.plan.compiled)
            if job.dtype == torch.float64:
                record(job.family, job.encode)  # what a timestep becomes is in the layers
        if isinstance(backend, NativeBackend):
            backend.cancel = stages.native_flag(self.counter.cancel)
            backend.check = self.counter.check_cancel
        self.counter.watch(device, self.asked.options.synchronization, job.encode)
        stages.synchronize(device)
        self.report.estimate_error = None  # that of an attempt that failed says nothing now
        self.placing.begin(resume_key_of(self.job, self.plan.variant))
        if device.type == "cuda" and (self.group is None or self.group.rank == 0):
            self.placing.populate()
        wanted = [self.placing.first_wanted(sample) for sample in range(self.z.shape[0])]
        self.counter.total = self._steps(wanted)
        return job, backend, wanted

    def _most_prepared(self) -> int:
        """Bytes of prepared weights that may be in memory while the plan is carried out: what was
        planned beside those that are there, or, of a variant that only a failing convolution brings
        to prepare any, what the budget leaves. Never a bit of the frames depends on it."""
        plan = self.plan
        planned = plan.variant.strategy == "cpu" or self.job.is_native(plan.variant)
        return stats_now().bytes + (plan.prepared_bytes if planned else plan.host_room)

    def _steps(self, wanted: list[int]) -> int:
        """That will be counted; 0 where some of a sample's frames are there already."""
        frames, compiled, variant = self.job.out_shape[2], self.plan.compiled, self.plan.variant
        if black_box.is_tiled(variant):
            wanted = [0] * len(wanted)
        if any(0 < first < frames for first in wanted):
            return 0
        due = sum(first < frames for first in wanted)
        if compiled is not None:
            program = compiled.program  # the candidate's steps are those of all ranks
            alone = self.group is None
            return due * int((program.candidate if alone else program.sections[0])["steps"])
        return due * black_box.tiles(self.job, variant)

    def _frames(
        self, job: Job, sample: int, backend: TorchBackend | None, wanted: int
    ) -> tuple[int, Generator[Frames]]:
        """Those of one sample from frame `wanted` on, or some before it, in order; what is to be
        added to their numbers."""
        z = self.z[sample : sample + 1]
        if wanted >= job.out_shape[2]:
            return 0, (frames for frames in list[Frames]())
        if backend is None:
            return 0, self._own_code(job, sample, z)
        compiled, variant, start = self.plan.compiled, self.plan.variant, 0
        if wanted and "chunk" in variant.parameters and not job.encode:
            start = compiled.program.start(wanted)
        if start:
            shape = *job.shape[:2], job.shape[2] - start, *job.shape[3:]
            found = Compiled(
                job.but(shape=shape), self.budget, variant.strategy, self.asked.options,
                resume_key=resume_key_of(job, variant), weights=compiled.program.weights,
            )  # fmt: skip
            compiled = found.plan().compiled
            z = z[:, :, start:]
        kind: Any = Run
        if self.group is not None:
            row = 0
            if self.job.sends_source:
                z, row = sent_rows(
                    self.group, f"the rows of sample {sample} that are sent", z,
                    compiled.program.input_rows, self.job.dtype, self.counter.check_cancel,
                )  # fmt: skip
            kind = partial(SharedRun, self.group, row)
        run = self._interpreter(kind, compiled, backend, sample)
        made = run.section(compiled.program, 0, lambda r: z[:, :, slice(*r)])
        return start * job.family.factor[0], made

    def _own_code(self, job: Job, sample: int, z: Tensor) -> Generator[Frames]:
        with faults.LayerByLayer(self.counter.check):
            made = black_box.own_code(job)(z.to(self.device, job.dtype))
        yield 0, made
        sizes = ((0, n) for n in job.out_shape[2:])
        self.counter.tick(Step("whole", sample, 0, 0, *sizes))

    def _recover(self) -> faults.Recover:
        """Gives back what is kept only to be faster, and tries again."""
        device = self.device

        def relieve() -> None:
            if device.type == "cpu":
                give_back()
            meter.give_back(device)

        return faults.retry_out_of_memory(relieve)

    def _interpreter(
        self, kind: Callable[..., Any], compiled: Any, backend: TorchBackend, sample: int
    ) -> Any:
        return kind(
            compiled.graph, backend, self.device, self.job.dtype, counter=self.counter,
            sample=sample, recover=self._recover(),
            transfers=self._transfers_of(compiled.program.copies_bytes),
        )  # fmt: skip

    def _transfers_of(self, size_bytes: int) -> Transfers | None:
        """What all samples of an attempt share; no frames of it are on their way between two."""
        if size_bytes > (0 if self._transfers is None else self._transfers.memory.size_bytes):
            self._end_transfers(None)
            self._transfers = Transfers(self.device, size_bytes)
        return self._transfers if size_bytes else None

    def _end_transfers(self, failed: type[BaseException] | None, *_: object) -> None:
        ended, self._transfers = self._transfers, None
        if ended is not None:
            ended.close(is_kept=failed is None)

    def _clean_up(self, number: int) -> None:
        """After each result the host's heap, or glibc's fragments add up (2 MB a chunk measured);
        a GPU's allocator only if it was asked for, since filling it again takes time."""
        frequency = self.asked.options.cleanup_frequency
        if frequency is None:
            meter.trim_malloc()
        elif frequency and number % frequency == 0:
            meter.give_back(self.device)


_TILED_NORMS = (
    "Tiles are an approximation whose error can't be known: this VAE's norms see one tile at a "
    'time in place of a frame. strategy="streamed" gives its own frames.'
)
