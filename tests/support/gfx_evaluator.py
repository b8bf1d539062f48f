"""AMD's pseudo-code evaluated in Python, as a second reading of it beside the C of translate.py.

Integers are unbounded until a type is named; floats are exact rationals, rounded once an operation
(exact_floats.py). One lane at a time:

    after = evaluate(pcode.parse(text), State(sources=(1, 2, 0), d=0))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import exact_floats as exact
from exact_floats import Float

Value = Any  # int, Float or list


@dataclass
class State:
    """What an instruction reads and writes. out: the bit of this lane in a mask, or the carry."""

    sources: tuple[int, int, int]
    d: int
    lane: int = 0
    vcc: int = 0
    exec: int = 0
    scc: int = 0
    ieee: int = 0
    simm: int = 0
    out: int = 0
    variables: dict[str, Value] = field(default_factory=dict)


class _BreakError(Exception):
    pass


def evaluate(tree: list[Any], state: State) -> State:
    """Executes statements on a state, and returns it."""
    for node in tree:
        getattr(_Statements, node[0])(state, *node[1:])
    return state


def _wrapped(value: int, kind: tuple[str, int]) -> int:
    letter, bits = kind
    value &= (1 << bits) - 1
    return value - (1 << bits) if letter == "i" and value >> (bits - 1) else value


def _bits(value: Value) -> int:
    return value.bits if isinstance(value, Float) else int(value)


def _as(value: Value, kind: tuple[str, int]) -> Value:
    """The bits of a value as a type. Of a constant without bits, as INF, its value."""
    if kind[0] == "f":
        if isinstance(value, Float):
            return value.to(kind[1])
        return Float(_bits(value) & ((1 << kind[1]) - 1), kind[1])
    return _wrapped(_bits(value), kind)


class _Statements:
    @staticmethod
    def set(s: State, target: Any, operator: str, node: Any, also: Any = None) -> None:
        if operator != "=":
            node = ("op", operator[:-1], target, node)
        value = _value(s, node)
        for to in (target, also):
            if to is not None:
                _store(s, to, value)

    @staticmethod
    def declare(s: State, name: str, kind: Any, count: int | None) -> None:
        s.variables[name] = 0 if count is None else [0] * count

    @staticmethod
    def break_(s: State) -> None:
        raise _BreakError

    @staticmethod
    def for_(s: State, name: str, first: Any, last: Any, body: list[Any]) -> None:
        for k in range(_value(s, first), _value(s, last) + 1):
            s.variables[name] = k
            try:
                evaluate(body, s)
            except _BreakError:
                return

    @staticmethod
    def if_(s: State, branches: list[Any]) -> None:
        for condition, body in branches:
            if condition is None or _value(s, condition):
                evaluate(body, s)
                return


for _name in ("break", "for", "if"):
    setattr(_Statements, _name, getattr(_Statements, f"{_name}_"))


def _typed(value: Value, kind: tuple[str, int]) -> int:
    """The bits of a value that is assigned to a place of a type."""
    if kind[0] == "f":
        made = value if isinstance(value, Float) else exact.rounded(exact.Fraction(value), kind[1])
        return made.to(kind[1]).bits
    return _bits(value) & ((1 << kind[1]) - 1)


def _store(s: State, target: Any, value: Value) -> None:
    kind = None
    if target[0] == "of":
        _, target, kind = target
    if target[0] == "join":  # { D1.u1, D0.u64 }
        s.d, s.out = value & (1 << 64) - 1, value >> 64 & 1
        return
    if target[0] == "slice":
        base, high, low = target[1:]
        base = base[1] if base[0] == "of" else base
        if high == ("name", "laneId"):
            s.out = int(value) & 1
            return
        name, high = base[1], _value(s, high)
        if isinstance(s.variables.get(name), list):
            s.variables[name][high] = value
            return
        low = high if low is None else _value(s, low)
        ones = (1 << (high - low + 1)) - 1
        bits = (_typed(value, kind) if kind else _bits(value)) & ones
        old = s.d if name == "D0" else s.variables[name]
        made = old & ~(ones << low) | bits << low
        if name == "D0":
            s.d = made
        else:
            s.variables[name] = made
        return
    name = target[1]
    if name.startswith("TRAPSTS"):
        return
    if name == "SCC":
        s.scc = int(value) & 1
    elif name == "VCC":
        s.out = int(value) & 1
    elif name == "EXEC":
        s.exec = _typed(value, kind) if kind else value
    elif name == "D0":
        assert kind is not None
        bits = _typed(value, kind)
        s.d = s.d & ~((1 << kind[1]) - 1) | bits if kind[1] < 32 else bits
    else:
        s.variables[name] = _as(value, kind) if kind and not isinstance(value, Float) else value


def _value(s: State, node: Any) -> Value:
    return _READERS[node[0]](s, *node[1:])


def _name_of(s: State, name: str) -> Value:
    if name in s.variables:
        return s.variables[name]
    if name in ("S0", "S1", "S2"):
        return s.sources[int(name[1])]
    known = {
        "D0": s.d, "laneId": s.lane, "SCC": s.scc, "VCC": s.vcc, "EXEC": s.exec, "SIMM16": s.simm,
        "WAVE_MODE.IEEE": s.ieee, "INF": exact.infinity(64), "NAN": exact.nan(64),
        "UNDERFLOW_F32": exact.zero(32), "UNDERFLOW_F64": exact.zero(64),
        "OVERFLOW_F32": exact.infinity(32), "OVERFLOW_F64": exact.infinity(64),
    }  # fmt: skip
    return known[name]


def _slice(s: State, node: Any, high: Any, low: Any) -> Value:
    value = _value(s, node)
    top = _value(s, high)
    if isinstance(value, list):
        return value[top]
    bottom = top if low is None else _value(s, low)
    if top < bottom:
        digits = [_bits(value) >> k & 1 for k in range(top, bottom + 1)]
        return int("".join(map(str, digits)), 2)
    return _bits(value) >> bottom & ((1 << (top - bottom + 1)) - 1)


def _cast(s: State, kind: tuple[str, int], node: Any) -> Value:
    value = _value(s, node)
    if kind[0] == "f" and node[0] in ("int", "join"):  # the bits of a NaN; bits put together
        return Float(value, kind[1])
    if kind[0] == "f":
        if isinstance(value, Float):
            # A NaN of binary32 that is widened to be asked whether it signals keeps its kind.
            return value if value.is_nan else value.to(kind[1])
        return exact.rounded(exact.Fraction(value), kind[1])
    return _wrapped(value, kind)


def _neg(s: State, sign: str, node: Any) -> Value:
    value = _value(s, node)
    if sign == "!":
        return not value
    if sign == "~":
        return ~value
    return value.negated() if isinstance(value, Float) else -value


def _join(s: State, parts: list[Any]) -> int:
    made = 0
    for part in parts:
        width = part[2][1]  # of "of" and of "int"
        made = made << width | _bits(_value(s, part))
    return made


def _op(s: State, operator: str, left: Any, right: Any) -> Value:
    if operator == "&&":
        return bool(_value(s, left)) and bool(_value(s, right))
    if operator == "||":
        return bool(_value(s, left)) or bool(_value(s, right))
    if operator == "==" and right[:2] == ("of", ("name", "DENORM")):
        return _value(s, left).is_denormal
    if operator == "*":
        for number, power in ((left, right), (right, left)):
            if power[:2] == ("op", "**"):
                return exact.scaled(_value(s, number), _value(s, power[3]))
    x, y = _value(s, left), _value(s, right)
    if isinstance(x, Float) or isinstance(y, Float):
        return _of_floats(operator, x, y)
    return {
        "+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "&": lambda: x & y,
        "|": lambda: x | y, "^": lambda: x ^ y, "<<": lambda: x << y, ">>": lambda: x >> y,
        "==": lambda: x == y, "!=": lambda: x != y, "<>": lambda: x != y, "<": lambda: x < y,
        "<=": lambda: x <= y, ">": lambda: x > y, ">=": lambda: x >= y,
    }[operator]()  # fmt: skip


def _of_floats(operator: str, x: Value, y: Value) -> Value:
    width = max(v.width for v in (x, y) if isinstance(v, Float))
    x, y = (
        v.to(width) if isinstance(v, Float) else exact.rounded(exact.Fraction(v), width)
        for v in (x, y)
    )
    if operator in ("+", "-"):
        return exact.add(x, y if operator == "+" else y.negated())
    if operator in ("*", "/"):
        return (exact.mul if operator == "*" else exact.div)(x, y)
    return exact.compare(x, operator, y)


def _call(s: State, name: str, given: list[Any]) -> Value:
    values = [_value(s, node) for node in given]
    return _FUNCTIONS[name](*values)


def _signext(value: int) -> int:
    return value  # an integer here has its sign already


def _signext_from_bit(value: int, bits: int) -> int:
    return _wrapped(value, ("i", bits)) if bits else 0


_I32, _U32 = (-(1 << 31), (1 << 31) - 1), (0, (1 << 32) - 1)
_FUNCTIONS: dict[str, Any] = {
    "isNAN": lambda x: x.is_nan,
    "isSignalNAN": lambda x: x.is_signalling,
    "isQuietNAN": lambda x: x.is_nan and not x.is_signalling,
    "cvtToQuietNAN": lambda x: x.quieted,
    "sign": lambda x: int(x.negative),
    "exponent": lambda x: x.exponent,
    "abs": lambda x: x.absolute() if isinstance(x, Float) else abs(x),
    "trunc": exact.trunc,
    "sqrt": exact.sqrt,
    "fma": exact.fma,
    "ldexp": exact.scaled,
    "pow": lambda two, x: exact.exp2(x),
    "signext": _signext,
    "signext_from_bit": _signext_from_bit,
    "f16_to_f32": lambda x: x.to(32),
    "f32_to_f16": lambda x: x.to(16),
    "f32_to_f64": lambda x: x.to(64),
    "f64_to_f32": lambda x: x.to(32),
    "i32_to_f32": lambda x: exact.rounded(exact.Fraction(x), 32),
    "u32_to_f32": lambda x: exact.rounded(exact.Fraction(x), 32),
    "i32_to_f64": lambda x: exact.rounded(exact.Fraction(x), 64),
    "f32_to_u32": lambda x: exact.to_integer(x, *_U32),
    "f64_to_i32": lambda x: exact.to_integer(x, *_I32),
    "f32_to_i32": lambda x: exact.to_integer(x, *_I32),
    "f64_to_u32": lambda x: exact.to_integer(x, *_U32),
    "u32_to_f64": lambda x: exact.rounded(exact.Fraction(x), 64),
    "floor": exact.floor,
    **{f"v_max_{kind}": max for kind in ("i32", "u32")},
    **{f"v_min_{kind}": min for kind in ("i32", "u32")},
    **{f"v_max_{kind}": lambda a, b: exact.extreme(a, b, ">") for kind in ("f32", "num_f32")},
    **{f"v_min_{kind}": lambda a, b: exact.extreme(a, b, "<") for kind in ("f32", "num_f32")},
}
_READERS: dict[str, Any] = {
    "int": lambda s, value, kind: value,
    "float": lambda s, value, kind: exact.rounded(exact.Fraction(value), kind[1]),
    "name": _name_of,
    "of": lambda s, node, kind: _as(_value(s, node), kind),
    "slice": _slice,
    "cast": _cast,
    "call": _call,
    "neg": _neg,
    "op": _op,
    "if": lambda s, condition, then, other: _value(s, then if _value(s, condition) else other),
    "join": _join,
}
