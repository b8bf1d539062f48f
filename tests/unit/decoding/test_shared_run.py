"""Ranks of a group, as threads: the frames of one device, for every kind of VAE, within what each
rank has planned."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
dist = pytest.importorskip("torch.distributed")

import how_much  # noqa: E402
from decode_doubles import EVERY_KIND, relative_error, tiny_vae  # noqa: E402
from program_doubles import family_of, source_of  # noqa: E402
from rank_threads import each, groups  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding.execution import DecodeRequest  # noqa: E402
from hy3d_rocm.decoding.executor import (  # noqa: E402
    _execute,
    decode,
    decode_with_report,
    encode_with_report,
)
from hy3d_rocm.decoding.group import Group, Meeting, group_of  # noqa: E402
from hy3d_rocm.decoding.plan import BudgetTooSmallError  # noqa: E402
from hy3d_rocm.decoding.planning import jobs  # noqa: E402
from hy3d_rocm.decoding.report import DecodeOptions  # noqa: E402
from hy3d_rocm.decoding.shared_run import SharedRun  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
    pytest.mark.skipif(not dist.is_available(), reason="torch has no torch.distributed"),
]
# Whose norms see a frame at a time: rank 0 decodes alone.
ALONE = ("seedvr2",)
# What a decode reads and never writes, ranks and tests may share.
vae_of = functools.cache(tiny_vae)
# The order of sums differs between the C convolution's tiles of a strip and of the picture, and in
# GroupNorm's statistics: some rounding errors of the largest value, through some 30 layers.
BOUND = 64 * torch.finfo(torch.float32).eps
SECONDS = 60.0


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def in_ranks(count: int, work: Callable[[Group], Any]) -> tuple[list[Any], list[Group]]:
    """What each rank's work gives; the first exception of one is raised."""
    ranks = groups(count, SECONDS)
    made = each(ranks, work)
    for one in made:
        if isinstance(one, BaseException):
            raise one
    return made, ranks


def run(kind: str, encode: bool, source: Any, **more: Any) -> Any:
    family = family_of(kind, vae_of(kind))
    if encode:
        return encode_with_report(family, source, moments=True, **more)
    return decode_with_report(family, source, **more)


def compared(kind: str, encode: bool, ranks: int, rows: int, backend: str) -> None:
    family = family_of(kind, vae_of(kind))
    source = source_of(family, encode, 1 if family.is_image else 2, rows, 5)
    options = DecodeOptions(backend=backend)
    want, alone = run(kind, encode, source, strategy="streamed", options=options)
    found, groups = in_ranks(
        ranks, lambda g: run(kind, encode, source, strategy="streamed", options=options, group=g)
    )
    frames = found[0][0]
    assert all(made is None for made, _ in found[1:])
    assert frames.shape == want.shape
    assert frames.dtype == want.dtype
    assert relative_error(frames, want) < BOUND
    sent = [group.sent_bytes for group in groups]
    if kind in ALONE:
        assert not any(sent)
        assert torch.equal(frames, want)
        return
    assert sum(sent) > 0
    share = found[0][1].predicted_peak_bytes
    # Of fewer rows halos are most; and torch's operators take im2col where rows are few (of all
    # combinations, hunyuan's and ltx_causal's decodes do).
    if rows >= 2 * ranks and backend != "torch":
        assert share < alone.predicted_peak_bytes


# In the gate a third of the kinds, as in test_workers.py and test_sent_source.py.
WAYS = ((2, 3, 4), ("auto", "torch"))


@pytest.mark.parametrize(
    ("kind", "ranks", "backend"), how_much.covering(how_much.dealt(EVERY_KIND, 2, 3), *WAYS)
)
def test_ranks_make_what_one_device_makes(kind: str, ranks: int, backend: str) -> None:
    compared(kind, False, ranks, 8, backend)


@pytest.mark.parametrize(
    ("kind", "ranks", "backend"), how_much.covering(how_much.dealt(EVERY_KIND, 0, 3), *WAYS)
)
def test_ranks_encode_what_one_device_encodes(kind: str, ranks: int, backend: str) -> None:
    compared(kind, True, ranks, 8, backend)


def test_ranks_meet_three_times_before_they_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    told, begin, enter = list[str](), Meeting.__init__, SharedRun._enter

    def begun(meeting: Meeting, group: Group, about: str, *given: Any) -> None:
        if not group.rank:
            told.append(about)
        begin(meeting, group, about, *given)

    def entered(run: SharedRun, step: Any) -> Any:
        if not run.group.rank:
            told.append("a step")
        return enter(run, step)

    monkeypatch.setattr(Meeting, "__init__", begun)
    monkeypatch.setattr(SharedRun, "_enter", entered)
    source = torch.cat([source_of(family_of("wan", vae_of("wan")), False, 1, 4, 5)] * 2)
    in_ranks(3, lambda group: run("wan", False, source, group=group))
    first, last = "frames (0, 1) of sample {0}", "the end of sample {0}"
    samples = [text.format(n) for n in (0, 1) for text in ("a step", first, last)]
    beginning = ["the beginning of a decode", "a plan", "its first step"]
    assert told == [*beginning, *samples, "its end"]


def test_of_resume_keys_rank_0s_alone_counts() -> None:
    vae = family_of("wan", vae_of("wan"))
    source = source_of(vae, False, 2, 8, 5)
    keys = None, {"dtype": "bfloat77", "strategy": "tiled", "parameters": {}}

    def work(group: Group) -> Any:
        return _execute(vae, source, DecodeRequest(resume_key=keys[group.rank], group=group))[0]

    found, _ = in_ranks(2, work)
    assert relative_error(found[0], decode(vae, source)) < BOUND


@pytest.mark.parametrize("kind", ["hunyuan", "ltx095"])
def test_a_rank_records_its_layers_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told, record = list[Any](), jobs.record
    monkeypatch.setattr(jobs, "record", lambda *given: told.append(given) or record(*given))
    source = source_of(family_of(kind, vae_of(kind)), False, 2, 8, 5)
    in_ranks(2, lambda group: run(kind, False, source, group=group))
    assert len(told) == 2


@pytest.mark.parametrize("kind", ["wan22", "ltx"])
def test_what_a_function_of_frames_makes_beside_its_slice_is_planned(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are copied to their place among those that a convolution reads."""
    real, told = SharedRun._map, list[tuple[int, int]]()

    def mapped(run: SharedRun, step: Any) -> Any:
        made = real(run, step)
        own, rows = step.rows[1] - step.rows[0], made[0].shape[3]
        if rows > own:
            told.append((step.workspace_bytes, made[0].nbytes // rows * own))
        return made

    monkeypatch.setattr(SharedRun, "_map", mapped)
    source = source_of(family_of(kind, vae_of(kind)), True, 2, 8, 5)
    in_ranks(2, lambda group: run(kind, True, source, strategy="streamed", group=group))
    assert len(told) >= 2
    assert all(planned >= part for planned, part in told)


UNEQUAL = (("hunyuan", "wan", "ltx095", "image"), (3, 4, 2), (1, 2, 3, 5, 7))


@pytest.mark.parametrize(("kind", "ranks", "rows"), how_much.covering(*UNEQUAL))
def test_rows_that_can_not_be_shared_equally(kind: str, ranks: int, rows: int) -> None:
    compared(kind, False, ranks, rows, "auto")


@pytest.mark.parametrize(
    "kind",
    how_much.of(("hunyuan", "wan22"), ("hunyuan", "hunyuan15", "wan22", "ltx_causal", "image")),
)
def test_in_float64_nothing_but_rounding_is_left(kind: str) -> None:
    """A row that came from the wrong place would be off by 2^29 times as much."""
    vae = family_of(kind, tiny_vae(kind).double())
    source = source_of(vae, False, 1 if vae.is_image else 2, 8, 5).double()
    want = decode(vae, source, strategy="streamed")
    found, _ = in_ranks(3, lambda group: decode(vae, source, strategy="streamed", group=group))
    assert found[0].dtype == torch.float64
    assert relative_error(found[0], want) < 64 * torch.finfo(torch.float64).eps


def test_a_group_is_made_once_of_a_process_group_and_one_rank_is_none() -> None:
    cpu = torch.device("cpu")
    assert group_of(None, cpu) is None
    with pytest.raises(TypeError, match="give a process group"):
        group_of("cuda:1", cpu)
    found, groups = in_ranks(2, lambda group: group_of(group, cpu))
    assert found == groups
    assert in_ranks(1, lambda group: group_of(group, cpu))[0] == [None]


def test_a_card_with_more_memory_takes_more_rows() -> None:
    """Half of the rows do not fit rank 1, a seventh of them do."""
    vae = family_of("hunyuan", vae_of("hunyuan"))
    source = source_of(vae, False, 3, 20, 24)
    want, alone = decode_with_report(vae, source, strategy="streamed")
    half = in_ranks(2, lambda g: decode_with_report(vae, source, group=g))[0][0][1]
    less = half.predicted_peak_bytes - (2 << 20)
    budgets = 4 * alone.predicted_peak_bytes, less
    found, groups = in_ranks(2, lambda g: decode_with_report(vae, source, budgets[g.rank], group=g))
    frames, report = found[0]
    assert relative_error(frames, want) < BOUND
    assert "the ranks may take" in report.budget_rule
    assert half.predicted_peak_bytes < report.predicted_peak_bytes  # rank 0 has the most
    assert all(group.sent_bytes for group in groups)


def test_a_budget_that_no_ratio_of_rows_fits_is_every_rank_s() -> None:
    vae = family_of("hunyuan", vae_of("hunyuan"))
    source = source_of(vae, False, 3, 10, 7)
    with pytest.raises(BudgetTooSmallError):
        in_ranks(2, lambda g: decode(vae, source, (1 << 30, 1000)[g.rank], group=g))
