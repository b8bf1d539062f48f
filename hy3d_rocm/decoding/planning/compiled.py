"""The plan of a VAE whose layers are known: the C core compiles it (include/hy3d/schedule.h).

Here a job becomes the core's request, and what it found becomes a Plan with its sentences. Nothing
is decided.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hy3d_rocm import _native
from hy3d_rocm.decoding.backends.native import growth_bytes
from hy3d_rocm.decoding.black_box import left_out, own_variants, planned, predicted
from hy3d_rocm.decoding.checks import check_choice
from hy3d_rocm.decoding.copies import tensors_of
from hy3d_rocm.decoding.faults import ATTEMPTS
from hy3d_rocm.decoding.graph import Graph
from hy3d_rocm.decoding.layers import Conv, ModuleWeights
from hy3d_rocm.decoding.memory.budget import Budget
from hy3d_rocm.decoding.memory.dry_run import (
    CPU_ALLOWANCE_BYTES,
    PLANNED_SHARE,
    standing_for,
)
from hy3d_rocm.decoding.memory.steps import StepWorkspace
from hy3d_rocm.decoding.memory.workspace import CODE_LIMIT, OperatorWorkspace
from hy3d_rocm.decoding.planning.jobs import Job, is_opaque, resume_key_of
from hy3d_rocm.decoding.planning.planner import (
    STRATEGIES,
    Candidate,
    Need,
    Plan,
    Variant,
    choose,
    nothing_fits,
    plan_of,
)
from hy3d_rocm.decoding.report import DecodeOptions
from hy3d_rocm.units import MB, size_text

# Strategies as bits.
_BITS = {"whole": 1, "streamed": 2, "tiled": 4, "cpu": 8, "auto": 15}
_ASKED = -2  # HY3D_OWN_BYTES_ASKED
_CPU = torch.device("cpu")
# What tiles took on an NVIDIA H200 beyond what was computed, and as much again.
_GPU_MARGIN_BYTES = 56 * MB
# Multiply-accumulates, bytes moved, bytes copied to or from the host and steps in a second; how
# much longer the VAE's own code takes. Nominal: they compare candidates and promise nothing.
_GPU_RATES = (3e14, 3e12, 2e-5, 2.6)
_CPU_RATES = (1e11, 1e10, 1e-4, 3.0)
_COPY_RATE = 2.5e10
_LINK_RATE = 1e10  # between two ranks
# Halo, overlap and smallest tile in pixels, where those that were asked for do not fit.
_LESS_HALO = ((24, 12, 24), (16, 8, 16))
# For the C convolution. It makes output frames in pairs, each from four frames, and its weights'
# transforms serve all frames of a call: one core, HunyuanVideo, 9 frames 128x128: 6.8 s whole, 8.1
# in slices of 32 MB; Wan 2.1, 17 frames 64x64: 1.7 s in one chunk, 2.2 in chunks of 2 latents, 2.9
# in chunks of 1.
_NATIVE_SLICE_BYTES = 512 * MB
_NATIVE_LATENTS = (4, 2)
# Plans that are kept of a VAE, and the steps of all candidates of one, of some 160 bytes each: four
# ranks that share Wan 2.1, 81 frames of 720x1280, have 20,500.
_MOST_KEPT, _MOST_STEPS = 4, 1 << 16
# Latent positions of a chunk that keep a GPU busy: 1024 x 1024 pixels. (Wan 2.1 at 480x832, NVIDIA
# H200: 0.60 s in chunks of 2, 0.67 s in chunks of 1.)
_BUSY_POSITIONS = 16384


def plan_job(
    job: Job, budget: Budget, strategy: str = "auto", options: DecodeOptions | None = None,
    wanted: Callable[[Variant], bool] = lambda variant: True,
    resume_key: Mapping[str, Any] | None = None,
) -> Plan:  # fmt: skip
    """The best variant for the job within the budget, or of the strategy that was asked for.

    wanted: says of each variant of a VAE's own code whether it may be taken; where the layers are
    known its answer means nothing, but it is called all along, and may raise. resume_key: see
    Compiled. Raises DoesNotFitError with the least budget that would do, ValueError (sentences) for
    a strategy that is not known or that this VAE can't be run with.
    """
    check_choice("strategy", strategy, STRATEGIES)
    options = options or DecodeOptions()
    if not is_opaque(job.family):
        check = partial(wanted, Variant("whole"))
        key = _key_of(job, strategy, options) if resume_key is None else None
        found = job.family.seen.plans.pop(key, None) if key else None
        if found is None or not found.serves(job, budget, check):
            found = Compiled(job, budget, strategy, options, resume_key=resume_key, check=check)
            found.key = key
        return found.plan()
    offered = filter(wanted, own_variants(job, options))
    return choose(offered, budget, strategy, partial(planned, job), left_out(job, options))


def _key_of(job: Job, strategy: str, options: DecodeOptions) -> tuple[Any, ...] | None:
    """What a plan depends on beside the budget and the VAE's modules: two of one key that no budget
    hindered are the same. None for a family that does not look at its VAE before each decode."""
    family = job.family
    if getattr(family, "seen", None) is None:
        return None
    backend, rules = _place(job, job.device)
    target = backend.target() if job.device.type != "cpu" and job.is_fused else None
    weights = tuple((t.dtype, t.device) for t in tensors_of(family))
    return (
        type(family), family.timestep is None, weights, job.shape, job.device, job.dtype,
        job.result_dtype, job.make_backend, job.make_backend.computes_natively, job.encode,
        job.keeps_result, job.rank, job.ranks, job.sends_source, strategy, options, rules.key,
        target,
    )  # fmt: skip


class _Asked:
    """What the core asks while it compiles, and later for what comes after a failure. A schedule
    keeps it: it must not lead to who keeps the schedule."""

    def __init__(self, job: Job, workspace: StepWorkspace, check: Callable[[], object]) -> None:
        self.job, self.workspace, self.check = job, workspace, check
        self.untold: list[str] = []  # why nobody can tell what the VAE's own code takes

    def own_bytes(self, *_step: Any) -> tuple[int, ...] | None:
        """What the VAE's own code takes of the device (on the CPU: of all memory), found when it is
        asked for: all of it is run on shapes. The core adds its margin."""
        self.check()
        try:
            found = predicted(self.job, Variant("whole"))
        except ValueError as error:
            self.untold[:] = [str(error)]
            return None
        on_cpu = self.job.device.type == "cpu"
        return (found.both_bytes if on_cpu else found.device_bytes), 0, 0, 0

    def inside(self, *call: Any) -> tuple[int, ...]:
        self.check()
        return self.workspace(*call)


class Compiled:
    """The schedule of a job whose layers are known. graph: what its programs are of.

    resume_key: what frames depend on that are there already (jobs.resume_key_of): its strategy and
    sizes are taken, and the plan makes frames alike. compiles_all: all candidates, though an
    earlier one fits. check: called before each question of what a step takes; what it raises ends
    the planning. like: one of the same job, whose graph and whose knowledge of what steps take
    serve again. weights: ranks share rows in this ratio; (): as the core finds best. ValueError
    (a sentence) for a strategy that is not known or can't be taken. key: what it is kept by.
    """

    key: tuple[Any, ...] | None = None

    def __init__(
        self, job: Job, budget: Budget, strategy: str = "auto",
        options: DecodeOptions | None = None, *, resume_key: Mapping[str, Any] | None = None,
        compiles_all: bool = False, check: Callable[[], object] = lambda: None,
        like: Compiled | None = None, weights: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        check_choice("strategy", strategy, STRATEGIES)
        if not _native.available:
            raise ValueError(
                f"a program of {job.family.name}'s layers needs the C core "
                f"{_native.why_missing()}; without it "
                + ("encode() runs the VAE's own code" if job.encode else
                   "decode() runs the VAE's own code, whole or in tiles")
            )  # fmt: skip
        if strategy == "tiled" and job.encode:
            raise ValueError(
                'the strategy "tiled" can\'t be taken for an encode: give "streamed", "cpu" or '
                '"auto"'
            )
        self.asked = strategy  # in the reason's words: of what goes on nobody asked for it
        options = options or DecodeOptions()
        if resume_key is not None:
            options, strategy = _sizes_of(resume_key, options), resume_key["strategy"]
        self.job, self.budget, self.strategy, self.options = job, budget, strategy, options
        self.halos, self.resume_key = _halos(options, resume_key), resume_key
        allowed, on_cpu = _BITS[strategy], job.device.type == "cpu"
        if job.ranks > 1:  # parts of the layers are shared, nothing else
            allowed &= _BITS["streamed"]
            if not allowed:
                raise ValueError(
                    f'the strategy "{strategy}" can\'t be shared by {job.ranks} ranks: give '
                    '"streamed" or "auto"'
                )
        self.passes = options.statistic_passes if job.family.has_global_norms else 0
        self.may_spill = options.cpu_offload and not on_cpu
        self.graph: Graph = job.graph if like is None else like.graph
        self.workspace: StepWorkspace = like.workspace if like is not None else StepWorkspace(
            self.graph, *_place(job, job.device), job.dtype, None if on_cpu else _place(job, _CPU),
            into=job.ranks > 1,
        )  # fmt: skip
        self._questions = asked = _Asked(job, self.workspace, check)
        if strategy == "auto" and job.is_fused:
            allowed &= ~_BITS["whole"]  # it would be slower as well as larger
        if job.encode:
            allowed &= ~_BITS["tiled"]
        if allowed == _BITS["whole"] and asked.own_bytes() is None:
            raise nothing_fits(self._refused(), budget, strategy)
        each = {"weights": weights, "device_budgets": budget.of_ranks}
        shares: dict[str, Any] = {n: told for n, told in each.items() if told and job.ranks > 1}
        self._machines = {where: _machine(job, options, where) for where in (job.device, _CPU)}
        # What of the input is one position of the latent; zeros: chunks are of the size asked for.
        time, space = job.family.factor if job.encode else (1, 1)
        unit = (0, 0, 0) if options.chunk_size else (time, space, space)
        self.schedule: _native.Schedule = _native.compile_schedule(
            self.graph.nodes, workspace=asked.own_bytes,
            **self.workspace.request | {"inside": asked.inside},
            size=job.shape[2:], element_bytes=job.dtype.itemsize, input_bytes=job.dtype.itemsize,
            source_bytes=job.dtype.itemsize * job.sends_source, result_bytes=job.host_bytes,
            device_budget=max(budget.device_bytes, 1), host_budget=max(budget.host_bytes, 1),
            device_room=0 if on_cpu or job.ranks > 1 else budget.device_room,
            margin_bytes=CPU_ALLOWANCE_BYTES if on_cpu else _GPU_MARGIN_BYTES,
            margin_permille=round(1000 * PLANNED_SHARE),
            is_unified=int(budget.is_unified and not on_cpu), is_host=int(on_cpu),
            may_spill=int(self.may_spill), most_shape_bytes=CODE_LIMIT,
            may_repack=int(job.is_fused),
            compiles_all=int(compiles_all), strategies=allowed,
            device=self._machines[job.device], host=self._machines[_CPU],
            unit=unit, busy_positions=_BUSY_POSITIONS,
            copy_bytes_per_second=_COPY_RATE, halos=self.halos, statistic_passes=self.passes,
            own_bytes=_ASKED if allowed & _BITS["whole"] else -1,
            rank=job.rank, ranks=job.ranks, link_bytes_per_second=_LINK_RATE, **shares,
            only_level=0 if resume_key is None else resume_key["parameters"].get("level", -1) + 1,
        )  # fmt: skip

    @property
    def program(self) -> _native.Program:
        program = self.schedule.program
        assert program is not None, "nothing fits"
        return program

    @property
    def cuts_norms(self) -> bool:
        """Whether norms of whole frames see one tile at a time: their statistics are neither
        estimated nor known then."""
        return self.program.candidate["tiles"] > 1 and self.program.cut["frame_norms"] > 0

    def candidates(self) -> list[Candidate]:
        """What was looked at, in the order of preference."""
        found = (c for c in self.schedule.candidates if c["status"] != "HY3D_ERR_UNSUPPORTED")
        return [*self._refused(), *map(self._candidate, found)]

    def plan(self) -> Plan:
        """The program's. DoesNotFitError, or ValueError, where there is none."""
        while True:
            program, looked = self.schedule.program, self.candidates()
            if program is None:
                raise nothing_fits(looked, self.budget, self.strategy)
            taken = self._candidate(program.candidate)
            if self.resume_key in (None, resume_key_of(self.job, taken.variant)):
                break
            program.fallback(ATTEMPTS, "no kernel")
        assert taken.need is not None
        taken = replace(
            taken, need=replace(taken.need, prepared_bytes=self._prepared(taken.variant))
        )
        return plan_of(looked, taken, self.budget, self.asked, compiled=self)

    def serves(self, job: Job, budget: Budget, check: Callable[[], object]) -> bool:
        """Whether what was kept is what would be compiled for a job of the same key, since no
        budget had a part in it, and would not now. It is this job's from then on."""
        if self.graph.nodes != job.graph.nodes or budget.is_unified != self.budget.is_unified:
            return False
        self.job, self.budget, self.graph = job, budget, job.graph
        devices = [job.device] if job.device.type == "cpu" else [job.device, _CPU]
        self.workspace.take(job.graph, [_place(job, device) for device in devices])
        self._questions.job, self._questions.check = job, check
        return all(
            c.need is None
            or (
                budget.fits(c.need.device_bytes, c.need.host_bytes)
                and budget.has_ample_room(c.need.device_bytes)
            )
            for c in self.candidates()
        )

    def keep(self) -> None:
        """For the next decode by this VAE, without the weights; nobody may carry this one out any
        more. Nothing where a budget or a failure had a part in it, or it is large."""
        looked = self.schedule.candidates
        if self.key is None or sum(c["steps"] for c in looked) > _MOST_STEPS:
            return
        if not all(
            (c["fits"] and not c["lacks_room"]) or c["status"] == "HY3D_ERR_UNSUPPORTED"
            for c in looked
        ):
            return
        if len(set(self.program.weights)) > 1:  # rows are shared so where equal parts do not fit
            return
        plans, kept = self.job.family.seen.plans, copy.copy(self)
        kept.graph = Graph(self.graph.nodes, ())
        self.workspace.take(kept.graph, [])
        del kept.job, self._questions.job, self._questions.check
        plans[self.key] = kept
        for key in list(plans)[:-_MOST_KEPT]:
            plans.pop(key, None)  # another thread may have taken it

    def _refused(self) -> list[Candidate]:
        return [Candidate(Variant("whole"), None, False, why) for why in self._questions.untold]

    def _candidate(self, found: dict[str, Any]) -> Candidate:
        variant = self._variant(found)
        status = found["status"]
        if status != "HY3D_OK":
            overflow = "it has too many steps" if status == "HY3D_ERR_OVERFLOW" else ""
            return Candidate(variant, None, False, overflow or status)
        fits, note = bool(found["fits"]), ""
        if (
            not fits
            and self.may_spill
            and self.budget.is_unified
            and variant.strategy == "streamed"
        ):
            note = "spilling gains nothing where host and device share their memory"
        device, host = found["device_bytes"], found["host_bytes"]
        if found["on_host"] and self.job.device.type != "cpu":
            host += found["margin_bytes"]
        else:
            device += found["margin_bytes"]
        unknown = "it was given up as soon as a part of it did not fit" if found["is_bound"] else ""
        need = Need(
            device, host, found["macs"], unknown, seconds=found["seconds"],
            stored_bytes=found["stored_bytes"], loaded_bytes=found["loaded_bytes"],
        )  # fmt: skip
        return Candidate(variant, need, fits, note)

    def _variant(self, c: dict[str, Any]) -> Variant:
        """The candidate in a user's words and parameters."""
        device = _CPU if c["on_host"] else self.job.device
        strategy = "cpu" if c["on_host"] or self.strategy == "cpu" else c["strategy"]
        order = c["order"]
        if order == "whole":
            return Variant("whole")
        if order == "tiles":
            return self._tiled(strategy, c)
        parameters: dict[str, Any] = {"engine": "layers", "slice_bytes": c["slice_bytes"]}
        what = "layer by layer"
        if order == "chunks":
            parameters = {"engine": "chunks", "chunk": c["chunk"]}
            what = self._chunks_of(c["chunk"])
        elif order == "prefix":
            parameters["chunk"] = c["chunk"]
            what += f", then {self._chunks_of(c['chunk'])}"
        elif c["slice_bytes"] != self._machines[device][0][0]:
            what += f", {size_text(c['slice_bytes'])} at a time"
        resident = c["resident_bytes"] if c["resident_bytes"] >= 0 else None
        if resident is not None:
            what += f", with {size_text(resident)} on the device"
        elif c["repacks"]:
            what += ", weights packed in each step"
        return Variant(strategy, what, parameters, resident_bytes=resident)

    def _chunks_of(self, count: int) -> str:
        kind = "pixel frame" if self.job.encode else "latent frame"
        return f"in chunks of {count} {kind}{'s' * (count > 1)}"

    def _tiled(self, strategy: str, c: dict[str, Any]) -> Variant:
        halo, overlap, smallest = self.halos[c["halo_row"]]
        parameters = {
            "engine": "tiles", "chunk": c["chunk"], "slice_bytes": self.options.slice_bytes,
            "halo_pixels": None if halo < 0 else halo, "overlap_pixels": overlap,
            "min_tile_pixels": smallest, "passes": self.passes, "level": c["level"],
        }  # fmt: skip
        rows, columns = c["tile"]
        count, again = c["tiles"], c["halo_row"] > 0
        what = f"in {count} tile{'s' * (count > 1)} of up to {columns} x {rows} pixels"
        what += f" with a halo of {halo}" if again else ""
        return Variant(strategy, what, parameters, again=again)

    def _prepared(self, variant: Variant) -> int:
        """Bytes by which the cache of prepared weights would grow if there were room.

        Layer by layer each weight serves one call or a few: preparing costs more than it saves
        (HunyuanVideo, 9 frames 160x160, one core, CPU time: 14.9 s with, 12.1 without, and 10.9
        against 10.6 in the next decode). What is there already is used.
        """
        if not self.job.is_native(variant) or variant.parameters.get("engine") == "layers":
            return 0
        kept = zip(self.graph.layers, self.program.prepared(), strict=True)
        return growth_bytes((layer.module, *of) for layer, of in kept if isinstance(layer, Conv))


def _place(job: Job, device: torch.device) -> tuple[Any, OperatorWorkspace]:
    """What computes there, to be asked only, and the rules of what operators take."""
    rules = OperatorWorkspace(device, is_pinned=device.type == "cpu" != job.device.type)
    with standing_for(rules):
        backend = job.make_backend(ModuleWeights(job.dtype, "meta"), torch.device("meta"))
    return backend, rules


def _machine(job: Job, options: DecodeOptions, device: torch.device) -> tuple[Any, ...]:
    """hy3d_machine: bytes of a step layer by layer, in the order in which they are tried; latent
    frames of a chunk likewise, or those of the input that were asked for; rates. 0: no others."""
    on_cpu = device.type == "cpu"
    native = on_cpu and job.make_backend.computes_natively
    usual = options.slice_bytes or (32 * MB if on_cpu else 512 * MB)
    several = native and options.slice_bytes is None
    slices = (_NATIVE_SLICE_BYTES, usual) if several else (usual, 0)
    chunks = (*_NATIVE_LATENTS, 1) if native else (1, 0, 0)
    if options.chunk_size:
        chunks = (int(options.chunk_size), 0, 0)
    return slices, chunks, *(_CPU_RATES if on_cpu else _GPU_RATES)


def _halos(
    options: DecodeOptions, resume_key: Mapping[str, Any] | None
) -> tuple[tuple[int, int, int], ...]:
    """Halo (-1: all that is felt), overlap and smallest tile in pixels, tried in this order."""
    halo = -1 if options.halo_pixels is None else options.halo_pixels
    given = (halo, options.overlap_pixels, options.min_tile_pixels)
    if resume_key is not None:
        return (given,)
    rows = [given]
    for sizes in _LESS_HALO:
        halo, overlap, smallest = map(min, given, sizes)
        rows.append((sizes[0] if halo < 0 else halo, overlap, smallest))
    return tuple(rows)


def _sizes_of(resume_key: Mapping[str, Any], options: DecodeOptions) -> DecodeOptions:
    """The options with the sizes of a decode that goes on."""
    names = {"chunk": "chunk_size", "passes": "statistic_passes"}
    made = {names.get(name, name): value for name, value in resume_key["parameters"].items()}
    sizes: Any = {n: None if v == "None" else v for n, v in made.items() if hasattr(options, n)}
    return replace(options, **sizes)
