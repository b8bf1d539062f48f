"""Arithmetic instructions as C functions over all lanes of a wave, from AMD's pseudo-code.

    text = function("v_add_f32_x", "D0.f32 = S0.f32 + S1.f32")

The functions use alu.h and nothing else. What the pseudo-code leaves open is settled here, each
with its reason: see NAMES, and opcodes.py for what is printed wrongly. PcodeError where something
is not understood.
"""

from __future__ import annotations

import hashlib

from tools.dev.gfx.pcode import Node, PcodeError, Type, parse

_RAW = {"S0": "s0", "S1": "s1", "S2": "s2", "D0": "d"}
# Values by name. Results that under- or overflow are rounded to nearest, as the kernels ask for.
NAMES: dict[str, tuple[str, Type]] = {
    "laneId": ("l", ("u", 32)), "SCC": ("L->scc", ("u", 1)), "EXEC": ("L->exec", ("u", 64)),
    "EXEC_LO": ("(uint32_t)L->exec", ("u", 32)), "VCC": ("L->vcc", ("u", 64)),
    "INF": ("(double)INFINITY", ("f", 64)), "NAN": ("(double)NAN", ("f", 64)),
    "PI": ("3.14159265358979323846", ("f", 64)),
    "UNDERFLOW_F32": ("0.0f", ("f", 32)), "UNDERFLOW_F64": ("0.0", ("f", 64)),
    "OVERFLOW_F32": ("INFINITY", ("f", 32)), "OVERFLOW_F64": ("(double)INFINITY", ("f", 64)),
    "WAVE_MODE.IEEE": ("L->ieee", ("u", 1)), "SIMM16": ("(uint16_t)L->simm", ("b", 16)),
}  # fmt: skip
_U1: Type = ("u", 1)
_I32: Type = ("i", 32)
_U32: Type = ("u", 32)
_U64: Type = ("u", 64)
_CONVERSIONS: dict[str, tuple[str, Type]] = {
    "f32_to_u32": ("f32_to_u32", _U32), "f32_to_i32": ("f32_to_i32", _I32),
    "f64_to_i32": ("f64_to_i32", _I32), "f64_to_u32": ("f64_to_u32", _U32),
    "f16_to_f32": ("", ("f", 32)), "f64_to_f32": ("(float)", ("f", 32)),
    "i32_to_f32": ("(float)(int32_t)", ("f", 32)), "u32_to_f32": ("(float)", ("f", 32)),
    "f32_to_f64": ("(double)", ("f", 64)), "i32_to_f64": ("(double)(int32_t)", ("f", 64)),
    "u32_to_f64": ("(double)", ("f", 64)), "f32_to_f16": ("", ("f", 16)),
    "v_max_i32": ("v_max_i32", _I32), "v_min_i32": ("v_min_i32", _I32),
    "v_max_u32": ("v_max_u32", _U32), "v_min_u32": ("v_min_u32", _U32),
    "v_max_f32": ("v_max_f32", ("f", 32)), "v_min_f32": ("v_min_f32", ("f", 32)),
    "v_max_num_f32": ("v_max_f32", ("f", 32)), "v_min_num_f32": ("v_min_f32", ("f", 32)),
}  # fmt: skip
_MATHS = {"fma", "trunc", "floor", "sqrt", "abs", "ldexp"}


def symbol(text: str) -> str:
    """The C name of a function, by what it does."""
    return "alu_" + hashlib.sha256(text.encode()).hexdigest()[:20]


def function(name: str, text: str) -> str:
    """The C function `void name(struct lanes *)` of an instruction's pseudo-code."""
    body = _Body()
    lines = body.statements(parse(text))
    declared = [f"{_c_type(kind)} {var} = 0;" for var, (kind, count) in body.variables.items()
                if count is None]  # fmt: skip
    declared += [f"{_c_type(kind)} {var}[{count}] = {{0}};"
                 for var, (kind, count) in body.variables.items() if count is not None]  # fmt: skip
    text = "\n        ".join([*declared, *lines])
    return (
        f"void {name}(struct lanes *L) {{\n"
        "    uint64_t all = 0;\n"
        "    for (uint32_t l = 0; l < L->count; l++) {\n"
        "        const uint64_t s0 = L->s[0][l], s1 = L->s[1][l], s2 = L->s[2][l];\n"
        "        uint64_t d = L->d[l];\n"
        "        uint32_t out = 0;\n"
        "        (void)s0, (void)s1, (void)s2;\n"
        f"        {text}\n"
        "        L->d[l] = d;\n"
        "        all |= (uint64_t)(out & 1) << l;\n"
        "    }\n"
        "    L->out = all;\n"
        "}\n"
    )


def _c_type(kind: Type) -> str:
    letter, bits = kind
    if letter == "f":
        return "double" if bits == 64 else "float"
    name = "int" if letter == "i" else "uint"
    if bits > 64:
        return "i128" if letter == "i" else "u128"
    return f"{name}{64 if bits > 32 else 32}_t"


def _mask(code: str, bits: int) -> str:
    if bits in (32, 64):
        return f"(uint{bits}_t)({code})"
    return f"(({code}) & {(1 << bits) - 1:#x}u{'ll' if bits > 32 else ''})"


def _raw(code: str, kind: Type) -> str:
    """The bits of a value, as unsigned."""
    letter, bits = kind
    if letter == "f":
        return {16: f"f16_bits({code})", 32: f"f32_bits({code})", 64: f"f64_bits({code})"}[bits]
    return code if bits > 64 else f"(uint64_t)({code})" if bits > 32 else f"(uint32_t)({code})"


def _as(raw: str, kind: Type) -> str:
    """Bits as a value of a type."""
    letter, bits = kind
    if letter == "f":
        if bits not in (16, 32, 64):
            raise PcodeError(f"floats of {bits} bits")
        width = 64 if bits == 64 else 32
        return f"f{bits}_of((uint{width}_t)({raw}))"
    if letter == "i":
        if bits in (32, 64):
            return f"(int{bits}_t)({raw})"
        return f"(int32_t)sign_extend({raw}, {bits})"
    if letter == "bf":
        raise PcodeError("bfloat16 in arithmetic")
    return _mask(raw, bits)


def _convert(code: str, have: Type, want: Type) -> str:
    """The value in another type: floats are converted, integers cut or extended."""
    if have == want:
        return code
    if want[0] == "f":
        return code if have[0] == "f" and want[1] != 32 else f"({_c_type(want)})({code})"
    if have[0] == "f":
        raise PcodeError(f"a float as {want}")
    if want[0] == "i" or want[1] > 64:
        return f"({_c_type(want)})({code})"
    return _mask(code, want[1])


def _constant(node: Node | None) -> int | None:
    return int(node[1]) if node is not None and node[0] == "int" else None


class _Body:
    """The statements of one function, and the variables that they need."""

    def __init__(self) -> None:
        self.variables: dict[str, tuple[Type, int | None]] = {}
        self.counters: set[str] = set()

    def statements(self, nodes: list[Node]) -> list[str]:
        return [line for node in nodes for line in self.statement(node)]

    def statement(self, node: Node) -> list[str]:
        if node[0] == "set":
            return self.assignment(*node[1:])
        if node[0] == "declare":
            kind = ("u", 32) if node[2][1] < 32 and node[2][0] == "b" else node[2]
            self.variables[node[1]] = (kind, node[3])
            return []
        if node[0] == "break":
            return ["break;"]
        if node[0] == "for":
            _, name, first, last, body = node
            self.counters.add(name)
            start, end = self.value(first)[0], self.value(last)[0]
            inner = "\n".join(self.statements(body))
            return [f"for (int32_t {name} = {start}; {name} <= {end}; {name}++) {{ {inner} }}"]
        lines = []
        for k, (condition, body) in enumerate(node[1]):
            head = f"if ({self.value(condition)[0]})" if condition is not None else ""
            lines.append(f"{'else ' if k else ''}{head} {{ {' '.join(self.statements(body))} }}")
        return lines

    def assignment(
        self, target: Node, operator: str, value: Node, also: Node | None = None
    ) -> list[str]:
        if also is not None:
            return self.assignment(target, "=", value) + self.assignment(also, "=", value)
        if operator != "=":
            value = ("op", operator[:-1], target, value)
        if target[0] == "name" and target[1].startswith("TRAPSTS"):
            return []  # exceptions are off
        if target[0] == "join":
            return self.joined(target[1], value)
        return [self.store(target, *self.value(value))]

    def joined(self, parts: list[Node], value: Node) -> list[str]:
        """{ D1.u1, D0.u64 } = value: the carry above the result."""
        code, _ = self.value(value)
        if [part[1] for part in parts] != [("name", "D1"), ("name", "D0")]:
            raise PcodeError("an assignment to several")
        return [f"{{ u128 wide = (u128)({code}); d = (uint64_t)wide; "
                "out = (uint32_t)(wide >> 64) & 1u; }"]  # fmt: skip

    def store(self, target: Node, code: str, kind: Type) -> str:
        want: Type | None = None
        if target[0] == "of":
            want, target = target[2], target[1]
        if target[0] == "slice":
            base, high, low = target[1:]
            of = base[1] if base[0] == "of" else base
            if of[1] in ("D0", "VCC", "EXEC") and high == ("name", "laneId"):
                return f"out = (uint32_t)({code}) & 1u;"
            if of[0] == "name" and of[1] in self.variables and self.variables[of[1]][1] is not None:
                return f"{of[1]}[{self.value(high)[0]}] = {code};"
            return self.store_slice(of, _constant(high), _constant(low), code, want or kind, kind)
        name = target[1]
        if name == "SCC":
            return f"L->scc = (uint32_t)({code}) & 1u;"
        if name == "VCC" and want is None:
            return f"out = (uint32_t)({code}) & 1u;"
        if name == "EXEC" and want is not None:
            return f"L->exec = {_mask(code, want[1])};"
        if name == "D0" and want is not None:
            bits = _raw(_convert(code, kind, want), want)
            if want[1] < 32:
                ones = (1 << want[1]) - 1
                return f"d = (d & ~{ones:#x}ull) | ({bits} & {ones:#x}u);"
            return f"d = {_mask(bits, want[1])};"
        if target[0] != "name" or name in _RAW or name in NAMES or "." in name:
            raise PcodeError(f"an assignment to {target}")
        if name not in self.variables:
            self.variables[name] = (_widened(want or kind), None)
        return f"{name} = {_convert(code, kind, self.variables[name][0])};"

    def store_slice(
        self, of: Node, high: int | None, low: int | None, code: str, want: Type, kind: Type
    ) -> str:
        if high is None or low is None or of[0] != "name":
            raise PcodeError("a slice that varies is written")
        place = "d" if of[1] == "D0" else of[1]
        if place != "d" and of[1] not in self.variables:
            raise PcodeError(f"a slice of {of[1]}")
        ones = (1 << (high - low + 1)) - 1
        bits = f"((uint64_t)({_raw(_convert(code, kind, want), want)}) & {ones:#x}ull)"
        return f"{place} = ({place} & ~({ones:#x}ull << {low})) | ({bits} << {low});"

    # Expressions: C and the type

    def value(self, node: Node) -> tuple[str, Type]:
        made: tuple[str, Type] = getattr(self, f"_{node[0]}")(*node[1:])
        return made

    def _int(self, value: int, kind: Type) -> tuple[str, Type]:
        if kind[0] == "i" and kind[1] < 32:
            kind = _I32
        ending = ("u" if kind[0] != "i" else "") + ("ll" if kind[1] > 32 else "")
        return f"{value}{ending}", kind

    def _float(self, value: float, kind: Type) -> tuple[str, Type]:
        return f"{value!r}{'f' if kind[1] == 32 else ''}", kind

    def _name(self, name: str) -> tuple[str, Type]:
        if name in _RAW:
            return _RAW[name], ("b", 64)
        if name in self.counters:
            return name, _I32
        if name in self.variables:
            return name, self.variables[name][0]
        if name in NAMES:
            return NAMES[name]
        raise PcodeError(f"the name {name}")

    def _of(self, node: Node, want: Type) -> tuple[str, Type]:
        code, kind = self.value(node)
        if want[0] == "f" and kind[0] == "f":  # +INF.f32
            return _convert(code, kind, want), want
        return _as(_raw(code, kind), want), want

    def _slice(self, node: Node, high: Node, low: Node | None) -> tuple[str, Type]:
        of = node[1] if node[0] == "of" else node
        if of[0] == "name" and of[1] in self.variables and self.variables[of[1]][1] is not None:
            return f"{of[1]}[{self.value(high)[0]}]", self.variables[of[1]][0]
        code, kind = self.value(node)
        raw = _raw(code, kind)
        if low is None:
            return f"(uint32_t)(shr64({raw}, {self.value(high)[0]}) & 1u)", _U1
        top, bottom = _constant(high), _constant(low)
        if top is None or bottom is None:
            raise PcodeError("a slice that varies")
        if top < bottom:
            return f"reversed({raw}, {bottom - top + 1})", ("b", bottom - top + 1)
        bits = top - bottom + 1
        return _mask(f"{raw} >> {bottom}", bits), ("b", bits)

    def _cast(self, want: Type, node: Node) -> tuple[str, Type]:
        if want[0] == "f" and node[0] == "int":  # the bits of a NaN
            return _as(f"{node[1]:#x}ull", want), want
        if want == ("f", 32) and node[:2] == ("call", "cvtToQuietNAN"):
            return self.value(node)  # of an f32 that was widened to ask
        code, kind = self.value(node)
        if want[0] == "f" and node[0] == "join":  # bits that are put together
            return _as(code, want), want
        if want[0] == "b":
            want = ("i" if kind[0] == "i" else "u", want[1])
        return _convert(code, kind, want), want

    def _call(self, name: str, given: list[Node]) -> tuple[str, Type]:
        if name in ("isSignalNAN", "isQuietNAN", "cvtToQuietNAN", "isNAN"):
            # Asked of an f32 that is widened: of it as it is, as a conversion in C makes it quiet.
            node = given[0][2] if given[0][0] == "cast" else given[0]
            code, kind = self.value(node)
            bits = max(kind[1], 32)  # binary16 is held as float, signalling or not
            if name == "cvtToQuietNAN":
                return f"quiet{bits}({code})", kind
            signal, is_nan = f"is_signal{bits}({code})", f"(isnan({code}) != 0)"
            return {"isNAN": is_nan, "isSignalNAN": signal,
                    "isQuietNAN": f"({is_nan} && !{signal})"}[name], _U1  # fmt: skip
        values = [self.value(node) for node in given]
        codes = ", ".join(code for code, _ in values)
        kind = values[0][1] if values else _U32
        if name in _CONVERSIONS:
            called, result = _CONVERSIONS[name]
            return f"{called}({codes})", result
        if name == "sign":
            return f"sign{max(kind[1], 32)}({codes})", _U1
        if name == "exponent" and kind[1] != 16:
            return f"exponent{kind[1]}({codes})", _I32
        if name == "signext":
            code = values[0][0]
            if kind[0] == "i":
                return f"(int64_t)({code})", ("i", 64)
            return f"sign_extend({_raw(code, kind)}, {kind[1]})", ("i", 64)
        if name == "signext_from_bit":
            return f"({_c_type(kind)})sign_extend((uint64_t)({values[0][0]}), {values[1][0]})", kind
        if name == "pow" and given[0][:2] == ("float", 2.0):
            kind = values[1][1]
            return f"{'exp2' if kind[1] == 64 else 'exp2f'}({values[1][0]})", kind
        if name == "abs" and kind == ("f", 16):
            return f"fabsf({codes})", kind
        if name in _MATHS and kind[0] == "f" and kind[1] in (32, 64):
            called = "fabs" if name == "abs" else name
            return f"{called}{'f' if kind[1] == 32 else ''}({codes})", kind
        raise PcodeError(f"the function {name}")

    def _neg(self, sign: str, node: Node) -> tuple[str, Type]:
        code, kind = self.value(node)
        if sign == "!":
            return f"!({code})", _U1
        if sign == "~" and kind[1] < 32:
            return _mask(f"~({code})", kind[1]), kind
        return f"{sign}({code})", kind

    def _if(self, condition: Node, then: Node, other: Node) -> tuple[str, Type]:
        test = self.value(condition)[0]
        (left, a), (right, b) = self.value(then), self.value(other)
        kind = _common(a, b)
        return f"(({test}) ? {_convert(left, a, kind)} : {_convert(right, b, kind)})", kind

    def _join(self, parts: list[Node]) -> tuple[str, Type]:
        code, total = "0", 0
        for part in parts:
            value, kind = self.value(part)
            code = f"(((uint64_t)({code}) << {kind[1]}) | (uint64_t)({_raw(value, kind)}))"
            total += kind[1]
        if total > 64:
            raise PcodeError("joined beyond 64 bits")
        return code, ("b", total)

    def _op(self, operator: str, left: Node, right: Node) -> tuple[str, Type]:
        if operator == "==" and right[0] == "of" and right[1] == ("name", "DENORM"):
            code, kind = self.value(left)
            width = right[2][1]
            if width == 16:
                raise PcodeError("denormals of binary16")
            return f"is_denormal{width}({_convert(code, kind, right[2])})", _U1
        for scaled, power in ((left, right), (right, left)):
            # x * 2 ** n in one step: 2 ** n alone may not be representable.
            if operator == "*" and power[:2] == ("op", "**"):
                code, kind = self.value(scaled)
                n = self.value(power[3])[0]
                return f"ldexp{'f' if kind[1] == 32 else ''}({code}, {n})", kind
        (x, a), (y, b) = self.value(left), self.value(right)
        if operator in ("&&", "||"):
            return f"(({x}) {operator} ({y}))", _U1
        if operator in ("<<", ">>"):
            return self.shifted(operator, x, a, y)
        kind = _common(a, b)
        x, y = _convert(x, a, kind), _convert(y, b, kind)
        if operator == "<>":  # less or greater, which a NaN is not
            return f"(({x}) < ({y}) || ({x}) > ({y}))", _U1
        if operator in ("==", "!=", "<", "<=", ">", ">="):
            return f"(({x}) {operator} ({y}))", _U1
        if operator not in ("+", "-", "*", "/", "&", "|", "^"):
            raise PcodeError(f"the operator {operator}")
        if kind == ("f", 16):
            return f"f16_of(f16_bits(({x}) {operator} ({y})))", kind
        return f"(({x}) {operator} ({y}))", kind

    @staticmethod
    def shifted(operator: str, x: str, kind: Type, n: str) -> tuple[str, Type]:
        kind = _widened(kind)
        if kind[1] > 64:
            raise PcodeError("a shift beyond 64 bits")
        width = 64 if kind[1] > 32 else 32
        name = "shl" if operator == "<<" else "sar" if kind[0] == "i" else "shr"
        made = f"{name}{width}(({'' if name == 'sar' else 'u'}int{width}_t)({x}), {n})"
        return f"({_c_type(kind)}){made}", kind


def _widened(kind: Type) -> Type:
    """What a variable holds: at least 32 bits."""
    if kind[0] == "f":
        return kind
    return ("i" if kind[0] == "i" else "u", max(kind[1], 32))


def _common(a: Type, b: Type) -> Type:
    if "f" in (a[0], b[0]):
        return ("f", max(t[1] for t in (a, b) if t[0] == "f"))
    signed = a[0] == "i" and b[0] == "i"
    return ("i" if signed else "u", max(a[1], b[1], 32))


def translated(name: str, text: str) -> str:
    """`function` of an instruction's pseudo-code; PcodeError names the instruction."""
    try:
        return function(symbol(text), text)
    except PcodeError as error:
        raise PcodeError(f"{name}: {error}") from error
