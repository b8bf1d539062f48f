"""A rank without rows waits for as long as the others compute, and no longer."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
dist = pytest.importorskip("torch.distributed")
if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("torch has no gloo", allow_module_level=True)

from decode_doubles import relative_error, tiny_latents, tiny_vae  # noqa: E402
from rank_threads import each, groups  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding.executor import decode  # noqa: E402
from hy3d_rocm.decoding.group import Group, GroupLostError  # noqa: E402
from hy3d_rocm.decoding.shared_run import KeepAlive, SharedRun  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
    pytest.mark.usefixtures("one_thread", "no_gradients"),
]
BOUND = 64 * torch.finfo(torch.float32).eps  # as in test_shared_run.py
SHORT = 0.8  # seconds, a time-out that a busy machine keeps between two steps


VAE = functools.cache(functools.partial(tiny_vae, "wan"))
real_conv = SharedRun._conv


def latents(rows: int) -> Any:
    return tiny_latents(VAE(), 1, rows, 2)


def convolving(instead: Callable[[SharedRun, Any], None]) -> Any:
    """It is called before each convolution of a rank."""

    def conv(run: Any, step: Any) -> Any:
        instead(run, step)
        return real_conv(run, step)

    return mock.patch.object(SharedRun, "_conv", conv)


@pytest.mark.parametrize(("rows", "weights", "idle"), [(2, (), 0), (3, (9, 1, 9), 1)])
def test_steps_may_take_longer_than_the_time_out_in_all(
    rows: int, weights: tuple[int, ...], idle: int
) -> None:
    """Between two meetings: its frames are given away at the end. Rank 0 gets them all, whether
    it has rows or not."""
    z, begun = latents(rows), []
    alone, began_as = decode(VAE(), z), KeepAlive.begin
    ranks, began = groups(3, SHORT), time.monotonic()

    def begin(alive: KeepAlive, shares: Any) -> None:
        begun.append([number for number, (first, stop) in enumerate(shares) if first == stop])
        began_as(alive, shares)

    compile_schedule = _native.compile_schedule

    def compiled(*given: Any, **more: Any) -> Any:
        more |= {"weights": weights} if weights and more["ranks"] > 1 else {}
        return compile_schedule(*given, **more)

    with (
        convolving(lambda run, step: time.sleep(SHORT / 8)),
        mock.patch.object(KeepAlive, "begin", begin),
        mock.patch.object(_native, "compile_schedule", compiled),
    ):
        ends = each(ranks, lambda group: decode(VAE(), z, group=group))
    assert begun == [[idle]] * 3
    assert time.monotonic() - began > 3 * SHORT, "the test's steps are too short"
    assert [group.lost for group in ranks] == [""] * 3
    assert relative_error(ends[0], alone) < BOUND
    assert ends[1:] == [None, None]


@pytest.mark.parametrize("rank", [1, 2])
def test_one_that_hangs_is_noticed_by_the_rank_without_rows(rank: int) -> None:
    """Whether that is rank 1, of which it hears, or one that rank 1 waits for."""
    z, ended = latents(2), [0.0] * 3
    alone, ranks = decode(VAE(), z), groups(3, SHORT)

    def hang(run: SharedRun, step: Any) -> None:
        if run.group.rank == rank and step.node > 3:
            time.sleep(6 * SHORT)

    def decoded(group: Group) -> Any:
        try:
            return decode(VAE(), z, group=group)
        finally:
            ended[group.rank] = time.monotonic()

    began = time.monotonic()
    with convolving(hang):
        ends = each(ranks, decoded)
    assert torch.equal(ends[0], alone)
    assert [type(end) for end in ends[1:]] == [GroupLostError] * 2
    assert ended[0] - began < 2 * SHORT + 2
