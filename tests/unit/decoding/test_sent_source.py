"""Rank 0 alone has the latents or pixels: the others are sent their rows or samples, and get the
same."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
dist = pytest.importorskip("torch.distributed")
if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("torch has no gloo", allow_module_level=True)

import how_much  # noqa: E402
from decode_doubles import EVERY_KIND, relative_error, tiny_latents, tiny_vae  # noqa: E402
from program_doubles import family_of, source_of  # noqa: E402
from rank_threads import Fault, each, faults, groups, raising  # noqa: E402
from sink_doubles import TensorSink  # noqa: E402
from unknown_vaes import ConvNet  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding import shared_run  # noqa: E402
from hy3d_rocm.decoding.executor import (  # noqa: E402
    decode,
    decode_into,
    decode_with_report,
    encode_with_report,
)
from hy3d_rocm.decoding.group import Group, GroupLostError  # noqa: E402
from hy3d_rocm.decoding.memory.budget import Budget  # noqa: E402
from hy3d_rocm.decoding.plan import BudgetTooSmallError  # noqa: E402
from hy3d_rocm.decoding.report import DecodeCancelled  # noqa: E402
from hy3d_rocm.decoding.together import beside_samples  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
    pytest.mark.usefixtures("one_thread", "no_gradients"),
]
BOUND = 64 * torch.finfo(torch.float32).eps  # as in test_shared_run.py
SHORT = 0.5  # seconds


def shape_of(source: Any, group: Group) -> Any:
    """What a rank but rank 0 has."""
    return source if group.rank == 0 else torch.empty_like(source, device="meta")


class Bytes:
    """That come to each rank over a group's own messages to it, but for meetings and the words that
    one without rows is told."""

    def __init__(self, ranks: list[Group]) -> None:
        self.come = [0] * len(ranks)
        for group in ranks:
            group.post = self._counted(group, group.post)  # type: ignore[method-assign]

    def _counted(self, group: Group, post: Any) -> Any:
        def counted(sends: Any, comes: Any, copies: Any = ()) -> Any:
            self.come[group.rank] += sum(t.nbytes for _, t in comes if t.dtype != torch.uint8)
            return post(sends, comes, copies)

        return counted


# In the gate a third of the kinds, as in test_workers.py and test_shared_run.py. Of SeedVR2's rows
# none are shared.
KINDS = [k for k in how_much.dealt(EVERY_KIND, 1, 3) if k != "seedvr2"]


@pytest.mark.parametrize("encode", [False, True])
@pytest.mark.parametrize(("kind", "ranks"), how_much.in_turns(KINDS, (2, 3)))
def test_ranks_get_what_they_would_if_all_had_the_source(
    kind: str, ranks: int, encode: bool
) -> None:
    family = family_of(kind, tiny_vae(kind))
    source = source_of(family, encode, 1 if family.is_image else 2, 8, 5)
    work = encode_with_report if encode else decode_with_report
    many = groups(ranks)
    want = each(many, lambda g: work(family, source, strategy="streamed", group=g))[0][0]
    with mock.patch.object(shared_run, "AT_ONCE_BYTES", 1):  # a frame at a time
        ends = each(many, lambda g: work(family, shape_of(source, g), strategy="streamed", group=g))
    assert torch.equal(ends[0][0], want)
    assert [end[0] for end in ends[1:]] == [None] * (ranks - 1)
    assert [group.lost for group in many] == [""] * ranks


def test_a_rank_is_sent_the_rows_that_it_reads_in_the_type_of_its_values() -> None:
    family = family_of("wan", tiny_vae("wan"))
    source = source_of(family, True, 1, 24, 5)  # 192 rows of 40 columns
    come, plans = [], []
    for has_all in (True, False):
        ranks = groups(2)
        counted = Bytes(ranks)
        given = [source if has_all else shape_of(source, group) for group in ranks]
        ends = each(
            ranks,
            lambda g, x=given: encode_with_report(family, x[g.rank], group=g, precision="bf16"),
        )
        come.append(counted.come[1])
        plans.append(ends[0][1].predicted_peak_bytes)
    # Half of the rows, and one that a kernel of three reads beyond; two bytes an element.
    sent = source[:, :, :, : 192 // 2 + 1].numel() * 2
    assert come[1] - come[0] == sent
    assert plans[1] > plans[0]


def test_what_is_sent_counts_in_the_budget() -> None:
    family = family_of("wan", tiny_vae("wan"))
    source = source_of(family, True, 3, 24, 5)
    ranks = groups(2)

    def least(has_all: bool) -> int:
        """The smallest budget that the refusal names."""
        ends = each(
            ranks,
            lambda g: encode_with_report(
                family, source if has_all else shape_of(source, g), 1000, group=g
            ),
        )
        assert all(isinstance(end, BudgetTooSmallError) for end in ends)
        return int(ends[1].smallest)

    rows = source[:, :, :, : 192 // 2 + 1].numel() * 4
    assert 0 <= least(False) - least(True) - rows < rows // 10  # and a share of it as a margin


def test_a_rank_without_rows_is_sent_none() -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 2, 2, 2)
    ranks = groups(4)
    counted = Bytes(ranks)
    with mock.patch.object(shared_run, "AT_ONCE_BYTES", 1):
        ends = each(ranks, lambda g: decode(vae, shape_of(z, g), group=g))
    assert relative_error(ends[0], decode(vae, z)) < BOUND
    assert counted.come[2] == 0  # of two rows ranks 1 and 3 have one each
    assert counted.come[1] > 0


@pytest.mark.parametrize("samples", [2, 3, 5])
def test_samples_are_sent_where_these_are_shared(samples: int) -> None:
    """Where rows could be shared as well, and where they can't."""
    for vae, strategy in ((tiny_vae("image16"), "auto"), (ConvNet(), "auto"),
                          (tiny_vae("image16"), "whole")):  # fmt: skip
        channels = 4 if isinstance(vae, ConvNet) else 16
        z = torch.randn(samples, channels, 1, 4, 4)
        want = torch.cat([decode(vae, one, strategy=strategy) for one in z.split(1)])
        ends = each(
            groups(2),
            lambda g, v=vae, z=z, s=strategy: decode(v, shape_of(z, g), strategy=s, group=g),
        )
        assert relative_error(ends[0], want) < BOUND
        assert ends[1] is None


def test_samples_that_are_sent_come_out_of_that_rank_s_budget() -> None:
    budget, source = Budget(1000, 900, True, "as given"), torch.empty(3, 1, 1, 1, 10, device="meta")
    job: Any = SimpleNamespace(sends_source=True)
    ranks: list[Any] = [SimpleNamespace(rank=rank, size=2) for rank in range(2)]
    assert beside_samples(ranks[0], job, source, budget) is budget
    left = beside_samples(ranks[1], job, source, budget)
    assert (left.device_bytes, left.host_bytes) == (1000 - 40, 900 - 40)
    assert left.rule == "as given; 40 B of it for what rank 0 sends"
    job.sends_source = False
    assert beside_samples(ranks[1], job, source, budget) is budget


def test_it_is_sent_again_for_another_program_and_for_a_wider_type() -> None:
    family = family_of("wan", tiny_vae("wan"))
    z = source_of(family, False, 2, 8, 5)
    want, ranks = decode(family, z), groups(2)
    spoilt = lambda real, step: real(step).mul(math.nan)  # noqa: E731
    no_kernel = raising(lambda: RuntimeError("could not create a primitive"))
    for fault, more in (
        (Fault(1, "_conv", no_kernel), {}),
        (Fault(1, "_emit", spoilt), {"precision": "bf16"}),
    ):
        with faults(fault):
            ends = each(
                ranks,
                lambda g, m=more: decode_with_report(family, shape_of(z, g), group=g, **m),
            )
        assert relative_error(ends[0][0], want) < BOUND
        assert len(ends[1][1].events) == 1
    assert [group.lost for group in ranks] == ["", ""]


def test_a_decode_into_a_sink_goes_on_with_the_latents_that_are_wanted() -> None:
    class Kept(TensorSink):
        def abort(self) -> None:
            pass

    vae, pair = tiny_vae("wan"), groups(2)
    z = tiny_latents(vae, 6, 4, 2)
    alone, sink, runs = decode(vae, z), Kept(), [0]

    def decoded(group: Group) -> Any:
        if group.rank:
            return decode_with_report(vae, shape_of(z, group), group=group)
        runs[0] += 1
        cancel = lambda: runs == [1] and bool(sink._next) and sink._next[0] > 0  # noqa: E731
        return decode_into(sink, vae, z, cancel=cancel, group=group, resume_key=sink._plan)

    assert [type(end) for end in each(pair, decoded)] == [DecodeCancelled] * 2
    assert 0 < sink._next[0] < alone.shape[2]
    assert relative_error(each(pair, decoded)[0][0], alone) < BOUND


@pytest.mark.parametrize("rank", [0, 1])
def test_where_there_is_no_memory_for_it_all_ranks_take_the_same(rank: int) -> None:
    vae, pair = tiny_vae("wan"), groups(2)
    z, real, failed = tiny_latents(vae, 2, 4, 2), torch.empty, []
    threads: dict[int, int] = {}

    def empty(*given: Any, **more: Any) -> Any:
        if threads.get(threading.get_ident()) == rank and not failed:
            failed.append(1)
            raise MemoryError("the test's")
        return real(*given, **more)

    def decoded(group: Group) -> Any:
        threads[threading.get_ident()] = group.rank
        return decode_with_report(vae, shape_of(z, group), group=group)

    with mock.patch.object(shared_run, "torch", mock.Mock(wraps=torch, empty=empty)):
        ends = each(pair, decoded)
    assert failed
    assert relative_error(ends[0][0], decode(vae, z)) < BOUND
    assert [[e["event"] for e in end[1].events] for end in ends] == [["out of memory"]] * 2
    assert [group.lost for group in pair] == ["", ""]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_cancel_or_an_error_meanwhile_ends_all(rank: int) -> None:
    vae, pair = tiny_vae("wan"), groups(2)
    z, real = tiny_latents(vae, 3, 4, 2), shared_run.sent_rows

    def sent(group: Group, about: str, *given: Any) -> Any:
        def check() -> None:
            if group.rank == rank:
                raise KeyError("the test's")

        return real(group, about, *given[:-1], check)

    with mock.patch("hy3d_rocm.decoding.execution.sent_rows", sent):
        ends = each(pair, lambda g: decode(vae, shape_of(z, g), group=g))
    assert type(ends[rank]) is KeyError
    assert type(ends[1 - rank]) is ValueError
    assert f"(rank {rank}: KeyError" in str(ends[1 - rank])
    assert [group.lost for group in pair] == ["", ""]
    assert torch.is_tensor(each(pair, lambda g: decode(vae, shape_of(z, g), group=g))[0])


def test_a_rank_that_is_lost_meanwhile_leaves_rank_0_alone() -> None:
    vae, three = tiny_vae("wan"), groups(3, SHORT)
    z = tiny_latents(vae, 3, 4, 2)

    def sent(group: Group, *given: Any) -> Any:
        if group.rank == 1:
            raise SystemExit
        return real(group, *given)

    real = shared_run.sent_rows
    with mock.patch("hy3d_rocm.decoding.execution.sent_rows", sent):
        ends = each(three, lambda g: decode(vae, shape_of(z, g), group=g))
    assert torch.equal(ends[0], decode(vae, z))
    assert isinstance(ends[2], GroupLostError)


def test_rank_0_and_a_single_device_need_values() -> None:
    vae, pair = tiny_vae("wan"), groups(2)
    z = tiny_latents(vae, 1, 4, 2)
    with pytest.raises(ValueError, match='latents are on "meta", which holds no values'):
        decode(vae, z.to("meta"))
    ends = each(pair, lambda g: decode(vae, z if g.rank else z.to("meta"), group=g))
    assert [type(end) for end in ends] == [ValueError] * 2
    assert 'latents are on "meta"' in str(ends[0])
    ends = each(pair, lambda g: decode(vae, z.to("meta")[:, :, :, 1:] if g.rank else z, group=g))
    assert all("the shape of the latents" in str(end) for end in ends)
