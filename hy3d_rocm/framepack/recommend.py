"""What to begin with on a card: the length of a video and the memory to preserve. Pure.

The order of the lengths is specification 003's: 5 seconds first, 10 to 15 if that is stable, 3 to 5
with more memory preserved if it is not. FramePack's sections take the same memory whatever the
length, so the length is bounded by main memory, where the finished frames and the weights wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from hy3d_rocm.framepack.preservation import LEAST_BYTES, begin
from hy3d_rocm.units import GB, size_text

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
        """Two sentences."""
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
