"""AMD's GPUs by their architecture (cards.toml)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from hy3d_rocm.diagnose.tables import any_of, read


@dataclass(frozen=True)
class Card:
    """See the head of cards.toml."""

    architecture: str
    names: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    override: str = ""
    kind: Literal["", "beside", "apu"] = ""
    never_meant: bool = False
    has_wheels: bool = True

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return any_of(self.names or ("(?!)",))


@cache
def cards() -> dict[str, Card]:
    """By their architectures."""
    rows = read(Path(__file__).with_name("cards.toml"), Card)[1]
    return {card.architecture: card for card in rows}


def has_wheels(architecture: str) -> bool:
    """Whether ROCm has wheels for it on Windows; False for one that cards.toml does not know."""
    return architecture in cards() and cards()[architecture].has_wheels


def architecture_of(name: str, device: str) -> str:
    """ "gfx1100" by what the PCI bus calls a GPU ("744c"), else by its name; "" for another."""
    by_device = (a for a, card in cards().items() if device.lower() in card.devices)
    by_name = (a for a, card in cards().items() if card.pattern.search(name))
    return next(by_device, "") or next(by_name, "")
