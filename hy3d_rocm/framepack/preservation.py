"""How much of the card is left free for the activations of FramePack's transformer. Pure.

Upstream takes it as an input, `gpu_memory_preservation`, and fills the rest with weights. Too
little ends in an out-of-memory error, too much makes every step fetch weights from main memory.
Here the first section begins with a cautious share of what is free, and each finished section
says what it really took.

It never swings. A value shrinks only down to what the largest need seen so far asks for, and once
it has grown (a section ran out of memory, or nearly) it never shrinks again in this run: so the
direction changes at most once, whatever the sections say.

And what to begin with on a card (specification 003): the length of a video and the memory to
preserve. FramePack's sections take the same memory whatever the length, so the length is bounded by
main memory, where the finished frames and the weights wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hy3d_rocm.units import GB, MB, size_text

UPSTREAM_DEFAULT_GB = 6.0
# Specification 003: 18 GB of a 24 GB card. Where PyTorch has no fused attention, one attention of
# FramePack's 19 thousand tokens takes most of it.
START_SHARE = 0.75
START_MOST_BYTES = 18 * GB
LEAST_BYTES = 1 * GB
BAND_BYTES = 512 * MB  # a change below it isn't worth moving weights for


@dataclass(frozen=True)
class Preservation:
    """What is to be left free now, and what is known about it.

    preserved_bytes: above the resident weights. limit_bytes: the most there is: no weight
    resident. least_bytes: never less (the user's own value). need_bytes: the largest seen.
    grown: whether it had to grow. reason: how the value came about, in a few words.
    """

    preserved_bytes: int
    limit_bytes: int
    least_bytes: int = LEAST_BYTES
    need_bytes: int = 0
    grown: bool = False
    reason: str = ""

    @property
    def exhausted(self) -> bool:
        """Whether there is nothing left to give: no weight is resident any more."""
        return self.preserved_bytes >= self.limit_bytes

    def line(self) -> str:
        return f"FramePack keeps {size_text(self.preserved_bytes)} free: {self.reason}"


def users_choice(value_gb: float, default_gb: float = UPSTREAM_DEFAULT_GB) -> int | None:
    """Bytes if the input differs from upstream's default, which is nobody's choice; else None."""
    return None if value_gb == default_gb else max(round(value_gb * GB), 0)


def begin(
    free_bytes: int, wanted_bytes: int | None = None, known: Preservation | None = None
) -> Preservation:
    """The value for the first section.

    free_bytes: what is free on the card with no weight of the transformer on it.
    wanted_bytes: the user's own value: it is taken, and only grows. known: how an earlier run of
    the same shapes ended.
    """
    limit = max(free_bytes, 1)
    if wanted_bytes is not None:
        kept = min(wanted_bytes, limit)
        return Preservation(kept, limit, kept, reason="the node's own value")
    if known is not None and known.need_bytes:
        grown_to = known.preserved_bytes if known.grown else 0
        kept = min(max(target_bytes(known.need_bytes), grown_to), limit)
        what = f"earlier sections took {size_text(known.need_bytes)}"
        return Preservation(kept, limit, LEAST_BYTES, known.need_bytes, known.grown, what)
    kept = min(int(START_SHARE * limit), START_MOST_BYTES)
    what = f"{START_SHARE:.0%} of the {size_text(limit)} that are free"
    if kept == START_MOST_BYTES:
        what = "no section has been measured yet"
    return Preservation(max(kept, min(LEAST_BYTES, limit)), limit, reason=what)


def after(
    now: Preservation, need_bytes: int, retries: int = 0, out_of_memory: bool = False
) -> Preservation:
    """The value for the next section, or for the same one again after it ran out of memory.

    need_bytes: the most that the section had allocated above the weights resident at its begin.
    retries: how often the allocator had to give back its cache to get memory. out_of_memory:
    whether the section ended by that; need_bytes is then what it had reached.
    """
    need = max(now.need_bytes, need_bytes)
    wanted = target_bytes(need)
    seen = replace(now, need_bytes=need)
    if out_of_memory:
        # What failed was asked for on top of what it had reached, by how much nobody knows; and
        # each further attempt costs up to a section's time, so the steps are large.
        step = max(now.preserved_bytes // 2, 2 * GB)
        return _grow(seen, max(wanted, now.preserved_bytes + step), "the section ran out of memory")
    if retries:
        step = max(now.preserved_bytes // 8, BAND_BYTES)
        return _grow(seen, max(wanted, now.preserved_bytes + step), "memory was nearly used up")
    took = f"a section took {size_text(need)}"
    if wanted > now.preserved_bytes:
        return _grow(seen, wanted, took)
    if not now.grown and now.preserved_bytes - wanted > BAND_BYTES:
        kept = min(max(wanted, now.least_bytes), now.preserved_bytes)
        return replace(seen, preserved_bytes=kept, reason=took)
    return seen


def target_bytes(need_bytes: int) -> int:
    """What to leave free for a measured need: an eighth more, and half a GB, for the allocator's
    rounding and the weights that are on their way."""
    return max(need_bytes + need_bytes // 8 + BAND_BYTES, LEAST_BYTES)


def _grow(now: Preservation, wanted: int, reason: str) -> Preservation:
    kept = max(min(wanted, now.limit_bytes), now.preserved_bytes)
    if kept == now.preserved_bytes:
        return now
    return replace(now, preserved_bytes=kept, grown=True, reason=reason)


WEIGHTS_BYTES = 24 * GB  # 13 thousand million parameters of two bytes
# 30 frames of 640 x 608 in three colours of float32: what one second of video holds.
SECOND_BYTES = 30 * 640 * 608 * 3 * 4
SMALL_CARD_BYTES = 10 * GB
# Seconds and what they are: a first try of two sections (18 latent frames are 69 of video), and of
# one where main memory is scarce.
TRIAL, SHORT_TRIAL = "2.4 s (two sections, 69 frames)", "1 s (one section, 33 frames)"


@dataclass(frozen=True)
class Recommendation:
    """Lengths in seconds: to begin with, if that is stable (from, to), if it is not (from, to).

    preserved_bytes: in the first section, of free_bytes; more_bytes: if it is not stable. fits:
    whether all weights can stay on the card beside that. trial: what shows whether all holds.
    """

    trial: str
    first: int
    stable: tuple[int, int]
    unstable: tuple[int, int]
    preserved_bytes: int
    free_bytes: int
    more_bytes: int
    fits: bool

    def text(self) -> str:
        share = round(100 * self.preserved_bytes / self.free_bytes) if self.free_bytes else 100
        weights = "all weights stay on the card" if self.fits else "the other weights are swapped"
        kept, free = size_text(self.preserved_bytes), size_text(self.free_bytes)
        return (
            f"{kept}, {share} % of the {free} that are free, are kept free in the first section, "
            f"then what sections take; {weights}. "
            f"Try {self.trial} first, then {self.first} s; {_span(self.stable)} s if that is "
            f"stable, else {_span(self.unstable)} s with "
            f"{self.more_bytes / GB:.0f} GB preserved"
        )


def recommend(free_bytes: int, total_bytes: int, host_free_bytes: int) -> Recommendation:
    """For a card with `free_bytes` of `total_bytes` free (a cap counts) and that much main memory
    available. The lengths shrink with main memory down to 1 second."""
    preserved = begin(free_bytes).preserved_bytes
    small = total_bytes < SMALL_CARD_BYTES
    first, stable, unstable = (3, (5, 5), (1, 3)) if small else (5, (10, 15), (3, 5))
    waiting = max(host_free_bytes - WEIGHTS_BYTES, host_free_bytes // 4)
    most = max(int(waiting // (2 * SECOND_BYTES)), 1)  # joining two parts holds the frames twice
    return Recommendation(
        TRIAL if most >= 3 else SHORT_TRIAL,
        min(first, most),
        _within(stable, most),
        _within(unstable, most),
        preserved,
        free_bytes,
        min(preserved + LEAST_BYTES, max(free_bytes, preserved)),
        free_bytes - preserved >= WEIGHTS_BYTES,
    )


def _within(span: tuple[int, int], most: int) -> tuple[int, int]:
    return min(span[0], most), min(span[1], most)


def _span(span: tuple[int, int]) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"
