"""Programs of every VAE carried out step by step: the unsplit decode and encode, in the memory that
the program states."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import how_much  # noqa: E402
from decode_doubles import (  # noqa: E402
    EVERY_KIND,
    IN_FLOAT64,
    TIMESTEP,
    relative_error,
    tiny_vae,
    unsplit,
    unsplit_moments,
)
from live_storages import LiveStorages  # noqa: E402
from plain_engine import PlainEngine  # noqa: E402
from program_doubles import (  # noqa: E402
    ALL,
    CPU,
    Counter,
    FailingOperators,
    LateTransfers,
    by_layers,
    carried_out,
    compiled,
    compiled_tiles,
    family_of,
    in_tiles,
    parameter_bytes,
    parameters_of,
    programs,
    source_of,
    statistics_bytes,
    torch_backend,
)

from hy3d_rocm import _core, _native  # noqa: E402
from hy3d_rocm.conv.triton.work import Target  # noqa: E402
from hy3d_rocm.decoding.backends.native import NativeBackend  # noqa: E402
from hy3d_rocm.decoding.backends.triton.backend import TritonBackend  # noqa: E402
from hy3d_rocm.decoding.faults import retry_out_of_memory  # noqa: E402
from hy3d_rocm.decoding.graph import record  # noqa: E402
from hy3d_rocm.decoding.layers import ModuleWeights  # noqa: E402
from hy3d_rocm.decoding.memory.dry_run import predict  # noqa: E402
from hy3d_rocm.decoding.memory.steps import StepWorkspace  # noqa: E402
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace  # noqa: E402
from hy3d_rocm.decoding.report import DecodeCancelled  # noqa: E402
from hy3d_rocm.decoding.run import OPS, Run  # noqa: E402

pytestmark = pytest.mark.skipif(not _native.available, reason="programs need the C core")
BY_CHUNKS = tuple(k for k in EVERY_KIND if k not in ("hunyuan", "image", "image16"))
BOTH = pytest.mark.parametrize("encode", [False, True], ids=["decode", "encode"])


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


def lengths(family: Any) -> tuple[int, ...]:
    return (1,) if family.is_image else how_much.of((1, 2, 3), (1, 2, 5))


@BOTH
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_values_have_the_sizes_that_the_family_says(kind: str, encode: bool) -> None:
    family = family_of(kind, tiny_vae(kind))
    graph = record(family, encode)
    for latents in (1,) if family.is_image else range(1, 14):
        x = source_of(family, encode, latents)
        sizes = _core.graph_sizes(graph.nodes, tuple(x.shape[2:]))
        assert sizes[0] == tuple(x.shape[1:])
        assert sizes[-1] == family.out_shape(tuple(x.shape), encode)[1:]


@pytest.mark.parametrize(("kind", "encode"), how_much.in_turns(EVERY_KIND, (False, True)))
def test_whatever_is_sliced_gives_the_unsplit_result(kind: str, encode: bool) -> None:
    """Videos of 1 to 12 latents in some slices and chunks; where norms are per position those of
    even length by chunks, the others by layers. The plain reading is as near to the VAE's own code.
    In the gate of three lengths, and each kind decodes or encodes, in turns."""
    dtype = torch.float64 if kind in IN_FLOAT64 else torch.float32
    vae = tiny_vae(kind).to(dtype)
    family = family_of(kind, vae)
    plain, function = record(family, encode), family.encode if encode else family.decode
    for latents in (1,) if family.is_image else how_much.of((1, 2, 3), range(1, 13)):
        x = source_of(family, encode, latents, 1 + latents % 2, 2).to(dtype)
        expected = unsplit_moments(vae, x) if encode else unsplit(vae, x, TIMESTEP.get(kind))
        assert relative_error(function(PlainEngine(), x), expected) <= 1e-5
        sizes = {
            "slice_bytes": (ALL, 1, 30000, 5000)[latents % 4],
            "chunk": 1 + latents * 5 % x.shape[2],
        }
        graph = by_layers(plain) if latents % 2 else plain
        for program in programs(graph, x, **sizes):
            got, order = carried_out(graph, x, program), program.candidate["order"]
            assert relative_error(got, expected) <= 1e-5, (latents, order, sizes)


@pytest.mark.parametrize(
    ("kind", "encode"), how_much.in_turns(how_much.dealt(EVERY_KIND, 0, 2), (False, True))
)
def test_what_lives_is_what_the_program_states(kind: str, encode: bool) -> None:
    """In the gate each kind decodes or encodes, in turns, and slices are of a row, of some or of
    all. Of the other half of the kinds the next test takes what their programs state."""
    vae = tiny_vae(kind)
    family = family_of(kind, vae)
    x = source_of(family, encode, lengths(family)[-1], 3, 4)
    plain = record(family, encode)
    turn = (1, 60000, ALL)[EVERY_KIND.index(kind) // 2 % 3]
    slices, chunks = how_much.of(((turn,), (2,)), ((1, 60000, ALL), (1, 3)))
    jobs = [(by_layers(plain), {"slice_bytes": size}) for size in slices]
    if kind in BY_CHUNKS:
        jobs += [(plain, {"chunk": chunk}) for chunk in chunks]
    for graph, job in jobs:
        program = compiled(graph, x, **job).program
        known = [x, *vae.parameters(), *parameters_of(graph)]
        with LiveStorages(known, CPU) as live:
            run = Run(graph, torch_backend(), CPU, x.dtype)
            for _first, _frames in run.section(program, 0, lambda r: x[:, :, slice(*r)]):
                del _first, _frames
            del run
        stated = program.candidate["device_bytes"]
        slack = parameter_bytes(graph)
        if any(node.norm == 2 for node in graph.nodes):
            slack += statistics_bytes(graph, program)
        assert live.peak <= stated + slack, (job, live.peak, stated, slack)


@pytest.mark.parametrize("kind", how_much.dealt(EVERY_KIND, 1, 2))
def test_what_the_fused_kernels_hold_is_what_the_program_states(kind: str) -> None:
    """On shapes: the backend's own allocations, packed weights and all; these are made in each step
    where not all fits with them."""
    family = family_of(kind, tiny_vae(kind).to(torch.bfloat16))
    x = source_of(family, False, lengths(family)[-1], 3, 4).to(torch.bfloat16)
    gpu = OperatorWorkspace(torch.device("cuda"))
    plain = record(family)
    slices = how_much.of((60000,), (1, 60000, ALL))
    jobs = [(by_layers(plain), {"slice_bytes": size}) for size in slices]
    if kind in BY_CHUNKS:
        jobs += [(plain, {"chunk": 2})]
    for graph, job in jobs:
        backend = fused_on_meta()
        asked = StepWorkspace(graph, backend, gpu, x.dtype)
        budget, most = 0, list[int]()
        for again in (0, 1):
            found = compiled(
                graph, x, asked=asked, is_host=0, may_repack=1, device_budget=budget, **job
            )
            program = found.program
            assert program.candidate["repacks"] == again
            budget = program.candidate["device_bytes"] - 1

            def run(graph: Any = graph, program: Any = program) -> None:
                here = Run(graph, fused_on_meta(), torch.device("meta"), x.dtype)
                shapes = torch.empty(x.shape, dtype=x.dtype, device="meta")
                for _first, _frames in here.section(program, 0, lambda r: shapes[:, :, slice(*r)]):
                    del _first, _frames

            most.append(predict(run, workspace=gpu).device_bytes - x.nbytes)
            slack = statistics_bytes(graph, program) + parameter_bytes(graph) * len(graph.nodes)
            assert most[again] <= program.candidate["device_bytes"] + slack, job
        assert most[1] < most[0], job


def fused_on_meta() -> TritonBackend:
    weights = ModuleWeights(torch.bfloat16, "meta")
    return TritonBackend(weights, "meta", machine=Target("gfx1100", 48, False))


@pytest.mark.parametrize("kind", ["hunyuan", "wan22", "ltx095", "hunyuan15"])
def test_what_leaves_for_the_host_changes_no_bit(kind: str) -> None:
    """A second device's copies happen as late as they may."""
    family = family_of(kind, tiny_vae(kind))
    x = source_of(family, False, how_much.of(3, 5))
    graph = by_layers(record(family))
    everything = compiled(graph, x, slice_bytes=60000, is_host=0)
    wanted = carried_out(graph, x, everything.program)
    least = compiled(
        graph, x, slice_bytes=60000, is_host=0, may_spill=1, device_budget=1
    ).smallest_budget
    most = everything.program.candidate["device_bytes"]
    for seed, budget in enumerate((least, (least + most) // 2)):
        program = compiled(
            graph, x, slice_bytes=60000, is_host=0, may_spill=1, device_budget=budget
        ).program
        names = [OPS[step[0]] for step in program.steps(0)]
        assert names.count("store") >= 1
        assert names.count("load") >= 1
        transfers = LateTransfers(seed)
        got = carried_out(graph, x, program, transfers=transfers)
        assert torch.equal(got, wanted)
        assert not transfers.on_host, "copies were left on the host"
        assert not transfers.under_way
        failing = LateTransfers(seed, copies_that_fail=9)
        again = retry_out_of_memory(lambda: None)
        assert torch.equal(carried_out(graph, x, program, transfers=failing, recover=again), wanted)


@pytest.mark.parametrize("order", ["layers", "chunks"])
@pytest.mark.parametrize("kind", ["hunyuan15", "ltx095"])
def test_a_step_that_ran_out_of_memory_is_made_again_with_the_same_bits(
    kind: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each step that computes an operator fails once; replay by the seed."""
    family = family_of(kind, tiny_vae(kind))
    x = source_of(family, False, 3)
    graph = record(family)
    graph = by_layers(graph) if order == "layers" else graph
    program = compiled(graph, x, slice_bytes=40000, chunk=2).program
    counting = FaultsInSteps({})
    with counting:
        wanted = carried_out(graph, x, program, counter=counting)
    rng = random.Random(7)
    names = [OPS[step[0]] for step in program.steps(0)]  # in EMIT the frames are copied by the test
    faults = {
        number: rng.randrange(count)
        for number, (name, count) in enumerate(zip(names, counting.counts, strict=True))
        if count and name != "emit"
    }
    wanted_reliefs = len(faults)
    assert wanted_reliefs > 20
    reliefs: list[int] = []
    recover = retry_out_of_memory(lambda: reliefs.append(1))
    with FaultsInSteps(faults) as failing:
        got = carried_out(graph, x, program, recover=recover, counter=failing)
    assert torch.equal(got, wanted)
    assert len(reliefs) == wanted_reliefs


class FaultsInSteps(FailingOperators):
    """Out of memory in place of one operator of each step in `faults`, once; counts those of each.
    It is the run's counter, too."""

    total = 0

    def __init__(self, faults: dict[int, int]) -> None:
        super().__init__(set())
        self.faults = faults
        self.counts: list[int] = []

    def check(self) -> None:
        self.failures = {n for n in (self.faults.get(len(self.counts)),) if n is not None}

    def tick(self, step: Any) -> None:
        self.counts.append(self.count)
        self.count = 0
        self.failures = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except torch.OutOfMemoryError:
            del self.faults[len(self.counts)]
            self.failures = set()
            raise


def test_what_cannot_be_made_again_is_raised_and_nothing_stays() -> None:
    family = family_of("wan", tiny_vae("wan"))
    x = source_of(family, False, 2)
    graph = record(family)
    program = compiled(graph, x).program
    seen: list[tuple[int, int]] = []

    class Failing:
        weights = torch_backend().weights

        def convolve(self, *args: Any, **more: Any) -> Any:
            raise torch.OutOfMemoryError("the test's")

    def recover(step: int, attempts: int, error: BaseException) -> bool:
        seen.append((step, attempts))
        return attempts < 4

    with pytest.raises(torch.OutOfMemoryError, match="the test's"):
        carried_out(graph, x, program, backend=Failing(), recover=recover)
    assert seen == [(1, 1), (1, 2), (1, 3), (1, 4)]


def test_what_follows_a_failure_is_asked_of_the_program() -> None:
    """The same step runs out of memory again and again, while slices are large: it is made again
    twice, then a program of smaller slices begins."""
    family = family_of("hunyuan", tiny_vae("hunyuan"))
    x = source_of(family, False, 5)
    graph = record(family)
    sizes = (ALL, 20000)
    machine = (sizes, (1, 0, 0), 1e12, 1e11, 1e-5, 1.0)
    schedule = compiled(graph, x, device=machine, host=machine)
    program = schedule.program
    assert program.candidate["slice_bytes"] == ALL
    actions: list[str] = []

    def recover(step: int, attempts: int, error: BaseException) -> bool:
        assert isinstance(error, torch.OutOfMemoryError)
        actions.append(program.fallback(attempts, "out of memory"))
        return actions[-1] == "step again"

    class Short:
        weights = torch_backend().weights

        def convolve(self, layer: Any, source: Any, frames: Any, **more: Any) -> Any:
            if frames[1] - frames[0] > 4:
                raise torch.OutOfMemoryError("the test's")
            return torch_backend().convolve(layer, source, frames, **more)

    with pytest.raises(torch.OutOfMemoryError):
        carried_out(graph, x, program, backend=Short(), recover=recover)
    assert actions == ["step again", "step again", "begin again"]
    second = schedule.program
    assert second.candidate["slice_bytes"] == 20000
    wanted = carried_out(graph, x, compiled(graph, x, slice_bytes=20000).program)
    assert torch.equal(carried_out(graph, x, second), wanted)


def test_a_counter_is_asked_before_each_step_and_told_after_it() -> None:
    family = family_of("wan", tiny_vae("wan"))
    x = source_of(family, False, 2)
    graph = record(family)
    program = compiled(graph, x).program
    counter = Counter()
    carried_out(graph, x, program, counter=counter)
    assert [step.kind for step in counter.steps] == [OPS[step[0]] for step in program.steps(0)]
    assert [step.chunk for step in counter.steps] == list(range(len(program.steps(0))))
    stopping = Counter(stop_at=9, error=DecodeCancelled)
    with pytest.raises(DecodeCancelled):
        carried_out(graph, x, program, counter=stopping)
    assert len(stopping.steps) == 9


@pytest.mark.parametrize("kind", ["ltx", "wan22"])
def test_tiles_wide_enough_are_the_unsplit_decode(kind: str) -> None:
    """A prefix where attention stands, then tiles with all that reaches into them."""
    family = family_of(kind, tiny_vae(kind))
    x = source_of(family, False, 2, 4, 44)
    graph = record(family)
    wanted = carried_out(graph, x, compiled(graph, x).program)
    program = compiled_tiles(graph, x, level=2, overlap=16, least=32).program
    in_tiles(graph, x, program, got := torch.empty_like(wanted))
    assert program.candidate["tiles"] > 2
    assert program.candidate["is_exact"]
    assert relative_error(got, wanted) <= 1e-5


def test_a_tile_that_is_the_picture_takes_its_norms_from_the_part_that_is_all_of_it() -> None:
    family = family_of("hunyuan", tiny_vae("hunyuan"))
    x = source_of(family, False, 2, 6, 8)
    graph = record(family)
    wanted = carried_out(graph, x, compiled(graph, x).program)
    program = compiled_tiles(graph, x, overlap=16, least=32).program
    in_tiles(graph, x, program, got := torch.empty_like(wanted))
    assert [section["kind"] for section in program.sections] == [1, 2, 3]
    assert not program.candidate["is_exact"]
    assert relative_error(got, wanted) <= 1e-5


@pytest.mark.parametrize("kind", ["hunyuan", "wan"])
def test_the_c_convolution_carries_a_program_out_in_any_slices(kind: str) -> None:
    vae = tiny_vae(kind).to(torch.float32)
    family = family_of(kind, vae)
    x = source_of(family, False, 3)
    wanted = unsplit(vae, x)
    graph = by_layers(record(family))
    for slice_bytes in (1, 20000, ALL):
        backend = NativeBackend(ModuleWeights(torch.float32, CPU))
        program = compiled(graph, x, slice_bytes=slice_bytes).program
        got = carried_out(graph, x, program, backend=backend)
        assert relative_error(got, wanted) <= 1e-4  # as in test_native_backend_decode


@pytest.mark.parametrize("kind", ["hunyuan", "wan"])
def test_half_precision_is_as_near_to_the_exact_decode_as_the_vaes_own_is(kind: str) -> None:
    """bf16: no further from the decode in double precision than diffusers' own bf16 decode, by a
    quarter more at most (both are sums of the same roundings, in another order)."""
    z = source_of(family_of(kind, tiny_vae(kind)), False, 3, 3).bfloat16()
    exact = unsplit(tiny_vae(kind).double(), z.double())
    half = tiny_vae(kind).bfloat16()
    theirs = (unsplit(half, z).double() - exact).square().mean()
    graph = by_layers(record(family_of(kind, half)))
    ours = carried_out(graph, z, compiled(graph, z, slice_bytes=3000).program)
    assert ours.dtype == torch.bfloat16
    assert float((ours.double() - exact).square().mean()) <= 1.25**2 * float(theirs)


def test_what_goes_in_is_only_read() -> None:
    family = family_of("hunyuan15", tiny_vae("hunyuan15"))
    x = source_of(family, False, 3)
    before = x.clone()
    graph = record(family)
    carried_out(graph, x, compiled(graph, x).program)
    carried_out(graph, x, compiled(graph, x, input_bytes=4).program)
    assert torch.equal(x, before)
