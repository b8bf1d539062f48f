"""What can be chosen about a decode, and what it says about itself afterwards."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


class DecodeCancelled(RuntimeError):  # noqa: N818  the field's word for it
    """The caller's `cancel` asked to stop; nothing of the result exists."""


@dataclass(frozen=True)
class DecodeOptions:
    """What decode() decides by itself unless told. Defaults: measured, docs/decode.md.

    statistic_passes: passes over all tiles that gather GroupNorm statistics before the one that
    makes frames. 0: each tile uses its own (one pass, chunks differ in brightness); each more
    brings the result closer to the whole decode and costs one more pass of the head. Without effect
    where a decoder has no norm over the whole video (Wan).
    halo_pixels: what is decoded beyond a spatial tile and dropped; None: the whole receptive field.
    overlap_pixels: what neighbouring tiles share and blend.
    level: a rung of the ladder instead of the one that the budget gives (0: whole).
    """

    statistic_passes: int = 1
    halo_pixels: int | None = 32
    overlap_pixels: int = 16
    min_tile_pixels: int = 32
    level: int | None = None

    def __post_init__(self) -> None:
        lowest = {
            "statistic_passes": 0,
            "halo_pixels": 0,
            "overlap_pixels": 0,
            "min_tile_pixels": 1,
            "level": 0,
        }
        for name, low in lowest.items():
            value = getattr(self, name)
            if value is None and name in ("halo_pixels", "level"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ValueError(
                    f"DecodeOptions.{name} is {value!r}; give a whole number of {low} or more"
                )


@dataclass(frozen=True)
class Step:
    """One grain of work, as `progress` gets it."""

    kind: str  # "whole", "trunk", "statistics" or "frames"
    sample: int  # batch item
    tile: int
    chunk: int
    frames: tuple[int, int]  # of the video, half open
    rows: tuple[int, int]
    columns: tuple[int, int]


@dataclass
class DecodeReport:
    """How a decode went. Bytes and seconds; `as_dict()` is JSON-able."""

    vae: str
    latent_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    device: str
    dtype: str
    budget_bytes: int
    budget_rule: str
    strategy: str = ""
    reason: str = ""
    level: int = 0
    plan: dict[str, Any] = field(default_factory=dict)
    whole_bytes: int = 0
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0
    seconds: float = 0.0
    planning_seconds: float = 0.0
    steps: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Everything, with tuples as lists."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
