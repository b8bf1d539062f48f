"""How a VAE is decoded (or encoded) under a budget, and why, in words. Pure.

Where the VAE's layers are known the C core takes a variant (compiled.py). Of a VAE's own code
(black_box.py), which runs without the core, too, choose() takes the first that fits. What a variant
needs is what is planned: predicted plus its allowance.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from hy3d_rocm.decoding.memory.budget import NO_LIMIT, Budget
from hy3d_rocm.decoding.plan import BudgetTooSmallError
from hy3d_rocm.units import MB, size_text

STRATEGIES = ("auto", "whole", "streamed", "tiled", "cpu")
# So many of a row are looked at though its smallest does not fit.
_BETWEEN = 4
# A larger budget is mentioned where it saves so many times the work.
_CLEARLY = 1.2


@dataclass(frozen=True)
class Need:
    """Bytes that a variant takes at its peak, on the budget's device and on the host (0 where that
    is the device). macs: multiply-accumulates, 0 where nobody counted. unknown: why it could not be
    predicted, "" where it was; the bytes are then the least that it can be. prepared_bytes: more on
    the host that makes it faster, as far as there is room, and stays for the next decode. seconds:
    estimated with nominal rates, to compare candidates; 0.0 where nobody did. stored_bytes,
    loaded_bytes: copied to the host and back meanwhile."""

    device_bytes: int
    host_bytes: int = 0
    macs: int = 0
    unknown: str = ""
    prepared_bytes: int = 0
    seconds: float = 0.0
    stored_bytes: int = 0
    loaded_bytes: int = 0

    def text(self) -> str:
        """ "8.90 GB", "8.90 GB and 3.10 GB on the host", or "3.10 GB on the host"."""
        text, host = (size_text(n, 2) for n in (self.device_bytes, self.host_bytes))
        if self.host_bytes:
            text = f"{text} and {host}" if self.device_bytes else host
            text += " on the host"
        return f"at least {text}" if self.unknown else text


@dataclass(frozen=True)
class Variant:
    """A strategy with its parameters.

    strategy: one of STRATEGIES but "auto". what: in a few words what is special about it, for
    sentences ("with tiles of 256 pixels"). parameters: what its frames depend on. again: a last
    resort, planned only after nothing else of its strategy fitted. resident_bytes: what it holds on
    the device, at the cost of host memory; None for all. row: variants in a row of the same name
    and strategy need less and less, so not each of them has to be looked at; "" for none.
    """

    strategy: str
    what: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False
    resident_bytes: int | None = None
    row: str = ""

    @property
    def name(self) -> str:
        return f"{self.strategy} {self.what}".strip()

    def describe(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "way": self.name, "strategy": self.strategy, "parameters": dict(self.parameters),
            "resident_bytes": self.resident_bytes,
        }  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A variant that was looked at. need: None where it is not known (`note` says why)."""

    variant: Variant
    need: Need | None
    fits: bool
    note: str = ""

    def describe(self) -> dict[str, Any]:
        """JSON-able."""
        sizes = ("device_bytes", "host_bytes", "macs", "seconds", "stored_bytes", "loaded_bytes")
        values = {name: getattr(self.need, name, None) for name in sizes}
        macs, seconds = values.pop("macs"), values["seconds"]
        values["gmacs"] = None if macs is None else round(macs / 1e9, 3)
        values["seconds"] = None if seconds is None else round(seconds, 4)
        return {**self.variant.describe(), **values, "fits": self.fits, "note": self.note}


@dataclass(frozen=True)
class Plan:
    """The variant that is taken. reason: a sentence. candidates: all that were looked at, in order.
    need: at its peak, prepared weights left aside; prepared_bytes of these at most, as far as the
    budget has room. cheaper: what a larger budget would save, as sentences. more: of the reason
    what a line that has the variant, its peak and the budget does not say, "" if nothing. compiled:
    of a VAE whose layers are known, the Compiled (compiled.py) whose program is carried out."""

    variant: Variant
    need: Need
    budget: Budget
    candidates: tuple[Candidate, ...]
    cheaper: tuple[str, ...]
    compiled: Any
    reason: str = ""
    more: str = ""

    @property
    def strategy(self) -> str:
        return self.variant.strategy

    @property
    def host_room(self) -> int:
        """Bytes of the budget on the host that the variant leaves."""
        need, budget = self.need, self.budget
        room = budget.host_bytes - need.host_bytes
        if budget.is_unified:
            room = min(room, budget.device_bytes - need.device_bytes - need.host_bytes)
        return max(room, 0)

    @property
    def prepared_bytes(self) -> int:
        return min(self.need.prepared_bytes, self.host_room)

    @property
    def peak(self) -> Need:
        """All that is taken at the peak, prepared weights included: what is reported everywhere."""
        kept, where = self.prepared_bytes, "host_bytes" if self.need.host_bytes else "device_bytes"
        peak = {where: getattr(self.need, where) + kept}
        return replace(self.need, **peak, prepared_bytes=kept)

    def line(self, *others: str) -> str:
        """For the log: the variant, its peak of the budget, and what more there is to say; others:
        sentences to go on with."""
        line = f"{self.variant.name}, planned peak {self.peak.text()} of {_room(self.budget)}"
        line += f"; {self.more}" if self.more else ""
        return ". ".join(sentence.removesuffix(".") for sentence in (line, *others) if sentence)

    def describe(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            **self.variant.describe(),
            "device_bytes": self.peak.device_bytes,
            "host_bytes": self.peak.host_bytes,
            "prepared_bytes": self.prepared_bytes,
            "gmacs": round(self.need.macs / 1e9, 3),
            "planned_again": self.variant.again,
            "reason": self.reason,
            "more": self.more,
            "cheaper": list(self.cheaper),
            "tiles": None if self.compiled is None else self.compiled.program.tiles,
            "candidates": [c.describe() for c in self.candidates],
        }


class DoesNotFitError(BudgetTooSmallError):
    """Nothing that was asked for fits; `smallest` is the least budget in bytes that would do."""


Predict = Callable[[Variant], Need]


def choose(
    variants: Iterable[Variant], budget: Budget, strategy: str, predict: Predict,
    excluded: Iterable[str] = (),
) -> Plan:  # fmt: skip
    """The first of `variants` that fits `budget`; of those of `strategy` unless it is "auto".

    variants: in the order of preference; looked at one by one, so it may be a generator. predict:
    what a variant takes, planned; ValueError (a sentence) where it can't be taken. excluded:
    sentences about variants that are not offered, for the error. Raises DoesNotFitError.
    """

    def look(variant: Variant) -> Candidate:
        try:
            need = predict(variant)
        except ValueError as error:
            return Candidate(variant, None, False, str(error))
        return Candidate(variant, need, budget.fits(need.device_bytes, need.host_bytes))

    looked: list[Candidate] = []
    offered = (variant for variant in variants if strategy in ("auto", variant.strategy))
    for _, row in groupby(
        offered, key=lambda variant: (variant.strategy, variant.row) if variant.row else variant
    ):
        looked += _first_of(row, look)
        if looked[-1].fits:
            return plan_of(looked, looked[-1], budget, strategy)
    raise nothing_fits(looked, budget, strategy, excluded)


def _first_of(row: Iterator[Variant], look: Callable[[Variant], Candidate]) -> list[Candidate]:
    """Of a row up to the first that fits, by halving, those that were looked at; where the last
    does not fit, some between are, since a smaller one may take more (see black_box._contained).
    The very first is looked at before there are others: it is the cheapest to look at, and to know
    the others may take decodes (families/unknown.py)."""
    variants = [next(row)]
    found = {0: look(variants[0])}
    if not found[0].fits:
        variants += row
    last = len(variants) - 1

    def fits(number: int) -> bool:
        if number not in found:
            found[number] = look(variants[number])
        return found[number].fits

    if fits(last):
        bisect_left(range(last), True, min(1, last), key=fits)
    else:
        step = max(-(-(last - 1) // _BETWEEN), 1)
        for number in range(step, last, step):
            fits(number)
    order = sorted(found)
    first = next((number for number in order if found[number].fits), last)
    return [found[number] for number in order if number <= first]


def plan_of(
    looked: list[Candidate], taken: Candidate, budget: Budget, strategy: str, compiled: Any = None
) -> Plan:
    """The plan that takes this candidate, of those that were looked at."""
    variant, need, besides = taken.variant, taken.need, tuple[str, ...]()
    assert need is not None
    plan = Plan(variant, need, budget, tuple(looked), _cheaper(looked, need, budget), compiled)
    reason, more = _reason([*(c for c in looked if not c.fits), taken], budget, strategy)
    if plan.prepared_bytes:
        besides = (
            f"{size_text(plan.prepared_bytes, 2)} of prepared weights come on top, which make it "
            "faster and stay for the next time until memory is asked for: "
            f"{plan.peak.text()} at the peak.",
        )
    reason, more = (" ".join([text, *besides, *plan.cheaper]).strip() for text in (reason, more))
    return replace(plan, reason=reason, more=more)


def _cheaper(looked: list[Candidate], taken: Need, budget: Budget) -> tuple[str, ...]:
    """What less of a budget costs: the least budget above this one with clearly less work, and the
    least with the least work, where these are two."""
    found: list[tuple[int, int, str]] = []  # budget, multiply-accumulates, variant
    for c in looked:
        if c.fits or c.need is None or c.need.unknown or not c.need.macs:
            continue
        least = smallest_budget(c.need, budget)
        # Else the host is short, or it failed.
        given = budget.device_bytes + budget.beside_bytes
        if least > given and taken.macs >= _CLEARLY * c.need.macs:
            found.append((least, c.need.macs, c.variant.name))
    if not found:
        return ()
    nearest, least = min(found), min(macs for _, macs, _ in found)
    best = min(entry for entry in found if entry[1] < least * _CLEARLY)
    return tuple(
        f"With {-(-size // MB)} MB: {name}, estimated {taken.macs / macs:.1f}x less work."
        for size, macs, name in dict.fromkeys((nearest, best))
    )


def _reason(looked: list[Candidate], budget: Budget, strategy: str) -> tuple[str, str]:
    """Why the last of `looked` was taken, and the same without its name, need and budget."""
    taken = looked[-1]
    assert taken.need is not None
    name, need, room = taken.variant.name, taken.need, _room(budget)
    message, rest = f"{name} needs {need.text()} and fits the budget of {room}", ""
    if need.unknown:
        message = rest = (
            f"what {name} takes can't be predicted ({need.unknown}), so it is tried, and smaller "
            f"parts after it where memory runs out; it needs {need.text()} of the budget of {room}"
        )
    if strategy != "auto":
        message += ", as asked for"
        rest += ", as asked for" if rest else "as asked for"
    before = [_refused(c) for c in _notable(looked[:-1])]
    if taken.variant.again:
        before.append("so it was planned once more")
    more = "; ".join(filter(None, [*before, rest]))
    return "; ".join([*before, message]) + ".", more and f"{more}."


def _notable(refused: list[Candidate]) -> list[Candidate]:
    """The first and the last of each strategy: a row of tiles needs no list."""
    kept = []
    for _, row in groupby(refused, key=lambda c: c.variant.strategy):
        first, *rest = row
        kept += [first, *rest[-1:]]
    return kept


def _refused(candidate: Candidate) -> str:
    if candidate.need is None:
        return f"{candidate.variant.name} can't be taken: {candidate.note}"
    note = f" ({candidate.note})" if candidate.note else ""
    return f"{candidate.variant.name} needs {candidate.need.text()}{note}"


def _room(budget: Budget) -> str:
    if budget.is_unified:
        return size_text(budget.device_bytes, 2)
    device, host = size_text(budget.device_bytes, 2), size_text(budget.host_bytes, 2)
    return device if budget.host_bytes >= NO_LIMIT else f"{device} ({host} on the host)"


def nothing_fits(
    looked: list[Candidate], budget: Budget, strategy: str, excluded: Iterable[str] = ()
) -> ValueError:
    """The sentence that says why, and what would do."""
    asked = "no strategy" if strategy == "auto" else f"the strategy {strategy!r}"
    advice = "decode fewer frames or a smaller picture"
    if strategy != "auto":
        advice = f'use strategy="auto", or {advice}'
    known = [(c, c.need, smallest_budget(c.need, budget)) for c in looked if c.need is not None]
    if not known:
        notes = [c.note if c.variant.name == strategy else _refused(c) for c in looked]
        why = "; ".join([*notes, *excluded]) or "there is no way to run it so"
        verb = "can" if strategy == "auto" else "can't"
        return ValueError(f"{asked} {verb} be taken for this VAE: {why}")
    # What was given up before all of it was counted needs more than is known of it.
    order = [(size, bool(need.unknown), need.host_bytes) for _, need, size in known]
    least, need, smallest = known[order.index(min(order))]
    given = [f"a budget of at least {smallest} bytes ({size_text(smallest, 2)})"]
    if not budget.is_unified and need.host_bytes > budget.host_bytes:
        host = (
            f"{size_text(need.host_bytes, 2)} of host memory where "
            f"{size_text(budget.host_bytes, 2)} may be taken"
        )
        given = [*given, host] if smallest else [host]
    verb = "fits" if strategy == "auto" else "does not fit"
    text = (
        f"{asked} {verb} the budget of {_room(budget)} ({budget.rule}): the least is "
        f"{least.variant.name}, which needs {need.text()}. Give {', and '.join(given)}"
    )
    sentence = "; ".join([text, *excluded, advice]) + "."
    return DoesNotFitError(sentence, budget.device_bytes, smallest)


def smallest_budget(need: Need, budget: Budget) -> int:
    """Bytes that the budget of the device would have to be for `need`, as it is given."""
    both = need.device_bytes + (need.host_bytes if budget.is_unified else 0)
    return both + budget.beside_bytes
