"""decode() and encode(): a latent to frames, or frames to a latent, within a memory budget.

See docs/decode.md.
"""

from __future__ import annotations

import copy
import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from hy3d_rocm import _native, meter
from hy3d_rocm.capture import around
from hy3d_rocm.conv.prepared import cache, give_back, steady, within
from hy3d_rocm.decoding import black_box, checks, faults, precision, stages
from hy3d_rocm.decoding.backends.native import NativeBackend
from hy3d_rocm.decoding.copies import converted_family, tensors_of
from hy3d_rocm.decoding.families import check_unchanged, family_or_unknown
from hy3d_rocm.decoding.families.unknown import UnknownFamily
from hy3d_rocm.decoding.graph import record
from hy3d_rocm.decoding.layers import ModuleWeights
from hy3d_rocm.decoding.memory.budget import make_budget
from hy3d_rocm.decoding.placing import Placing
from hy3d_rocm.decoding.planning.compiled import Compiled, plan_job
from hy3d_rocm.decoding.planning.jobs import Job, best_backend, torch_backend, unused_sizes
from hy3d_rocm.decoding.report import DecodeCancelled, DecodeOptions, DecodeReport, Progress, Step
from hy3d_rocm.decoding.run import Run
from hy3d_rocm.decoding.transfers import StreamMover
from hy3d_rocm.device import resolve_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from hy3d_rocm.decoding.layers import Backend
    from hy3d_rocm.decoding.memory.budget import Budget
    from hy3d_rocm.decoding.planning.planner import Plan, Way
    from hy3d_rocm.decoding.precision import Precision
    from hy3d_rocm.frames.output import Sink

logger = logging.getLogger("hy3d_rocm")

Request = str | int | float | None
Frames = tuple[int, "Tensor"]  # the first one's number, and (1, C, t, H, W)


def decode(
    vae: Any, latents: Any, budget: Request = None, strategy: str = "auto",
    precision: str = "auto", progress: Progress | None = None, cancel: Any = None,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Frames (B, C, T, H, W) on the CPU: what `vae.decode(latents).sample` holds, unsplit.

    vae: diffusers' AutoencoderKLHunyuanVideo, -HunyuanVideo15, -Wan, -LTXVideo, AutoencoderKL, what
    is built alike, or a family; nothing of it is changed. Anything else that has decode(latents):
    that is called, "whole", or "tiled" where it does not fit: then the error can't be known.
    latents: (B, C, T, H, W) as the VAE takes them (already divided by its scaling factor); an image
    VAE also takes (B, C, H, W), and gives (B, C, H, W).
    budget: None or "auto" for 0.8 of what is free now, bytes, "6GB", or "80%" of the device's
    memory. On a GPU that of the GPU; on the CPU, and where GPU and host share their memory,
    everything above what is in use at the call, the result included.
    strategy: "whole" (the VAE's own unsplit decode, bit for bit), "streamed" (the same layers on
    parts of the video, exact up to rounding), "tiled" (in space, too: an approximation where norms
    see the whole video), "cpu" (streamed on the host by the C convolution), or "auto": of what fits
    the fastest of "whole" and "streamed" ("streamed" alone where the fused kernels run: it is
    faster, too), else the largest tiles, else the host.
    precision: "auto" (the VAE's own type unless the card can't; of float8 weights the type that
    they are cast to, else bf16), "fp32", "bf16" or "fp16"; the result has the VAE's type. NaN out
    of finite latents: again in a precision.wider type, said in the log.
    progress: called as progress(done, total, step) after each grain; total is 0 where unknown.
    cancel: a callable, an object with `.requested` or a threading.Event, looked at before each
    grain.
    out: a tensor of the result's shape on the CPU to be filled and returned. It must not lie in
    the memory of the latents or of the VAE's weights.

    Raises TypeError or ValueError (sentences) for input it can't decode, BudgetTooSmallError with
    the smallest budget that would do, DecodeCancelled.
    """
    asked = DecodeRequest(budget, strategy, precision, progress, cancel, out=out)
    return _execute(vae, latents, asked)[0]  # type: ignore[no-any-return]


def decode_with_report(
    vae: Any, latents: Any, budget: Request = None, strategy: str = "auto",
    precision: str = "auto", progress: Progress | None = None, cancel: Any = None,
    options: DecodeOptions | None = None, out: Tensor | None = None,
) -> tuple[Tensor, DecodeReport]:  # fmt: skip
    """decode(), and how it went. `options`: see DecodeOptions."""
    chosen = options or DecodeOptions()
    asked = DecodeRequest(budget, strategy, precision, progress, cancel, chosen, out)
    return _execute(vae, latents, asked)


def decode_into(
    sink: Sink, vae: Any, latents: Any, budget: Request = None, strategy: str = "auto",
    precision: str = "auto", progress: Progress | None = None, cancel: Any = None,
    options: DecodeOptions | None = None, making: Mapping[str, Any] | None = None,
) -> tuple[Any, DecodeReport]:  # fmt: skip
    """decode() into a sink of output.py, as frames are made: what sink.finish() gives, and how it
    went. making: what the sink was told at begin() by a decode that goes on here. On any exception
    the sink is aborted."""
    chosen = options or DecodeOptions()
    asked = DecodeRequest(
        budget, strategy, precision, progress, cancel, chosen, None, sink, making
    )  # fmt: skip
    try:
        return _execute(vae, latents, asked)
    except BaseException:
        try:
            sink.abort()
        except Exception as error:  # noqa: BLE001  what went wrong first is what the caller gets
            logger.warning("[VAE Decode] What was written can't be put in order: %s", error)
        raise


def encode(
    vae: Any, pixels: Any, budget: Request = None, strategy: str = "auto",
    precision: str = "auto", progress: Progress | None = None, cancel: Any = None,
    moments: bool = False,
) -> Tensor:  # fmt: skip
    """Latents (B, C, T, H, W) on the CPU: the mean that `vae.encode(pixels)` gives, unsplit.

    pixels: (B, 3, T, H, W) in -1..1, T = 4 n + 1 frames for a video VAE whose time factor is 4.
    moments: the mean and the logarithm of the variance, (B, 2 C, T, H, W). All else as decode().
    The latents are as the VAE makes them: multiply by its scaling factor for a model.
    """
    return encode_with_report(
        vae, pixels, budget, strategy, precision, progress, cancel, moments=moments
    )[0]  # fmt: skip


def encode_with_report(
    vae: Any, pixels: Any, budget: Request = None, strategy: str = "auto",
    precision: str = "auto", progress: Progress | None = None, cancel: Any = None,
    options: DecodeOptions | None = None, moments: bool = False,
) -> tuple[Tensor, DecodeReport]:  # fmt: skip
    """encode(), and how it went. `options`: see DecodeOptions; those of tiles have no effect."""
    chosen = options or DecodeOptions()
    asked = DecodeRequest(budget, strategy, precision, progress, cancel, chosen, encode=True)
    found, report = _execute(vae, pixels, asked)
    return found if moments else found[:, : found.shape[1] // 2].contiguous(), report


@dataclass(frozen=True)
class DecodeRequest:
    """What is asked of a decode or encode, as the functions above take it."""

    budget: Request = None
    strategy: str = "auto"
    precision: str = "auto"
    progress: Progress | None = None
    cancel: Any = None
    options: DecodeOptions = field(default_factory=DecodeOptions)
    out: Tensor | None = None
    sink: Sink | None = None
    making: Mapping[str, Any] | None = None
    encode: bool = False


def _execute(vae: Any, source: Any, asked: DecodeRequest) -> tuple[Any, DecodeReport]:
    checks.check_choice("strategy", asked.strategy, checks.STRATEGIES)
    checks.check_choice("precision", asked.precision, precision.PRECISIONS)
    with torch.no_grad():
        family, out = _family_of(vae, source, asked.encode), asked.out
        if isinstance(source, torch.Tensor) and precision.only_stores(source.dtype):
            source = source.to(torch.float32)
        image = isinstance(source, torch.Tensor) and source.ndim == 4 and bool(family.is_image)
        if image:
            source = source.unsqueeze(2)
            if isinstance(out, torch.Tensor) and out.ndim == 4:
                asked = replace(asked, out=out.unsqueeze(2))
        (checks.check_pixels if asked.encode else checks.check_latents)(source, family)
        with around(family, source, asked) as reports:
            execution = _prepare(family, source, asked)
            reports.append(execution.report)
            execution.run()
        result = execution.placing.finish()
        if out is not None:
            result = out  # the caller's own, not a view of it
        elif image and isinstance(result, torch.Tensor):
            result = result.squeeze(2)
        return result, execution.report


def _family_of(vae: Any, source: Any, encode: bool) -> Any:
    known = hasattr(vae, "has_global_norms")
    family: Any = vae if known else family_or_unknown(vae, source, encode)
    if known:
        check_unchanged(family, encode)
    if isinstance(family, UnknownFamily) and family.encoding is not encode:
        family = UnknownFamily(family.vae, source, family.why, encode)
    offload: Any = getattr(getattr(family, "vae", None), "_hf_hook", None)
    if hasattr(offload, "pre_forward"):  # as diffusers' own decode() does under offload
        offload.pre_forward(family.vae)
    checks.check_parameters(family)
    if not _native.available and not black_box.is_opaque(family):
        family = copy.copy(family)
        family.why = f"the C core, which plans its layers, is missing ({_native.missing})"
    return family


def _prepare(family: Any, source: Tensor, asked: DecodeRequest) -> Execution:
    options, sink = asked.options, asked.sink
    host = getattr(family, "host", None)
    if host is not None:  # where the VAE's host computes, or what the VAE itself says
        device = torch.device(host.device)
    else:
        device = resolve_device(getattr(family, "vae", None), default=family.device).device
    if asked.making is not None:  # what goes on is of the type that it was begun in
        dtype = getattr(torch, str(asked.making["dtype"]))
        chosen = precision.Precision(dtype, "as it was begun")
    else:
        chosen = precision.choose_precision(
            asked.precision, family.dtype, device, options.fallback_precision
        )
    stages.say_start(source, family.device, family.dtype, asked.encode)
    budget = make_budget(
        asked.budget, meter.machine_of(device), memory_threshold=options.memory_threshold,
        memory_fraction=options.memory_fraction,
    )  # fmt: skip
    opaque = black_box.is_opaque(family)
    make_backend = torch_backend if opaque else best_backend(device, chosen.dtype, options.backend)
    job = Job(
        family, tuple(source.shape), device, chosen.dtype,
        family.result_dtype if opaque else family.dtype, make_backend, encode=asked.encode,
        keeps_result=sink is None,
    )  # fmt: skip
    if sink is not None:
        taken = sink.host_bytes(job.out_shape)
        budget = replace(
            budget, host_bytes=max(budget.host_bytes - taken, 0),
            device_bytes=max(budget.device_bytes - taken * budget.is_unified, 0),
        )  # fmt: skip
    weights = tensors_of(family) if hasattr(family, "vae") else []
    if asked.out is not None:
        checks.check_result(asked.out, job.out_shape, latents=[source], weights=weights)
    stored = next((t.dtype for t in weights if precision.only_stores(t.dtype)), None)
    if stored is not None:
        why = f"{chosen.reason}, its weights are {precision.name_of(stored)}"
        chosen = replace(chosen, reason=why)
    return Execution(job, source.detach(), budget, asked, chosen)


class Execution:
    """One decode (or encode) from a plan to frames: one candidate after the other until one ends.

    What no other attempt at a step could mend (an allocation, a convolution that no tier could do)
    ends the program that runs, and the one that the C core names next starts from the beginning: so
    a result is that of one program, bit for bit, wherever the fault struck. NaN out of a finite
    latent starts the decode again in a wider type. A VAE whose layers are not known has no program:
    its ways are chosen here.

    job: what is decoded. z: the latents (B, C, T, H, W), where the caller has them. placing:
    where the frames go. making: what an earlier run's frames depend on, which goes on here. plan:
    what is carried out, from run() on.
    """

    plan: Plan

    def __init__(
        self, job: Job, z: Tensor, budget: Budget, asked: DecodeRequest, chosen: Precision
    ) -> None:
        self.job, self.z, self.budget, self.asked = job, z, budget, asked
        self.fallback, self.making = chosen.fallback, asked.making
        self.counter = stages.Counter(asked.progress, asked.cancel)
        self.placing = Placing(job.out_shape, job.result_dtype, asked.out, asked.sink)
        self.report = DecodeReport(
            job.family.name, tuple(z.shape), job.out_shape, str(job.device),
            precision.name_of(job.dtype), budget.device_bytes, budget.rule,
            precision_reason=chosen.reason,
        )  # fmt: skip
        self._tried: list[tuple[Any, ...]] = []

    def run(self) -> None:
        """Frames to `placing`. Raises what the last way raised."""
        encode, began = self.job.encode, time.perf_counter()
        self._take(self._chosen())
        self.report.planning_seconds = time.perf_counter() - began
        began = time.perf_counter()
        device = self.job.device
        stages.say_attempt(self.job.device_of(self.plan.way), encode)
        with meter.PeakMeter(device, exact=False) as peak:
            while (failure := self._attempt()) is not None:
                meter.give_back(device)  # outside of the except block, which held tensors
                self._step_down(failure)
            stages.synchronize(device)
        self.report.measured_peak_bytes = peak.peak_bytes
        self.report.seconds = time.perf_counter() - began
        self.report.steps = self.counter.done
        result = f"device cpu, shape {self.job.out_shape}"
        stages.say_success(self.job.device_of(self.plan.way), result, self.report.seconds, encode)

    # Plans

    def _chosen(self) -> Plan:
        making, strategy, options = self.making, self.asked.strategy, self.asked.options
        # A schedule keeps what it asks: that must not lead here.
        opaque = black_box.is_opaque(self.job.family)
        wanted = self._may_be_taken if opaque else self.counter.check_cancel
        try:
            if making is not None and strategy not in ("auto", making["strategy"]):
                raise ValueError(f"the strategy {strategy!r} was asked for")
            plan = plan_job(self.job, self.budget, strategy, options, wanted, making)
            return plan if making is None else _plan_going_on(self.job, plan, making)
        except ValueError as error:
            if making is None:
                raise
            raise ValueError(
                f"what is there was made by {making['strategy']!r} in {making['dtype']}, and it "
                f"can't go on so ({error}): give the same budget and strategy as then, or --restart"
            ) from error

    def _may_be_taken(self, way: Way) -> bool:
        """Of a VAE's own code: not one that failed; one whose frames are made as those that are
        there. Asked before each way is priced, so a cancel is looked at."""
        self.counter.check_cancel()
        goes_on = self.making is None or making_of(self.job, way) == self.making
        return goes_on and black_box.key_of(way) not in self._tried

    def _take(self, plan: Plan) -> None:
        self.plan, report, own = plan, self.report, ""
        if plan.compiled is None:
            own = black_box.own_code_words(self.job, plan.way)
        elif plan.compiled.cuts_norms:
            own = _TILED_NORMS
        report.strategy, report.reason = plan.strategy, f"{plan.reason} {own}".strip()
        report.plan = plan.describe()
        report.ignored = unused_sizes(self.job, plan.way, self.asked.options)
        for sentence in report.ignored:
            logger.info("[VAE Decode] %s", sentence)
        known = not plan.need.unknown
        report.predicted_peak_bytes = plan.peak.device_bytes if known else 0
        report.predicted_host_bytes = plan.peak.host_bytes if known else 0
        logger.info("[%s] %s", stages.stage_of(self.job.encode), plan.line(own))

    def _step_down(self, failure: faults.Failure) -> None:
        """Plans what comes next; raises where nothing does."""
        failed, report, finite = self.plan, self.report, failure.what != faults.NOT_FINITE
        event = {
            "event": failure.what, "way": failed.way.name, "grain": self.counter.done,
            "grains": self.counter.total, "error": failure.text,
        }  # fmt: skip
        report.events.append(event)
        try:
            if not finite:
                dtype = precision.wider(self.job.dtype, self.fallback)
                if dtype is None:
                    raise ValueError("no wider type is left")
                self.job, self.making = replace(self.job, dtype=dtype), None
                event["next_dtype"] = report.dtype = precision.name_of(dtype)
                plan = self._chosen()
            elif failed.compiled is None:
                plan = self._next_own_way(failed, failure)
            else:
                plan = self._next_program(failed, failure)
        except (ValueError, MemoryError) as error:
            raise failure.final(failed.way.name, error) from None
        self._take(plan)
        event["next_way"] = plan.way.name
        logger.warning(
            "[%s] %s in grain %d of %s (%s): starting again %s%s",
            stages.stage_of(self.job.encode), failure.what.capitalize(), self.counter.done + 1,
            failed.way.name, failure.text, plan.way.name, "" if finite else f" in {report.dtype}",
        )  # fmt: skip

    def _next_program(self, plan: Plan, failure: faults.Failure) -> Plan:
        """The one that the C core gives."""
        if self.making is not None:  # now others can be had than those that could go on
            self.making, failed = None, black_box.key_of(plan.way)
            plan = self._chosen()
            if black_box.key_of(plan.way) != failed:
                return plan
        if plan.compiled.program.fallback(faults.ATTEMPTS, failure.reason) != "begin again":
            raise ValueError("every other candidate failed or needs more")
        return cast("Plan", plan.compiled.plan())

    def _next_own_way(self, failed: Plan, failure: faults.Failure) -> Plan:
        """Of a VAE's own code: where memory was planned with that is not there, with less; else
        what is left."""
        self.making, taken = None, black_box.key_of(failed.way)
        if failure.what == faults.OUT_OF_MEMORY and not failed.need.unknown:
            before, on_cpu = self.budget, self.job.device.type == "cpu"
            self.budget = black_box.lowered(before, failed, failure, on_cpu)
            try:
                plan = self._chosen()
            except ValueError:
                self.budget = before
            else:
                if black_box.key_of(plan.way) != taken:
                    return plan
        self._tried.append(taken)
        return self._chosen()

    # Attempts

    def _attempt(self) -> faults.Failure | None:
        """Carries the plan out; what ended it."""
        way, scope, pinned = self.plan.way, cast("Any", nullcontext()), cast("Any", nullcontext())
        device, self.counter.done = self.job.device_of(way), 0
        narrowing = faults.Narrowing(self.job.dtype)
        if self.job.dtype == torch.float64:
            scope = narrowing
        if way.strategy == "cpu":
            from hy3d_rocm.conv.router import protect

            pinned = protect(policy="pin:cpu", cancel=stages.native_flag(self.counter.cancel))
        try:
            with steady(), within(self._most_prepared()), pinned:  # nobody writes to the weights
                job, backend = self._begin(way, device, scope)
                for sample in range(self.z.shape[0]):
                    if black_box.is_tiled(way):
                        with scope:
                            self._in_tiles(job, way, sample, backend)
                        self.placing.put_whole(sample)
                        self._clean_up(self.asked.options.cleanup_frequency or 1, device)
                        continue
                    at, made = self._frames(job, way, sample, backend)
                    made = made if scope is not narrowing else _within(scope, made)
                    number = 0  # enumerate() would keep frames while the next are made
                    for first, frames in made:
                        self.placing.put(sample, first + at, frames)
                        del frames
                        number += 1  # noqa: SIM113
                        self._clean_up(number, device)
                self.placing.arrive()
                stages.synchronize(device)
        except precision.NonFiniteError as error:
            return faults.Failure(faults.NOT_FINITE, str(error))
        except DecodeCancelled:
            raise
        except (RuntimeError, MemoryError) as error:
            self.counter.check_cancel()  # it may have cut a convolution short
            return faults.failure_of(error, device.type == "cpu")
        if narrowing.found:
            self.report.precision_reason += f", {narrowing.words()}"
            logger.info("[VAE Decode] The frames are float64, %s", narrowing.words())
        self.report.delegated = dict(getattr(backend, "delegated", {}))
        return None

    def _begin(self, way: Way, device: torch.device, scope: Any) -> tuple[Job, Backend | None]:
        """The job over weights of its type, and what computes its layers, None for the VAE's own
        code."""
        job, backend = self.job, None
        if job.runs_own_code(way):
            job = replace(job, family=converted_family(job.family, job.dtype))
        else:
            make_weights = getattr(job.family, "make_weights", ModuleWeights)
            backend = job.make_backend(make_weights(job.dtype, device), device)
            if isinstance(scope, faults.Narrowing):
                with scope:
                    record(job.family, job.encode)  # what a timestep becomes is in the layers
        if isinstance(backend, NativeBackend):
            backend.cancel = stages.native_flag(self.counter.cancel)
            backend.check = self.counter.check_cancel
        self.counter.watch(device, self.asked.options.synchronization, job.encode)
        stages.synchronize(device)
        self.report.estimate_error = None  # that of an attempt that failed says nothing now
        self.placing.begin(making_of(self.job, way))
        self.counter.total = self._steps(way)
        return job, backend

    def _most_prepared(self) -> int:
        """Bytes of prepared weights that may be in memory while the plan is carried out: what was
        planned beside those that are there, or, of a way that only a failing convolution brings to
        prepare any, what the budget leaves. Never a bit of the frames depends on it."""
        plan = self.plan
        planned = plan.way.strategy == "cpu" or self.job.is_native(plan.way)
        return cache().stats().bytes + (plan.prepared_bytes if planned else plan.host_room)

    def _steps(self, way: Way) -> int:
        """That will be counted; 0 where some of a sample's frames are there already."""
        frames, compiled, tiled = self.job.out_shape[2], self.plan.compiled, black_box.is_tiled(way)
        wanted = [0 if tiled else self.placing.first_wanted(n) for n in range(self.z.shape[0])]
        if any(0 < first < frames for first in wanted):
            return 0
        due = sum(first < frames for first in wanted)
        if compiled is not None:
            return due * int(compiled.program.candidate["steps"])
        return due * black_box.grains(self.job, way)

    def _frames(
        self, job: Job, way: Way, sample: int, backend: Backend | None
    ) -> tuple[int, Iterator[Frames]]:
        """Those of one sample that are wanted, in order; what is to be added to their numbers."""
        wanted, z = self.placing.first_wanted(sample), self.z[sample : sample + 1]
        if wanted >= job.out_shape[2]:
            return 0, iter(())
        if backend is None:
            return 0, self._own_code(job, way, sample, z)
        compiled, start = self.plan.compiled, 0
        if wanted and "chunk" in way.parameters and not job.encode:
            start = compiled.program.start(wanted)
        if start:
            rest = replace(job, shape=(*job.shape[:2], job.shape[2] - start, *job.shape[3:]))
            making, options = making_of(job, way), self.asked.options
            found = Compiled(rest, self.budget, way.strategy, options, making=making)
            compiled = _plan_going_on(job, found.plan(), making).compiled
            z = z[:, :, start:]
        run = self._interpreter(compiled, job, backend, sample)
        made = run.section(compiled.program, 0, lambda r: z[:, :, slice(*r)])
        return start * job.family.factor[0], made

    def _own_code(self, job: Job, way: Way, sample: int, z: Tensor) -> Iterator[Frames]:
        """All frames at once."""
        with faults.LayerByLayer(self.counter.check):
            made = black_box.own_code(job)(z.to(job.device_of(way), job.dtype))
        yield 0, made
        sizes = ((0, n) for n in job.out_shape[2:])
        self.counter.tick(Step("whole", sample, 0, 0, *sizes))

    def _interpreter(self, compiled: Any, job: Job, backend: Backend, sample: int) -> Run:
        device = job.device_of(self.plan.way)
        stores = compiled.program.candidate["stored_bytes"] > 0
        return Run(
            compiled.graph, backend, device, job.dtype, counter=self.counter, sample=sample,
            recover=faults.retry_out_of_memory(partial(_relieve, device)),
            mover=StreamMover(device) if stores else None,
        )  # fmt: skip

    def _in_tiles(self, job: Job, way: Way, sample: int, backend: Backend | None) -> None:
        """Tiles are added up in one tensor."""
        here = slice(sample, sample + 1)
        z, out, device = self.z[here], self.placing.whole()[here], job.device_of(way)
        if backend is None:
            plan = black_box.plan_own_tiles(job.family, job.shape, way.parameters)
            recover = faults.retry_out_of_memory(partial(_relieve, device))
            black_box.in_own_tiles(
                job.family, plan, z, out, device, job.dtype, recover, self.counter, sample
            )
            return
        compiled = self.plan.compiled
        run = self._interpreter(compiled, job, backend, sample)
        run.tiles(compiled.program, z, out)
        if not compiled.cuts_norms:
            error = max(run.estimate_error, self.report.estimate_error or 0.0)
            self.report.estimate_error = error

    def _clean_up(self, number: int, device: torch.device) -> None:
        """After each result the host's heap, or glibc's fragments add up (2 MB a grain measured);
        a GPU's allocator only if it was asked for, since filling it again takes time."""
        frequency = self.asked.options.cleanup_frequency
        if frequency is None:
            meter.trim_malloc()
        elif frequency and number % frequency == 0:
            meter.give_back(device)


def _within(scope: Any, made: Iterator[Frames]) -> Iterator[Frames]:
    """What is made, each of it made in the scope."""
    while True:
        with scope:
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


def making_of(job: Job, way: Way) -> dict[str, Any]:
    """What the frames of a way depend on, JSON-able; not where activations lie meanwhile."""
    parameters = {k: v if isinstance(v, (int, str)) else str(v) for k, v in way.parameters.items()}
    dtype = precision.name_of(job.dtype)
    made = {"strategy": way.strategy, "dtype": dtype, "parameters": parameters}
    if job.is_native(way):
        made["backend"] = "native"
    return made


def _plan_going_on(job: Job, plan: Plan, making: Mapping[str, Any]) -> Plan:
    """The plan whose frames depend on what those depend on that are there; ValueError: none."""
    while plan.compiled is not None and making_of(job, plan.way) != making:
        plan.compiled.program.fallback(faults.ATTEMPTS, "no kernel")
        plan = plan.compiled.plan()
    return plan


_TILED_NORMS = (
    "Tiles are an approximation whose error can't be known: this VAE's norms see one tile at a "
    'time in place of a frame. strategy="streamed" gives its own frames.'
)
