"""What fails on one rank of a group: all ranks act alike, no one waits for ever, no frame is wrong.

Ranks are threads here; tests/long/check_ranks.py kills and stops processes.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
import re
import threading
import time
import weakref
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
dist = pytest.importorskip("torch.distributed")
if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("torch has no gloo", allow_module_level=True)

import how_much  # noqa: E402
from decode_doubles import relative_error, tiny_latents, tiny_pixels, tiny_vae  # noqa: E402
from rank_threads import Fault, backends, each, faults, groups, raising  # noqa: E402
from sink_doubles import TensorSink  # noqa: E402
from unknown_vaes import ConvNet  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding import executor  # noqa: E402
from hy3d_rocm.decoding.execution import Execution  # noqa: E402
from hy3d_rocm.decoding.executor import (  # noqa: E402
    decode,
    decode_into,
    decode_with_report,
    encode,
)
from hy3d_rocm.decoding.group import Group, GroupLostError, group_of  # noqa: E402
from hy3d_rocm.decoding.report import DecodeCancelled, DecodeOptions  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
    pytest.mark.usefixtures("one_thread", "no_gradients"),
]
BOUND = 64 * torch.finfo(torch.float32).eps  # as in test_shared_run.py
SHORT = 0.4  # seconds, a time-out that a test waits for
NO_SPACE = "No space left on device"


def out_of_memory() -> Exception:
    return MemoryError("the test's")


def no_kernel() -> Exception:
    return RuntimeError("could not create a primitive")


class Job:
    """A VAE and its latents, with the frames of one device."""

    def __init__(self, kind: str, rows: int = 4) -> None:
        self.vae = tiny_vae(kind)
        self.z = tiny_latents(self.vae, 1 if kind == "image16" else 2, rows, 2)
        self.alone = decode(self.vae, self.z)

    def on(self, ranks: list[Group], **more: Any) -> list[Any]:
        """(frames, report) of each rank, or what it raised."""
        return each(ranks, lambda group: decode_with_report(self.vae, self.z, group=group, **more))

    def is_right(self, frames: Any) -> bool:
        return relative_error(frames, self.alone) < BOUND

    def still_works(self, ranks: list[Group]) -> None:
        """Nothing was lost."""
        ends = self.on(ranks)
        assert [group.lost for group in ranks] == [""] * len(ranks)
        assert self.is_right(ends[0][0])
        assert all(frames is None for frames, _ in ends[1:])


@pytest.fixture(scope="module")
def jobs() -> dict[str, Job]:
    with torch.no_grad():
        return {kind: Job(kind) for kind in ("hunyuan", "wan", "image16")}


_ranks: dict[int, list[Group]] = {}


def usual(size: int) -> list[Group]:
    """Ranks of tests that must not lose them."""
    if size not in _ranks or any(group.lost for group in _ranks[size]):
        _ranks[size] = groups(size)
    return _ranks[size]


@pytest.fixture
def pair() -> list[Group]:
    return usual(2)


@pytest.fixture
def three() -> list[Group]:
    return usual(3)


def types(ends: list[Any]) -> list[type]:
    return [type(end) for end in ends]


# A step fails


@pytest.mark.parametrize(
    ("kind", "places"),
    [
        ("hunyuan", ("_conv", "_keys", "_parts", "_own_moments")),
        ("image16", ("_enter", "_attend", "_reduce", "_told", "_room_for_frames")),
    ],
)
def test_a_step_out_of_memory_once_is_made_again(
    kind: str, places: tuple[str, ...], jobs: dict[str, Job], pair: list[Group]
) -> None:
    job = jobs[kind]
    want = job.on(pair)[0][0]
    for number, where in enumerate(places):
        rank = 0 if where.startswith("_room") else number % 2
        with faults(fault := Fault(rank, where, raising(out_of_memory))):
            ends = job.on(pair)
        assert fault.calls > 1 or where in ("_told",), where
        assert torch.equal(ends[0][0], want), where
        assert [end[1].events for end in ends] == [[], []], where


@pytest.mark.parametrize(
    ("make", "where", "rank"),
    [
        (out_of_memory, "_conv", 0), (out_of_memory, "_parts", 1), (out_of_memory, "_keys", 0),
        (out_of_memory, "_own_moments", 1), (no_kernel, "_conv", 1), (no_kernel, "_attend", 0),
        (no_kernel, "_emit", 1),
    ],
)  # fmt: skip
def test_what_no_attempt_mends_makes_all_ranks_take_the_next_program(
    make: Any, where: str, rank: int, jobs: dict[str, Job], pair: list[Group]
) -> None:
    job, times = (
        jobs["hunyuan" if where == "_keys" else "image16"],
        3 if make is out_of_memory else 1,
    )
    with faults(Fault(rank, where, raising(make), times, int(where == "_conv"))):
        ends = job.on(pair)
    assert job.is_right(ends[0][0])
    events = [end[1].events for end in ends]
    own, other = events[rank][0], events[1 - rank][0]
    what = "out of memory" if times == 3 else "a convolution that failed"
    assert [len(found) for found in events] == [1, 1]
    assert own["event"] == other["event"] == what
    assert (own["way"], own["next_way"]) == (other["way"], other["next_way"])
    assert other["error"] == f"rank {rank}: {own['error']}"
    assert [group.lost for group in pair] == ["", ""]


@pytest.mark.parametrize("kind", ["hunyuan", "wan", "image16"])
def test_a_rank_that_fails_at_once_sends_what_the_others_wait_for(
    kind: str, jobs: dict[str, Job], three: list[Group]
) -> None:
    """In each program that there is, keys included: the sizes are right, or a rank would be lost.
    In the end nothing is left to try, on all ranks alike."""
    with faults(fault := Fault(1, "_enter", raising(no_kernel), 99)):
        ends = jobs[kind].on(three)
    assert types(ends) == [RuntimeError] * 3
    assert all("nothing is left to try" in str(end) for end in ends)
    assert fault.calls > 1, "there are several programs"
    assert [group.lost for group in three] == [""] * 3


def test_nan_in_a_ranks_rows_makes_all_ranks_take_a_wider_type(
    jobs: dict[str, Job], pair: list[Group]
) -> None:
    spoilt = lambda real, step: real(step).mul(math.nan)  # noqa: E731
    with faults(Fault(1, "_emit", spoilt)):
        ends = jobs["wan"].on(pair, precision="bf16")
    assert jobs["wan"].is_right(ends[0][0])
    assert [end[1].dtype for end in ends] == ["float32", "float32"]
    assert [e["event"] for e in ends[1][1].events] == ["not finite"]


@pytest.mark.parametrize(
    ("where", "rank"), [("_conv", 0), ("_attend", 1), ("_own_moments", 2), ("_emit", 2)]
)
def test_an_error_of_another_kind_ends_all_and_says_whose_it_is(
    where: str, rank: int, jobs: dict[str, Job], three: list[Group]
) -> None:
    with faults(Fault(rank, where, raising(lambda: KeyError("ключ ☂")))):
        ends = jobs["image16"].on(three)
    assert type(ends.pop(rank)) is KeyError
    text = f"another rank of the group ended the decode (rank {rank}: KeyError: 'ключ ☂')"
    assert [(type(end), str(end)) for end in ends] == [(ValueError, text)] * 2
    if rank == 0:
        jobs["image16"].still_works(three)
    assert [group.lost for group in three] == [""] * 3


def test_rows_that_could_not_be_filled_in_are_filled_in_again(
    jobs: dict[str, Job], pair: list[Group]
) -> None:
    """A copy of what came fails once: the step that waits for it is made again with all of it."""
    from hy3d_rocm.decoding import shared_run

    class Late:
        """A place whose first copy fails."""

        def __init__(self, place: Any) -> None:
            self.place, self.calls = place, 0

        def copy_(self, part: Any) -> None:
            self.calls += 1
            if self.calls == 1:
                raise MemoryError("the test's")
            self.place.copy_(part)

    made: list[Late] = []
    real = shared_run.SharedRun._parts

    def parts(run: Any, steps: Any) -> Any:
        sends, comes, copies = real(run, steps)
        if steps[0].node % 5 == run.group.rank:
            made.extend(late := [Late(place) for place, _ in copies])
            copies = list(zip(late, (part for _, part in copies), strict=True))
        return sends, comes, copies

    want = jobs["wan"].on(pair)[0][0]
    with mock.patch.object(shared_run.SharedRun, "_parts", parts):
        ends = jobs["wan"].on(pair)
    assert len([late for late in made if late.calls == 2]) > 3
    assert [group.lost for group in pair] == ["", ""]
    assert torch.equal(ends[0][0], want)


# What callers do


class Interrupt(BaseException):
    """As ComfyUI's own."""


@pytest.mark.parametrize(
    ("raised", "rank", "others"),
    [(KeyError, 0, ValueError), (Interrupt, 0, DecodeCancelled), (DecodeCancelled, 1, None),
     (KeyboardInterrupt, 1, DecodeCancelled)],
)  # fmt: skip
def test_what_progress_raises_ends_all(
    raised: type[BaseException], rank: int, others: Any, jobs: dict[str, Job], pair: list[Group]
) -> None:
    job = jobs["wan"]

    def decoded(group: Group) -> Any:
        def progress(done: int, *_: Any) -> None:
            if group.rank == rank and done == 9:
                raise raised("the test's")

        return decode(job.vae, job.z, progress=progress, group=group)

    ends = each(pair, decoded)
    assert type(ends[rank]) is raised
    assert type(ends[1 - rank]) is (others or raised)
    assert f"rank {rank}" in str(ends[1 - rank])
    if raised is KeyboardInterrupt:
        job.still_works(pair)
    assert [group.lost for group in pair] == ["", ""]


@pytest.mark.parametrize("number", [1, 2, 4])
def test_an_interrupt_in_a_meeting_ends_that_rank(number: int, jobs: dict[str, Job]) -> None:
    """The others have gone on to where it never comes: the group is lost, and the interrupt is not.
    Rank 0 does not decode alone."""
    real, calls = Group.wait, [0]

    def wait(group: Group, *given: Any, **more: Any) -> None:
        calls[0] += group.rank == 0
        if group.rank == 0 and calls[0] == number:
            raise KeyboardInterrupt
        real(group, *given, **more)

    with mock.patch.object(Group, "wait", wait):
        ends = jobs["wan"].on(groups(2, SHORT))
    assert type(ends[0]) is KeyboardInterrupt
    assert type(ends[1]) in (DecodeCancelled, GroupLostError)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_cancel_of_any_rank_ends_all(rank: int, three: list[Group]) -> None:
    """Two rows: rank 0 has none."""
    job, wish = Job("wan", rows=2), threading.Event()

    def decoded(group: Group) -> Any:
        def progress(done: int, *_: Any) -> None:
            if done == 9:
                wish.set()

        cancel = wish if group.rank == rank else None
        return decode(job.vae, job.z, progress=progress, cancel=cancel, group=group)

    ends = each(three, decoded)
    assert types(ends) == [DecodeCancelled] * 3
    assert "cancelled after" in str(ends[rank])
    assert str(ends[rank - 1]) == f"rank {rank}: {ends[rank]}"
    if rank == 0:
        job.still_works(three)


class FullDisk(TensorSink):
    def put(self, sample: int, first: int, frames: Any) -> None:
        raise OSError(28, NO_SPACE)


class Unfinished(TensorSink):
    def finish(self) -> Any:
        raise OSError(28, NO_SPACE)


class Kept(TensorSink):
    """Frames stay after an abort, as a file's do."""

    def abort(self) -> None:
        pass


def test_a_full_disk_on_rank_0_ends_all(jobs: dict[str, Job], pair: list[Group]) -> None:
    job = jobs["wan"]

    def decoded(sink: TensorSink, group: Group) -> Any:
        return decode_into(sink, job.vae, job.z, group=group) if group.rank == 0 else decode(
            job.vae, job.z, group=group
        )  # fmt: skip

    ends = each(pair, lambda group: decoded(FullDisk(), group))
    assert types(ends) == [OSError, ValueError]
    assert NO_SPACE in str(ends[1])
    ends = each(pair, lambda group: decoded(Unfinished(), group))  # the others have done theirs
    assert types(ends) == [OSError, type(None)]
    job.still_works(pair)


def test_an_interrupted_decode_into_a_sink_goes_on(pair: list[Group]) -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 6, 4, 2)
    alone, sink, runs = decode(vae, z), Kept(), [0]

    def decoded(group: Group) -> Any:
        if group.rank:
            return decode_with_report(vae, z, group=group)

        runs[0] += 1

        def cancel() -> bool:
            return runs == [1] and bool(sink._next) and sink._next[0] > 0

        return decode_into(sink, vae, z, cancel=cancel, group=group, resume_key=sink._plan)

    assert types(each(pair, decoded)) == [DecodeCancelled] * 2
    there = sink._next[0]
    assert 0 < there < alone.shape[2]
    first = sink._tensor()[:, :, :there].clone()
    ends = each(pair, decoded)
    assert relative_error(ends[0][0], alone) < BOUND
    assert torch.equal(ends[0][0][:, :, :there], first)
    assert ends[1][0] is None


# Ranks that are given different things


def test_ranks_that_are_given_different_things_get_a_sentence(
    jobs: dict[str, Job], pair: list[Group]
) -> None:
    job, other = jobs["wan"], tiny_vae("wan", seed=1)
    half = Job("wan").vae.half()
    common: dict[str, Any] = {"vae": job.vae, "latents": job.z}
    differences: list[tuple[str, dict[str, Any]]] = [
        ("a sum of the latents", {"latents": job.z + 1}),
        ("the shape of the latents", {"latents": job.z[:, :, :1]}),
        ("weights", {"vae": other}),
        ("the VAE", {"vae": jobs["hunyuan"].vae}),
        ("options", {"options": DecodeOptions(chunk_size=1)}),
        ("kernels", {"options": DecodeOptions(backend="torch")}),
        ("the type", {"precision": "bf16"}),
        ("weights", {"vae": half, "precision": "fp32"}),
    ]
    for name, more in differences:
        ends = each(
            pair,
            lambda group, more=more: decode_with_report(
                **(common | (more if group.rank else {})), group=group
            ),
        )
        assert types(ends) == [ValueError] * 2, name
        assert str(ends[0]) == str(ends[1])
        assert str(ends[0]).startswith("the ranks of the group were not given the same: ")
        assert " on rank 0 and " in str(ends[0])
    job.still_works(pair)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"latents": torch.zeros(3)}, "latents"), ({"budget": "a lot"}, "budget"),
        ({"strategy": "fast"}, "strategy"), ({"out": torch.zeros(1)}, "out"),
        ({"vae": object()}, "object"),
    ],
)  # fmt: skip
def test_what_one_rank_can_not_begin_with_ends_all(
    more: dict[str, Any], text: str, jobs: dict[str, Job], pair: list[Group]
) -> None:
    job = jobs["wan"]
    ends = each(
        pair,
        lambda group: decode(
            **({"vae": job.vae, "latents": job.z} | (more if group.rank else {})), group=group
        ),
    )
    assert isinstance(ends[1], ValueError | TypeError)
    assert text in str(ends[1])
    assert type(ends[0]) is ValueError
    assert str(ends[0]).startswith("another rank of the group ended the decode (rank 1: ")
    if "vae" in more:
        job.still_works(pair)
    assert [group.lost for group in pair] == ["", ""]


def test_ranks_that_plan_other_programs_are_noticed(
    jobs: dict[str, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two versions of the core may."""
    job, ranks, chosen = jobs["wan"], groups(2), Execution._chosen

    def planned(execution: Execution) -> Any:
        if execution.group is not None and execution.group.rank:
            options = DecodeOptions(chunk_size=1)
            execution.asked = dataclasses.replace(execution.asked, options=options)
        return chosen(execution)

    monkeypatch.setattr(Execution, "_chosen", planned)
    ends = job.on(ranks)
    assert job.is_right(ends[0][0])
    assert type(ends[1]) is GroupLostError
    words = (
        r"the ranks do different things: rank 1 planned \[.*\], rank 0 planned \[.*\]\. Give all"
    )
    assert re.match(words, str(ends[1]))


def test_weights_at_the_address_of_others_are_others(pair: list[Group]) -> None:
    """Of a VAE that is gone the allocator gives the places to the next."""
    group, told = pair[0], []
    job = Job("wan")
    for seed in (0, 1):
        vae = tiny_vae("wan", seed)
        for mine, new in zip(job.vae.parameters(), vae.parameters(), strict=True):
            new.data = mine.data.copy_(new.data)  # the same memory and versions
        ends = each(pair, lambda group, vae=vae: decode(vae, job.z, group=group))
        assert torch.is_tensor(ends[0])
        assert group.weights is not None
        told.append(group.weights[1])
    assert told[0] != told[1]


def test_ranks_of_other_budgets_plan_alike(jobs: dict[str, Job], pair: list[Group]) -> None:
    job = jobs["wan"]
    ends = each(
        pair,
        lambda group: decode_with_report(
            job.vae, job.z, budget="4GB" if group.rank else "2GB", group=group
        ),
    )
    assert ends[0][1].budget_bytes == ends[1][1].budget_bytes < 3e9
    assert all("the ranks may take 2.00 GB, 4.00 GB" in end[1].budget_rule for end in ends)
    ends = each(
        pair, lambda group: decode(job.vae, job.z, budget=None if group.rank else 1000, group=group)
    )
    assert all("budget" in str(end) for end in ends)
    job.still_works(pair)


@pytest.mark.parametrize("where", ["_chosen", "_begin", "_next_plan"])
def test_a_rank_that_can_not_plan_or_begin_ends_all(
    where: str, jobs: dict[str, Job], pair: list[Group]
) -> None:
    job, real = jobs["image16"], getattr(executor.Execution, where)

    def failing(execution: Any, *given: Any) -> Any:
        if execution.group.rank:
            raise KeyError("the test's")
        return real(execution, *given)

    fault = Fault(0, "_conv", raising(no_kernel)) if where == "_next_plan" else None
    with mock.patch.object(executor.Execution, where, failing), faults(fault):
        ends = job.on(pair)
    assert types(ends) == [ValueError, KeyError]
    assert [group.lost for group in pair] == ["", ""]


# Lost ranks


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_rank_that_never_comes_leaves_rank_0_alone(
    jobs: dict[str, Job], caplog: pytest.LogCaptureFixture
) -> None:
    job, ranks = jobs["wan"], groups(3, SHORT)
    began = time.monotonic()
    ends = each(ranks[:2], lambda group: decode(job.vae, job.z, group=group))
    assert time.monotonic() - began < SHORT + 5
    assert torch.equal(ends[0], job.alone)
    assert type(ends[1]) is GroupLostError
    (line,) = lines_of(caplog)
    assert line.startswith("[VAE Decode] rank 0 of 3 lost another one, which did not answer within")
    assert line.endswith(": decoding alone")
    began = time.monotonic()
    ends = each(ranks, lambda group: decode(job.vae, job.z, group=group))  # the third is late
    assert torch.equal(ends[0], job.alone)
    assert types(ends[1:]) == [GroupLostError] * 2
    assert time.monotonic() - began < SHORT + 5


def test_what_comes_of_several_ranks_has_one_time_out() -> None:
    ranks = groups(3, seconds := 2.0)  # so long that a busy machine does not make two of one

    def work(group: Group) -> float:
        began = time.monotonic()
        if group.rank == 0:
            parts = [(peer, torch.empty(1)) for peer in (1, 2)]
            with pytest.raises(GroupLostError):
                group.post((), parts).wait()
        elif group.rank == 1:
            time.sleep(0.8 * seconds)
            group.post([(0, torch.ones(1))], ()).wait()
        return time.monotonic() - began

    assert seconds * 0.9 < each(ranks, work)[0] < seconds * 1.7


def test_a_rank_that_leaves_is_lost_and_knows_it(jobs: dict[str, Job]) -> None:
    """Where what it did could not be told to the others; what the ranks had made is held no more
    when rank 0 decodes alone."""
    job, ranks, held = jobs["wan"], groups(2, SHORT), []
    with faults(Fault(1, "_exchange", raising(KeyboardInterrupt), first=5)) as runs:
        real = executor._prepare

        def prepare(family: Any, source: Any, device: Any, asked: Any) -> Any:
            if asked.group is None:
                gc.collect()
                held.append([run for run in list(runs) if run.group.rank == 0])
            return real(family, source, device, asked)

        with mock.patch.object(executor, "_prepare", prepare):
            ends = job.on(ranks)
    assert type(ends[1]) is KeyboardInterrupt
    assert torch.equal(ends[0][0], job.alone)
    assert held == [[]]
    assert ranks[1].lost == "rank 1 left a decode of the group (KeyboardInterrupt)"
    began = time.monotonic()
    ends = job.on(ranks)
    assert torch.equal(ends[0][0], job.alone)
    assert str(ends[1]) == ranks[1].lost
    assert time.monotonic() - began < 5


def test_a_lost_group_leaves_no_thread_that_waits() -> None:
    """The process could not end: the backend's threads are joined."""
    ranks, before = backends(2), threading.active_count()
    with pytest.raises(GroupLostError):
        Group(ranks[0], timeout=SHORT).meet("a")
    time.sleep(0.3)
    began = time.monotonic()
    ranks.clear()
    gc.collect()
    assert time.monotonic() - began < 2
    assert threading.active_count() <= before


def test_a_process_group_is_not_kept_alive() -> None:
    found = dist.ProcessGroup(dist.PrefixStore("kept", dist.HashStore()), 0, 2)
    pair = backends(2)
    found._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, pair[0])
    group = group_of(found)
    assert group is group_of(found, torch.device("cpu"))
    known = weakref.ref(found)
    del found, group
    gc.collect()
    assert known() is None


def test_a_group_that_does_not_come_about_is_lost(jobs: dict[str, Job]) -> None:
    """NCCL's ranks need one of gloo beside it; one of them never calls."""
    found, pair = dist.ProcessGroup(dist.PrefixStore("late", dist.HashStore()), 0, 2), backends(2)
    found._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, pair[0])
    with (
        mock.patch("hy3d_rocm.decoding.group._takes", return_value="nccl"),
        mock.patch.object(dist, "get_process_group_ranks", return_value=[0, 1]),
        mock.patch.object(dist, "new_group", side_effect=RuntimeError("a store's")),
    ):
        assert torch.equal(decode(jobs["wan"].vae, jobs["wan"].z, group=found), jobs["wan"].alone)
    group = group_of(found)
    assert group is not None
    assert group.lost == "no group of gloo came about within 300 s (RuntimeError: a store's)"


def test_long_words_and_all_letters_come_through(three: list[Group]) -> None:
    words = ["", "ключ ☂ 🏖 \ud800", "x" * 5000, {"a": [1, None, 2.5, "é" * 300]}]
    for shift in range(3):
        ends = each(three, lambda group, n=shift: group.meet("a", values=words[group.rank + n - 2]))
        assert ends == [[words[n + shift - 2] for n in range(3)]] * 3
    error = ValueError("a\nb" + "é" * 10**6)
    ends = each(three, lambda group: group.meet("b", error if group.rank == 1 else None))
    assert ends[1] is error
    assert str(ends[0]) == "another rank of the group ended the decode (rank 1: ValueError: a)"


# Samples


@pytest.mark.parametrize(
    ("samples", "size"),
    how_much.of([(2, 4), (2, 2), (5, 3)], [(1, 2), (2, 4), (3, 2), (2, 2), (5, 3)]),
)
def test_batches_of_any_number_are_decoded(samples: int, size: int, jobs: dict[str, Job]) -> None:
    vae, ranks = jobs["image16"].vae, usual(size)
    z = torch.randn(samples, 16, 3, 2)
    want = torch.cat([decode(vae, one) for one in z.split(1)])
    out = torch.full_like(want, math.nan)
    ends = each(
        ranks, lambda group: decode(vae, z, out=out if group.rank == 0 else None, group=group)
    )
    assert ends[0] is out
    assert ends[1:] == [None] * (size - 1)
    assert relative_error(out, want) < BOUND
    if samples > how_much.of(2, 3):
        return
    pixels = tiny_pixels(1, 6, 4)[:, :, 0].repeat(samples, 1, 1, 1)
    ends = each(ranks, lambda group: encode(vae, pixels, moments=True, group=group))
    assert relative_error(ends[0], encode(vae, pixels, moments=True)) < BOUND


class Net(ConvNet):
    """On one thread's rank it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.happen: Any = lambda: None

    def decode(self, z: Any) -> Any:
        if z.device.type != "meta" and z.shape[3] > 2:  # not one that only asks for sizes
            self.happen()
        return super().decode(z)


def test_a_vae_of_unknown_layers_is_shared_by_samples(pair: list[Group]) -> None:
    nets, z = [Net(), Net()], torch.randn(3, 4, 2, 4, 4)
    want = torch.cat([nets[0].decode(one) for one in z.split(1)])
    ranks = lambda: each(pair, lambda group: decode(nets[group.rank], z, group=group))  # noqa: E731
    ends = ranks()
    assert relative_error(ends[0], want) < BOUND
    assert ends[1] is None
    nets[1].happen = raising(lambda: KeyError("the test's"))  # rank 0 does what it can't
    ends = ranks()
    assert relative_error(ends[0], want) < BOUND
    assert type(ends[1]) is KeyError
    nets[1].happen = raising(KeyboardInterrupt)  # nobody wants the frames
    assert types(ranks()) == [DecodeCancelled, KeyboardInterrupt]
    nets[1].happen, nets[0].happen = (lambda: None), raising(lambda: KeyError("the test's"))
    assert types(ranks()) == [KeyError, ValueError]
    nets[0].happen = lambda: None
    assert relative_error(ranks()[0], want) < BOUND


def test_a_rank_waits_for_another_that_has_one_sample_more() -> None:
    """And for no longer than that takes, in time-outs."""
    ranks, z = groups(2, SHORT), torch.randn(3, 4, 2, 4, 4)
    slow, quick = Net(), Net()
    slow.happen = lambda: time.sleep(SHORT * 1.1)
    ends = each(ranks, lambda group: decode(quick if group.rank else slow, z, group=group))
    assert torch.is_tensor(ends[0])
    assert [group.lost for group in ranks] == ["", ""]
    slow.happen = lambda: time.sleep(SHORT * 5)
    began = time.monotonic()
    ends = each(ranks, lambda group: decode(slow if group.rank else quick, z, group=group))
    assert torch.is_tensor(ends[0])
    assert type(ends[1]) is GroupLostError
    assert time.monotonic() - began < SHORT * 6 + 5


def test_a_rank_of_no_rows_and_samples_has_nothing_to_do(three: list[Group]) -> None:
    Job("image16", rows=1).still_works(three)
