"""What a mutant of mutmut changes: where it is, whether it counts, and its lasting name.

mutmut writes each mutant of a function beside the function. A mutant does not count if it compiles
to the same code (equivalent by code), or if it changes only the words of a sentence or of a log
line: those are texts, not decisions.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

_MUTANT = re.compile(r"(?P<function>.+)__mutmut_(?P<number>orig|\d+)$")
_CLASS_SEPARATOR = "ǁ"

COUNTED = "counted"
SAME_CODE = "same code"
WORDS = "words"


@dataclass(frozen=True)
class Mutant:
    """One mutant. key: file, function and changed lines, which survives a move of lines."""

    name: str  # as in mutmut's record, without the module
    key: str
    kind: str


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every mutant in the text that mutmut wrote for `path`."""
    lines = source.splitlines()
    functions: dict[str, dict[str, ast.FunctionDef]] = {}
    for node in ast.walk(ast.parse(source)):
        found = _MUTANT.match(node.name) if isinstance(node, ast.FunctionDef) else None
        if found:
            assert isinstance(node, ast.FunctionDef)
            functions.setdefault(found["function"], {})[found["number"]] = node
    mutants = []
    for function, versions in functions.items():
        original = versions.pop("orig", None)
        if original is None:
            continue
        for node in versions.values():
            key = f"{path} | {_plain_name(function)} | {_change(lines, original, node)}"
            mutants.append(Mutant(node.name, key, _kind(original, node)))
    return mutants


def _plain_name(function: str) -> str:
    """x_choose -> choose; xǁSettingǁcalls_vendor -> Setting.calls_vendor."""
    if _CLASS_SEPARATOR in function:
        return ".".join(function.split(_CLASS_SEPARATOR)[1:])
    return function.removeprefix("x_")


def _change(lines: list[str], original: ast.FunctionDef, mutant: ast.FunctionDef) -> str:
    texts = []
    for node in (original, mutant):
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        texts.append([line.strip() for line in text.replace(node.name, "").splitlines()])
    changes = [line for line in difflib.ndiff(*texts) if line[:2] in ("- ", "+ ")]
    before = " ".join(line[2:] for line in changes if line[0] == "-")
    after = " ".join(line[2:] for line in changes if line[0] == "+")
    return f"{before} => {after}"


def _kind(original: ast.FunctionDef, mutant: ast.FunctionDef) -> str:
    if _code(original) == _code(mutant):
        return SAME_CODE
    return WORDS if _is_words(_differing(original, mutant)) else COUNTED


class _Plain(ast.NodeTransformer):
    """Takes out what has no effect when run: typing.cast."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_cast = isinstance(node.func, ast.Name) and node.func.id == "cast"
        return node.args[1] if is_cast and len(node.args) == 2 else node


def _code(function: ast.FunctionDef) -> object:
    tree = ast.parse(ast.unparse(function))
    definition = _Plain().visit(tree).body[0]
    definition.name = "function"
    code = compile(ast.fix_missing_locations(tree), "mutant", "exec")
    return _plain_code(code)


def _plain_code(code: CodeType) -> tuple[object, ...]:
    """What a code object does, without its lines. Constants with their types: 1 == True == 1.0."""
    constants = tuple(
        _plain_code(item) if isinstance(item, CodeType) else (type(item).__name__, repr(item))
        for item in code.co_consts
    )
    return (code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars)


def _differing(a: ast.AST, b: ast.AST) -> list[ast.AST]:
    """The nodes of `a` from the top to the first that is different in `b`."""
    if type(a) is not type(b):
        return [a]
    for name, mine in ast.iter_fields(a):
        theirs = getattr(b, name)
        if name == "name" or _same(mine, theirs):
            continue
        pairs = list(_pairs(mine, theirs))
        for one, other in pairs:
            if not _same(one, other):
                return [a, *_differing(one, other)]
        return [a]
    return [a]


def _pairs(mine: object, theirs: object) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(mine, ast.AST) and isinstance(theirs, ast.AST):
        yield mine, theirs
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for one, other in zip(mine, theirs, strict=True):
            if isinstance(one, ast.AST) and isinstance(other, ast.AST):
                yield one, other


def _same(a: object, b: object) -> bool:
    if isinstance(a, ast.AST) and isinstance(b, ast.AST):
        return ast.dump(a) == ast.dump(b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and a == b


def _is_words(nodes: list[ast.AST]) -> bool:
    last = nodes[-1]
    texts = [
        node.value
        for node in ast.walk(last)
        if isinstance(last, ast.JoinedStr | ast.Constant)
        and isinstance(node, ast.Constant)
        and isinstance(node.value, str)
    ]
    has_words = any(re.search(r"\s", text) for text in texts)
    return has_words or any(isinstance(node, ast.Call) and _is_log(node) for node in nodes)


def _is_log(call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in ("logger", "_LOG")
