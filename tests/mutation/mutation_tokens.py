"""Mutants of C source, token by token. No parser: what does not compile is told by the compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/|\#\s*(?:include|if|ifdef|ifndef|endif|else)\b[^\n]*)
      | (?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
      | (?P<number>(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][-+]?\d+)?)[uUlLfF]*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<operator><<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[^\s\w])""",
    re.VERBOSE | re.DOTALL,
)
_INSTEAD = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",),
    "!=": ("==",), "/": ("*",), "%": ("*",), "<<": (">>",), ">>": ("<<",), "|": ("&",),
    "^": ("|",), "+=": ("-=",), "-=": ("+=",), "*=": ("/=",), "/=": ("*=",), "++": ("--",),
    "--": ("++",), "&&": ("||",), "||": ("&&",), "true": ("false",), "false": ("true",),
    "continue": ("break",), "break": ("continue",),
    "?": ("&& 0 ?", "|| 1 ?"),
}  # fmt: skip
# These are unary after an operator: only between two values do they get another one.
_BINARY = {"+": "-", "-": "+", "*": "/", "&": "|"}
_NO_STATEMENT = {
    "return", "for", "if", "else", "while", "do", "break", "continue", "case", "static", "struct",
    "typedef", "const", "enum", "goto", "default", "switch",
}  # fmt: skip


@dataclass(frozen=True)
class Token:
    """A token and where it stands."""

    text: str
    kind: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class CMutant:
    """source[start:end] becomes `text`. key: file, function and changed line."""

    key: str
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """The mutated text."""
        return source[: self.start] + self.text + source[self.end :]


def tokens_of(source: str) -> list[Token]:
    """Tokens without comments and conditional lines; "#define" is a token with its name."""
    found = []
    for match in _TOKEN.finditer(source):
        kind = match.lastgroup or ""
        if kind != "skip":
            found.append(Token(match.group(), kind, match.start()))
    return found


def mutants_of(path: str, source: str) -> list[CMutant]:
    """Every mutant of a file."""
    tokens = tokens_of(source)
    functions = _functions(tokens)
    changes = [*_replacements(tokens), *_conditions(source, tokens), *_deletions(tokens)]
    found = []
    for start, end, text in sorted(set(changes)):
        before, after = _lines(source, start, end, text)
        function = _owner(functions, start)
        found.append(CMutant(f"{path} | {function} | {before} => {after}", start, end, text))
    return found


def _lines(source: str, start: int, end: int, text: str) -> tuple[str, str]:
    first = source.rfind("\n", 0, start) + 1
    last = source.find("\n", end)
    after = source[first:start] + text + source[end:last]
    return " ".join(source[first:last].split()), " ".join(after.split())


def _replacements(tokens: list[Token]) -> Iterator[tuple[int, int, str]]:
    for before, token in pairwise(tokens):
        for other in _INSTEAD.get(token.text, ()):
            yield token.start, token.end, other
        is_value = before.kind in ("name", "number") or before.text in (")", "]")
        if token.text in _BINARY and is_value and before.text != "return":
            yield token.start, token.end, _BINARY[token.text]
        if token.text == "!":
            yield token.start, token.end, ""
        if token.kind == "number":
            yield token.start, token.end, f"({token.text} + 1)"
            yield token.start, token.end, f"({token.text} - 1)"


def _conditions(source: str, tokens: list[Token]) -> Iterator[tuple[int, int, str]]:
    """if (x) becomes if (!(x))."""
    for i, token in enumerate(tokens):
        if token.text == "if" and tokens[i + 1].text == "(":
            start, end = tokens[i + 1].end, tokens[_closing(tokens, i + 1)].start
            yield start, end, f"!({source[start:end]})"


def _closing(tokens: list[Token], opening: int) -> int:
    depth = 0
    for i in range(opening, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[i].text, 0)
        if depth == 0:
            return i
    raise ValueError("a parenthesis is not closed")


def _deletions(tokens: list[Token]) -> Iterator[tuple[int, int, str]]:
    """A statement that is an assignment, a step or a call becomes nothing."""
    begin, depth = 0, 0
    for i, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text not in (";", "{", "}") or depth:
            continue
        statement = tokens[begin:i]
        if token.text == ";" and statement and _is_deletable(statement):
            yield statement[0].start, token.start, ""
        begin = i + 1


def _is_deletable(statement: list[Token]) -> bool:
    first = statement[0]
    if first.text in _NO_STATEMENT or first.text == "#":
        return False
    is_declaration = len(statement) > 1 and first.kind == "name" and statement[1].kind == "name"
    texts = {token.text for token in statement}
    acts = bool(texts & {"=", "+=", "-=", "*=", "/=", "(", "++", "--"})
    return acts and not is_declaration


def _functions(tokens: list[Token]) -> list[tuple[int, str]]:
    """Where each function's body begins, and its name."""
    found, depth = [], 0
    for i, token in enumerate(tokens):
        if token.text == "{":
            if depth == 0 and i and tokens[i - 1].text == ")":
                opening = _opening(tokens, i - 1)
                found.append((tokens[opening].start, tokens[opening - 1].text))
            depth += 1
        elif token.text == "}":
            depth -= 1
    return found


def _opening(tokens: list[Token], closing: int) -> int:
    depth = 0
    for i in range(closing, -1, -1):
        depth += {")": 1, "(": -1}.get(tokens[i].text, 0)
        if depth == 0:
            return i
    raise ValueError("a parenthesis is not opened")


def _owner(functions: list[tuple[int, str]], start: int) -> str:
    names = [name for place, name in functions if place <= start]
    return names[-1] if names else "file"
