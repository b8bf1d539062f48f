"""Which rules a line may be for: an index of their words, so that a line costs its length."""

from __future__ import annotations

from collections import Counter

from hy3d_rocm.diagnose.rule import Rule

_GRAM = 4


def _grams(text: str) -> set[str]:
    return {text[at : at + _GRAM] for at in range(len(text) - _GRAM + 1)}


class WordIndex:
    """Each word is found by the four letters of it that the fewest words share."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        ids: dict[str, list[str]] = {}
        for rule in rules:
            for word in rule.words:
                ids.setdefault(word, []).append(rule.id)
        shared = Counter(gram for word in ids for gram in _grams(word))
        self._short = [row for row in ids.items() if len(row[0]) < _GRAM]
        self._by_gram: dict[str, list[tuple[str, list[str]]]] = {}
        for word, names in ids.items():
            if len(word) >= _GRAM:
                rarest = min(sorted(_grams(word)), key=lambda gram: shared[gram])
                self._by_gram.setdefault(rarest, []).append((word, names))

    def rules_in(self, low: str) -> set[str]:
        """The ids of the rules of which a word is in `low`, a line in lower case."""
        found = {name for word, names in self._short if word in low for name in names}
        for gram in _grams(low) & self._by_gram.keys():
            for word, names in self._by_gram[gram]:
                if word in low:
                    found.update(names)
        return found
