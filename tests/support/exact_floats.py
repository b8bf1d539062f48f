"""binary16, binary32 and binary64 by exact rationals: every result is rounded once, to nearest
even, by the definition of the format and not by this machine's floating-point unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

# Of a width: (bits of the fraction, bias)
_FORMATS = {16: (10, 15), 32: (23, 127), 64: (52, 1023)}


@dataclass(frozen=True)
class Float:
    """A floating-point number by its bits, so that signs of zeros and payloads of NaN are kept."""

    bits: int
    width: int

    @property
    def negative(self) -> bool:
        return bool(self.bits >> (self.width - 1))

    @property
    def exponent(self) -> int:
        """The field, with its bias."""
        fraction, _ = _FORMATS[self.width]
        return self.bits >> fraction & ((1 << (self.width - 1 - fraction)) - 1)

    @property
    def fraction(self) -> int:
        return self.bits & ((1 << _FORMATS[self.width][0]) - 1)

    @property
    def is_special(self) -> bool:
        return self.exponent == (1 << (self.width - 1 - _FORMATS[self.width][0])) - 1

    @property
    def is_nan(self) -> bool:
        return self.is_special and self.fraction != 0

    @property
    def is_signalling(self) -> bool:
        return self.is_nan and not self.fraction >> (_FORMATS[self.width][0] - 1)

    @property
    def is_infinite(self) -> bool:
        return self.is_special and self.fraction == 0

    @property
    def is_denormal(self) -> bool:
        return self.exponent == 0 and self.fraction != 0

    @property
    def is_zero(self) -> bool:
        return self.bits & ~(1 << (self.width - 1)) == 0

    @property
    def value(self) -> Fraction:
        """Of a finite number."""
        bits, bias = _FORMATS[self.width]
        whole = self.fraction | (1 << bits if self.exponent else 0)
        power = max(self.exponent, 1) - bias - bits
        made = Fraction(whole) * (Fraction(2) ** power)
        return -made if self.negative else made

    @property
    def quieted(self) -> Float:
        return Float(self.bits | 1 << (_FORMATS[self.width][0] - 1), self.width)

    def negated(self) -> Float:
        return Float(self.bits ^ 1 << (self.width - 1), self.width)

    def absolute(self) -> Float:
        return Float(self.bits & ~(1 << (self.width - 1)), self.width)

    def to(self, width: int) -> Float:
        """Converted; a NaN becomes quiet."""
        if width == self.width:
            return self
        if self.is_nan:
            return nan(width)
        if self.is_infinite:
            return infinity(width, self.negative)
        return rounded(self.value, width, self.negative)


def nan(width: int) -> Float:
    return infinity(width).quieted


def infinity(width: int, negative: bool = False) -> Float:
    bits = _FORMATS[width][0]
    return Float(((1 << (width - 1 - bits)) - 1) << bits | negative << (width - 1), width)


def zero(width: int, negative: bool = False) -> Float:
    return Float(negative << (width - 1), width)


def rounded(value: Fraction, width: int, negative_zero: bool = False) -> Float:
    """The nearest number; negative_zero: the sign of a result that is zero exactly."""
    if value == 0:
        return zero(width, negative_zero)
    bits, bias = _FORMATS[width]
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    quantum = max(exponent, 1 - bias) - bits
    steps = round(size / Fraction(2) ** quantum)  # Python rounds halves to even
    # One more than the largest fraction carries into the exponent, as the bits do.
    field = max(quantum + bits + bias - 1, 0)
    made = (field << bits) + steps
    made = min(made, infinity(width).bits)
    return Float(made | (value < 0) << (width - 1), width)


def fma(a: Float, b: Float, c: Float) -> Float:
    width = a.width
    if a.is_nan or b.is_nan or c.is_nan:
        return nan(width)
    negative = a.negative != b.negative
    if a.is_infinite or b.is_infinite:
        if a.is_zero or b.is_zero or (c.is_infinite and c.negative != negative):
            return nan(width)
        return infinity(width, negative)
    if c.is_infinite:
        return c
    # A sum that is zero exactly is -0 only where both parts are negative zeros.
    return rounded(a.value * b.value + c.value, width, negative and c.negative)


def add(a: Float, b: Float) -> Float:
    width = a.width
    if a.is_nan or b.is_nan or (a.is_infinite and b.is_infinite and a.negative != b.negative):
        return nan(width)
    if a.is_infinite or b.is_infinite:
        return a if a.is_infinite else b
    return rounded(a.value + b.value, width, a.negative and b.negative)


def mul(a: Float, b: Float) -> Float:
    width, negative = a.width, a.negative != b.negative
    if a.is_nan or b.is_nan or (a.is_infinite and b.is_zero) or (a.is_zero and b.is_infinite):
        return nan(width)
    if a.is_infinite or b.is_infinite:
        return infinity(width, negative)
    return rounded(a.value * b.value, width, negative)


def div(a: Float, b: Float) -> Float:
    width, negative = a.width, a.negative != b.negative
    if a.is_nan or b.is_nan or (a.is_infinite and b.is_infinite) or (a.is_zero and b.is_zero):
        return nan(width)
    if a.is_infinite or b.is_zero:
        return infinity(width, negative)
    if b.is_infinite:
        return zero(width, negative)
    return rounded(a.value / b.value, width, negative)


def scaled(a: Float, power: int) -> Float:
    """a * 2 ** power."""
    if a.is_special or a.is_zero:
        return a.quieted if a.is_nan else a
    return rounded(a.value * Fraction(2) ** max(-5000, min(5000, power)), a.width, a.negative)


def trunc(a: Float) -> Float:
    if a.is_special:
        return a.quieted if a.is_nan else a
    return rounded(Fraction(math.trunc(a.value)), a.width, a.negative)


def floor(a: Float) -> Float:
    if a.is_special:
        return a.quieted if a.is_nan else a
    return rounded(Fraction(math.floor(a.value)), a.width, a.negative)


def extreme(a: Float, b: Float, operator: str) -> Float:
    """The larger (">") or the smaller of two numbers; of a number and a NaN the number; -0 is less
    than +0."""
    if a.is_nan or b.is_nan:
        return b if a.is_nan else a
    if a.is_zero and b.is_zero:
        return a if a.negative == (operator == "<") else b
    return a if compare(a, operator, b) else b


def sqrt(a: Float) -> Float:
    if a.is_nan or (a.negative and not a.is_zero):
        return nan(a.width)
    if a.is_zero or a.is_infinite:
        return a
    # Of a number scaled to more bits than any rounding needs: a root is no midpoint of two numbers.
    root = math.isqrt((a.value.numerator << 2400) // a.value.denominator)
    return rounded(Fraction(root, 1 << 1200), a.width)


def exp2(a: Float) -> Float:
    """Correct to about half a unit in the last place of binary32."""
    if a.is_nan:
        return nan(a.width)
    if a.is_infinite:
        return zero(a.width) if a.negative else a
    whole = math.floor(a.value)
    if not -200 < whole < 200:
        return zero(a.width) if whole < 0 else infinity(a.width)
    part = Fraction(2.0 ** float(a.value - whole))
    return rounded(part * Fraction(2) ** whole, a.width)


def compare(a: Float, operator: str, b: Float) -> bool:
    """<> is "less or greater", which a NaN is not; != is what == is not."""
    if a.is_nan or b.is_nan:
        return operator == "!="
    x, y = (_order(v) for v in (a, b))
    return {"==": x == y, "!=": x != y, "<>": x != y, "<": x < y, "<=": x <= y, ">": x > y,
            ">=": x >= y}[operator]  # fmt: skip


def _order(a: Float) -> tuple[int, Fraction]:
    if a.is_infinite:
        return (-1 if a.negative else 1), Fraction(0)
    return 0, a.value


def to_integer(a: Float, low: int, high: int) -> int:
    """Towards zero, saturated; NaN is 0."""
    if a.is_nan:
        return 0
    if a.is_infinite:
        return low if a.negative else high
    return max(low, min(high, math.trunc(a.value)))
