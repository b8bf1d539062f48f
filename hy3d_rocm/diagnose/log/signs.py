"""Signs of what a log shows beside its faults, from signs.toml."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from hy3d_rocm.diagnose.log.read import without_prefix
from hy3d_rocm.diagnose.tables import read


def any_of(patterns: Iterable[str], flags: int = re.IGNORECASE) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), flags)


@dataclass(frozen=True)
class Sign:
    """See the head of signs.toml."""

    name: str
    words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    exact: bool = False
    bare: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return any_of(self.patterns, 0 if self.exact else re.IGNORECASE)

    def has_word(self, low: str) -> bool:
        return any(word in low for word in self.words)

    def shown(self, text: str, low: str) -> bool:
        """Whether a line shows it. `low`: the text in lower case."""
        if self.words and not self.has_word(low):
            return False
        seen = without_prefix(text) if self.bare else text
        return not self.patterns or self.pattern.search(seen) is not None


@cache
def signs() -> dict[str, Sign]:
    """By their names."""
    _, found = read(Path(__file__).with_name("signs.toml"), Sign)
    return {sign.name: sign for sign in found}
