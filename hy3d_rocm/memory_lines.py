"""Sentences about memory, and the cap that a user asks for. Pure: no torch, no device."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal

from hy3d_rocm.diagnose.env.shown import printable
from hy3d_rocm.units import GB, short_text, size_text

CAP_GB = "HY3D_ROCM_MAX_VRAM_GB"
CAP_SHARE = "HY3D_ROCM_MAX_VRAM_SHARE"
MIN_CAP_BYTES = GB // 2  # below it not even the GPU's libraries can work

# What `limit` is: a cap on this process, all of the card's memory, all of the host's.
Kind = Literal["limit", "card", "host"]
_OF = {"limit": "{} limit", "card": "the card's {}", "host": "the host's {}"}


def stage_line(
    stage: str, free: int, allocated: int, limit: int | None, kind: Kind = "limit"
) -> str:
    """`[Before VAE Load] Free: 18.2 GB | Allocated: 1.8 GB (9.0% of 20GB limit)`.

    free, allocated, limit: bytes; kind: what the limit is. A limit of None or 0 (nobody knows the
    total) leaves the parenthesis out. A negative `free`, of a process above its cap, is shown as 0.
    """
    head = f"[{' '.join(stage.split())}] Free: {max(free, 0) / GB:.1f} GB"
    body = f"Allocated: {allocated / GB:.1f} GB"
    if not limit:
        return f"{head} | {body}"
    share = 100 * allocated / limit
    return f"{head} | {body} ({share:.1f}% of {_OF[kind].format(short_text(limit))})"


def wanted_cap(environ: Mapping[str, str], total: int) -> tuple[int | None, list[str]]:
    """The cap in bytes that the two variables ask for on a card of `total` bytes, and sentences.

    None: nothing is asked for, or nothing that makes sense; each senseless value is a sentence.
    With both variables set the smaller cap counts. A cap as large as the card is no cap.
    """
    caps: list[int] = []
    said: list[str] = []
    for name, parse in ((CAP_GB, _bytes_of_gb), (CAP_SHARE, _bytes_of_share)):
        text = environ.get(name, "").strip()
        if not text:
            continue
        cap = parse(text, total)
        if isinstance(cap, str):
            said.append(f"{name}={printable(text, 60)} is passed over: {cap}")
        else:
            caps.append(cap)
    if len(caps) == 2 and caps[0] != caps[1]:
        said.append(f"{CAP_GB} and {CAP_SHARE} are both set: the smaller cap counts")
    cap = min(caps, default=total)
    return (cap if cap < total else None), said


def _bytes_of_gb(text: str, total: int) -> int | str:
    match = re.fullmatch(r"([0-9.]+)\s*(?:g|gb|gib)?", text.lower())
    number = _number(match[1]) if match else None
    if number is None:
        return 'give a number of GB (2**30 bytes) such as "20" or "19.5"'
    if number * GB > total:
        return f"the card has only {short_text(total)}"
    return _checked(round(number * GB))


def _bytes_of_share(text: str, total: int) -> int | str:
    percent = text.endswith("%")
    number = _number(text.rstrip("% "))
    if number is None or not 0 < (share := number / 100 if percent else number) <= 1:
        return 'give a share of the card such as "0.85" or "85%"'
    return _checked(round(share * total))


def _checked(cap: int) -> int | str:
    if cap < MIN_CAP_BYTES:
        return f"that is {size_text(cap)}, and nothing works below {size_text(MIN_CAP_BYTES)}"
    return cap


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
