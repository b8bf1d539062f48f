"""What fails while a program is carried out changes nothing of the result, or ends it cleanly."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import how_much  # noqa: E402
from live_storages import LiveStorages  # noqa: E402
from program_doubles import (  # noqa: E402
    CPU,
    Counter,
    FailingOperators,
    FailingSteps,
    LateTransfers,
    by_layers,
    carried_out,
    compiled,
    graph_of,
    parameter_bytes,
    parameters_of,
    statistics_bytes,
    torch_backend,
)
from router_doubles import one_thread  # noqa: E402
from small_decoders import decoders, latent  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding import stages as counting  # noqa: E402
from hy3d_rocm.decoding.faults import retry_out_of_memory  # noqa: E402
from hy3d_rocm.decoding.report import DecodeCancelled  # noqa: E402
from hy3d_rocm.decoding.run import OPS, Run  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
    pytest.mark.usefixtures("one_thread", "no_gradients"),
]
DECODERS = decoders()
AGAIN = retry_out_of_memory(lambda: None)


class Job:
    """A small decode in an order, and its frames without faults."""

    def __init__(self, kind: str, order: str, frames: int = 2, size: int = 2) -> None:
        self.x = latent(frames, size, size)
        graph = graph_of(DECODERS[kind], self.x)
        self.graph = by_layers(graph) if order == "layers" else graph
        self.program = compiled(self.graph, self.x, slice_bytes=300).program
        assert self.program.candidate["order"] == order
        counter = Counter()
        with FailingOperators(set()) as operators:
            self.frames = self.run(counter=counter)
        self.operators, self.steps = operators.count, len(counter.steps)

    def run(self, program: Any = None, **options: Any) -> Any:
        return carried_out(self.graph, self.x, program or self.program, **options)

    def spilled(self, share: float = 0.0) -> Any:
        """Its program with so much more on the device than the least."""
        request = {"slice_bytes": 300, "is_host": 0, "may_spill": 1}
        everything = compiled(self.graph, self.x, **request).program.candidate["device_bytes"]
        least = compiled(self.graph, self.x, device_budget=1, **request).smallest_budget
        budget = least + int(share * (everything - 1 - least))
        found = compiled(self.graph, self.x, device_budget=budget, **request).program
        assert found.candidate["stored_bytes"] > 0
        return found


@pytest.fixture(scope="module", params=["hunyuan", "wan", "ltx", "video attention"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["layers", "chunks"])
def job(request: pytest.FixtureRequest, kind: str) -> Job:
    # A module's fixture comes before each test's own `one_thread`, and threads change torch's bits.
    with torch.no_grad(), one_thread():
        return Job(kind, request.param)


@functools.cache
def long_job(kind: str, size: int = 2) -> Job:
    """By layers; it is only read. The tests that ask for it have one thread and no gradients."""
    return Job(kind, "layers", how_much.of(4, 5), size)


def test_out_of_memory_in_place_of_any_operator_changes_no_bit(job: Job) -> None:
    """Also in the copies of kept frames, beside and in the middle of a layer: every seventh, some
    with another one soon after. Replay: the numbers are in the message."""
    assert job.operators > 100
    rng = random.Random(8)
    stride = max(7, job.operators // how_much.of(8, 40))
    for at in range(rng.randrange(stride), job.operators, stride):
        failures = {at, at + rng.choice([0, 1, 5])}
        reliefs: list[int] = []
        with FailingOperators(failures) as operators:
            got = job.run(recover=retry_out_of_memory(lambda r=reliefs: r.append(1)))
        assert torch.equal(got, job.frames), failures
        # A step that is made again has operators, too.
        assert len(reliefs) == len([n for n in failures if n < operators.count]), failures


def test_out_of_memory_at_any_step_changes_no_bit(job: Job) -> None:
    """Each once (in the gate every other), and random pairs, of which some are the same step
    twice."""
    rng, apart = random.Random(7), how_much.of(2, 1)
    pairs = [
        (n, n if n % 5 == 0 else rng.randrange(job.steps)) for n in range(0, job.steps, 4 * apart)
    ]
    for failures in (*((n,) for n in range(0, job.steps, apart)), *pairs):
        counter = FailingSteps(failures)
        assert torch.equal(job.run(recover=AGAIN, counter=counter), job.frames), failures
        assert not counter.left


def test_out_of_memory_in_any_pair_of_steps_changes_no_bit() -> None:
    job = Job("sparse", "chunks", 4)
    for pair in itertools.combinations_with_replacement(range(job.steps), 2):
        assert torch.equal(job.run(recover=AGAIN, counter=FailingSteps(pair)), job.frames), pair


@pytest.mark.parametrize("seed", range(how_much.of(2, 6)))
def test_late_copies_that_fail_change_no_bit_and_hold_no_more(kind: str, seed: int) -> None:
    """Without faults the device holds what the program states, however late the copies are.
    Replay: the seed is the test's number."""
    job, rng = long_job(kind, 12), random.Random(seed)
    program = job.spilled(rng.random() if seed else 0.0)
    transfers = LateTransfers(seed)
    with LiveStorages([job.x, *parameters_of(job.graph)], CPU) as live:
        got = job.run(program, transfers=transfers)
    assert torch.equal(got, job.frames)
    small = statistics_bytes(job.graph, program) + parameter_bytes(job.graph)
    assert live.peak <= program.candidate["device_bytes"] + small
    transfers = LateTransfers(seed, copies_that_fail=rng.randint(1, 9))
    assert torch.equal(job.run(program, transfers=transfers, recover=AGAIN), job.frames)
    late = LateTransfers(seed)
    counter = FailingSteps(tuple(rng.sample(range(job.steps), 3)))
    assert torch.equal(job.run(program, transfers=late, recover=AGAIN, counter=counter), job.frames)
    for one in (transfers, late):
        assert one.sent > 0
        assert not one.on_host, "copies were left on the host"
        assert not one.under_way


def test_a_third_failure_of_a_step_is_raised_and_another_error_at_once(job: Job) -> None:
    reliefs: list[int] = []
    recover = retry_out_of_memory(lambda: reliefs.append(1))
    with pytest.raises(torch.OutOfMemoryError):
        job.run(recover=recover, counter=FailingSteps((5, 5, 5)))
    assert len(reliefs) == 2
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error, match="stopped"):
            job.run(recover=recover, counter=Counter(5, error))
    assert len(reliefs) == 2


def test_a_failed_step_has_let_go_of_its_tensors_when_memory_is_asked_for(job: Job) -> None:
    """At the time of relief nothing is alive but slices, and what is known of norms."""
    alive: list[tuple[int, int]] = []
    backend, counter = torch_backend(), Counter()
    real, failed = backend.convolve, set()

    def convolve(*given: Any, **more: Any) -> Any:
        made = real(*given, **more)
        if len(counter.steps) not in failed:
            failed.add(len(counter.steps))
            raise torch.OutOfMemoryError("after the result was made")
        return made

    backend.convolve = convolve  # type: ignore[method-assign]
    with LiveStorages([job.x, *parameters_of(job.graph)], CPU) as live:
        run = Run(job.graph, backend, CPU, job.x.dtype, counter=counter)

        def recover(step: int, attempts: int, error: BaseException) -> bool:
            moments = [*run._gathered.values(), *(m for ms in run._moments_of.values() for m in ms)]
            known = [m.rows for m in moments]
            known += [t for pair in run.affines.values() for t in pair]
            known += [s.tensor for s in run._slices.values() if s.owned]
            storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in known}
            alive.append((live.live, sum(storages.values())))
            return True

        run.recover = recover
        for _, frames in run.section(job.program, 0, lambda r: job.x[:, :, slice(*r)]):
            del frames
    assert len(alive) > 10
    assert all(held == known for held, known in alive)


@pytest.mark.parametrize("where", [0.0, 0.3, 0.7, 0.99])
def test_a_stop_is_seen_before_the_next_step_with_no_copy_under_way(
    kind: str, where: float
) -> None:
    job = long_job(kind)
    program, transfers = job.spilled(), LateTransfers()
    counter = Counter(int(where * len(program.steps(0))), DecodeCancelled)
    with pytest.raises(DecodeCancelled):
        job.run(program, transfers=transfers, counter=counter)
    assert len(counter.steps) == counter.stop_at
    assert not transfers.under_way
    assert not transfers.on_host


def test_progress_counts_steps_to_the_end(job: Job) -> None:
    seen: list[tuple[int, int, str]] = []
    counter = counting.Counter(
        lambda done, total, step: seen.append((done, total, step.kind)), None
    )
    counter.total = job.program.candidate["steps"]
    job.run(counter=counter)
    kinds = [OPS[step[0]] for step in job.program.steps(0)]
    assert seen == [(n, len(kinds), kind) for n, kind in enumerate(kinds, 1)]
