"""AMD's pseudo-code as a tree: what translate.py makes C of, and the self-test evaluates in Python.

    tree = parse("tmp = S0.i32 + S1.i32;\\nSCC = tmp < 0;\\nD0.i32 = tmp.i32")

The pseudo-code is what the ISA documents print for each instruction. Nodes are tuples, the kind
first. Expressions:

    ("int", value, type) ("float", value, type) ("name", name)
    ("of", expression, type)            x.u32
    ("slice", expression, high, low)    x[7 : 0]; a single bit has low None
    ("cast", type, expression)          32'U(x)
    ("call", name, [expression]) ("neg", "-" or "~" or "!", expression)
    ("op", operator, left, right) ("if", condition, then, else) ("join", [expression])

Statements:

    ("set", target, operator, expression)     = or +=, ...; a = b = c has a as a further target
    ("if", [(condition or None, [statement])]) ("for", name, first, last, [statement]) ("break",)
    ("declare", name, type, count or None)

A type is (kind, bits): kind u, i, f, or b (bits without a meaning).
"""

from __future__ import annotations

import functools
import re
from typing import Any

Node = tuple[Any, ...]
Type = tuple[str, int]

_TOKEN = re.compile(
    r"""(?P<cast>\d+'[UIFB])|(?P<sized>\d+'-?(?:0x[0-9a-fA-F]+|\d+)U?)|
        (?P<hex>0x[0-9a-fA-F]+[UL]*)|(?P<float>\d+\.\d+F?|\d+F)|(?P<int>\d+(?:ULL|LL|U|L)?)|
        (?P<name>[A-Za-z_]\w*)|
        (?P<op>\*\*|<<|>>|<=|>=|==|!=|<>|&&|\|\||\+=|-=|\*=|\|=|&=|[-+*/%&|^~!<>=?:;,.(){}\[\]])|
        (?P<space>\s+)""",
    re.X,
)
_KINDS = {"u": "u", "i": "i", "f": "f", "b": "b", "bf": "bf"}
_SUFFIX = re.compile(r"(u|i|f|b|bf)(\d+)$")
_LEVELS = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!=", "<>"), ("<", "<=", ">", ">="),
    ("<<", ">>"), ("+", "-"), ("*", "/", "%"), ("**",),
)  # fmt: skip
_ENDS = frozenset({"endif", "elsif", "else", "endfor"})


class PcodeError(ValueError):
    """Pseudo-code that this does not read: the instruction is then written by hand or unknown."""


def type_of(suffix: str) -> Type | None:
    """("u", 32) of "u32"; None for another suffix."""
    found = _SUFFIX.match(suffix)
    return (_KINDS[found[1]], int(found[2])) if found else None


def _tokens(text: str) -> list[tuple[str, str]]:
    text = re.sub(r"//[^\n]*", "", text)
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise PcodeError(f"unexpected {text[at : at + 20]!r}")
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match[0]))
        at = match.end()
    return [*found, ("end", "")]


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = _tokens(text)
        self.at = 0
        self.lambdas: dict[str, tuple[list[str], Node]] = {}

    # What comes next

    def peek(self) -> str:
        return self.tokens[self.at][1]

    def take(self, wanted: str | None = None) -> str:
        found = self.tokens[self.at][1]
        if wanted is not None and found != wanted:
            raise PcodeError(f"{wanted!r} expected, {found!r} found")
        self.at += 1
        return found

    def takes(self, *wanted: str) -> bool:
        if self.peek() in wanted and self.tokens[self.at][0] != "end":
            self.at += 1
            return True
        return False

    # Statements

    def block(self) -> list[Node]:
        made: list[Node] = []
        while self.tokens[self.at][0] != "end" and self.peek() not in _ENDS:
            if self.takes(";"):
                continue
            statement = self.statement()
            if statement is not None:
                made.append(statement)
        return made

    def statement(self) -> Node | None:
        if self.takes("if"):
            return self.choice()
        if self.takes("for"):
            name = self.take()
            self.take("in")
            first = self.expression()
            self.take(":")
            last = self.expression()
            self.take("do")
            body = self.block()
            self.take("endfor")
            return ("for", name, first, last, body)
        if self.takes("break"):
            return ("break",)
        if self.takes("declare"):
            return self.declaration()
        target = self.postfix()
        operator = self.take()
        if operator not in ("=", "+=", "-=", "*=", "|=", "&="):
            raise PcodeError(f"no statement: {operator!r} after {target}")
        if self.peek() == "lambda":
            self.shorthand(target)
            return None
        value = self.expression()
        if self.takes("="):  # a = b = c
            return ("set", value, "=", self.expression(), target)
        return ("set", target, operator, value)

    def choice(self) -> Node:
        branches: list[tuple[Node | None, list[Node]]] = []
        condition = self.expression()
        self.take("then")
        branches.append((condition, self.block()))
        while True:
            if self.takes("elsif"):
                condition = self.expression()
                self.take("then")
                branches.append((condition, self.block()))
            elif self.takes("else"):
                branches.append((None, self.block()))
            else:
                self.take("endif")
                return ("if", branches)

    def declaration(self) -> Node:
        name = self.take()
        self.take(":")
        kind = self.tokens[self.at]
        self.take()
        if kind[0] != "cast":
            raise PcodeError(f"no type: {kind[1]!r}")
        bits, letter = kind[1].split("'")
        count = None
        if self.takes("["):
            count = int(self.take())
            self.take("]")
        return ("declare", name, (letter.lower(), int(bits)), count)

    def shorthand(self, target: Node) -> None:
        """A lambda that is one expression; it is put where it is called."""
        self.take("lambda")
        self.take("(")
        names = [self.take()]
        while self.takes(","):
            names.append(self.take())
        self.take(")")
        self.take("(")
        if self.peek() == "declare":
            raise PcodeError("a lambda with statements")
        body = self.expression()
        self.take(")")
        self.lambdas[target[1]] = (names, body)

    # Expressions

    def expression(self) -> Node:
        condition = self.level(0)
        if not self.takes("?"):
            return condition
        then = self.expression()
        self.take(":")
        return ("if", condition, then, self.expression())

    def level(self, k: int) -> Node:
        if k == len(_LEVELS):
            return self.prefix()
        left = self.level(k + 1)
        while self.tokens[self.at][0] == "op" and self.peek() in _LEVELS[k]:
            operator = self.take()
            left = ("op", operator, left, self.level(k + 1))
        return left

    def prefix(self) -> Node:
        for sign in ("-", "~", "!"):
            if self.takes(sign):
                return ("neg", sign, self.prefix())
        if self.takes("+"):
            return self.prefix()
        return self.postfix()

    def postfix(self) -> Node:
        made = self.atom()
        while True:
            if self.takes("."):
                suffix = self.take()
                kind = type_of(suffix)
                made = ("of", made, kind) if kind else ("name", f"{made[1]}.{suffix}")
            elif self.takes("["):
                high = self.expression()
                low = self.expression() if self.takes(":") else None
                self.take("]")
                made = ("slice", made, high, low)
            else:
                return made

    def atom(self) -> Node:
        kind, text = self.tokens[self.at]
        self.at += 1
        if kind == "cast":
            width, letter = text.split("'")
            self.take("(")
            inner = self.expression()
            self.take(")")
            return ("cast", (letter.lower(), int(width)), inner)
        if kind == "sized":
            width, digits = text.split("'")
            is_unsigned = digits.endswith("U") or "x" in digits
            return ("int", int(digits.rstrip("U"), 0), ("u" if is_unsigned else "i", int(width)))
        if kind in ("hex", "int"):
            digits = text.rstrip("UL")
            value, ending = int(digits, 0), text[len(digits) :]
            wide = 64 if "L" in ending or value >= 1 << 32 else 32
            return ("int", value, ("u" if "U" in ending or kind == "hex" else "i", wide))
        if kind == "float":
            return ("float", float(text.rstrip("F")), ("f", 32 if text.endswith("F") else 64))
        if text == "(":
            inner = self.expression()
            self.take(")")
            return inner
        if text == "{":
            parts = [self.expression()]
            while self.takes(","):
                parts.append(self.expression())
            self.take("}")
            return ("join", parts)
        if kind != "name":
            raise PcodeError(f"no expression: {text!r}")
        if self.peek() == "(":
            return self.call(text)
        return ("name", text)

    def call(self, name: str) -> Node:
        self.take("(")
        given: list[Node] = []
        while not self.takes(")"):
            given.append(self.expression())
            self.takes(",")
        if name in self.lambdas:
            names, body = self.lambdas[name]
            replaced: Node = _replaced(body, dict(zip(names, given, strict=True)))
            return replaced
        return ("call", name, given)


def _replaced(node: Any, values: dict[str, Any]) -> Any:
    if isinstance(node, tuple):
        if len(node) == 2 and node[0] == "name" and node[1] in values:
            return values[str(node[1])]
        return tuple(_replaced(part, values) for part in node)
    return [_replaced(part, values) for part in node] if isinstance(node, list) else node


@functools.cache
def parse(text: str) -> list[Node]:
    """The statements of an instruction's pseudo-code. PcodeError where it is none."""
    parser = _Parser(text)
    made = parser.block()
    if parser.tokens[parser.at][0] != "end":
        raise PcodeError(f"unexpected {parser.peek()!r}")
    return made
