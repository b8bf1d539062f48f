"""A copy of the tree in which mutmut may write, with what it needs to see every function.

mutmut leaves functions with decorators alone, so in the copy

    @property                      def cost(self) -> float:
    def cost(self) -> float:           ...
        ...                        cost = property(cost)

takes the place of the left side, which is the same to every caller.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
from pathlib import Path

from mutation_groups import Group

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "long"))

import c_tests  # noqa: E402

_NOT_COPIED = shutil.ignore_patterns(
    "__pycache__", "_vendor", ".pytest_cache", ".hypothesis", "mutation", "shapes", "comfyui"
)
# For hypothesis: no search for the smallest counter-example, the same ones each time. For pytest:
# the order of the files, since mutmut gives the tests of a mutant in that of a set.
_PLUGIN = """
from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "mutation", derandomize=True, database=None, deadline=None,
    suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("mutation")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: (str(item.path), item.location[1] or 0, item.name))
"""


def make(group: Group, folder: Path) -> None:
    """Lays `folder` anew where it is not there, else brings changed files up to date."""
    for name in ("hy3d_rocm", "tests"):
        for source in _files(ROOT / name):
            _bring(source, folder / source.relative_to(ROOT), group)
    config = (ROOT / "pyproject.toml").read_text() + _mutmut_table(group)
    _write(folder / "pyproject.toml", config)
    _write(folder / "tests" / "support" / "mutation_profile.py", _PLUGIN)
    _link_the_rest(folder)


def environment(folder: Path) -> dict[str, str]:
    """For mutmut and the tests: children of tests import the mutated package too."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [path for path in given if path and not (Path(path) / "hy3d_rocm").exists()]
    mutated = folder / "mutants"
    paths = [str(mutated), str(mutated / "tests" / "support"), *others]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    bytecode = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    library = {c_tests.NAMED: str(c_tests.build())}  # the copy has no Makefile
    return {**os.environ, **threads, **bytecode, **library, "PYTHONPATH": os.pathsep.join(paths)}


def without_property_decorators(source: str) -> str:
    """`source` with each @property written as an assignment behind its function."""
    lines = source.splitlines()
    found = [
        item
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        for item in node.body
        if isinstance(item, ast.FunctionDef) and _is_plain_property(item)
    ]
    for item in sorted(found, key=lambda item: -item.lineno):
        indent = " " * item.col_offset
        assert item.end_lineno is not None
        lines.insert(item.end_lineno, f"{indent}{item.name} = property({item.name})")
        del lines[item.decorator_list[0].lineno - 1]
    return "\n".join(lines) + "\n"


def _is_plain_property(function: ast.FunctionDef) -> bool:
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    only_text = len(function.body) == 1 and isinstance(function.body[0], ast.Expr)
    return decorators == ["property"] and not only_text


def _files(top: Path) -> list[Path]:
    found = []
    for folder, folders, names in os.walk(top):
        left_out = _NOT_COPIED(folder, [*folders, *names])
        folders[:] = [name for name in folders if name not in left_out]
        found += [Path(folder, name) for name in names if name not in left_out]
    return found


def _bring(source: Path, target: Path, group: Group) -> None:
    if source.relative_to(ROOT).as_posix() in group.python:
        _write(target, without_property_decorators(source.read_text()))
        return
    data = source.read_bytes()
    if not target.exists() or target.read_bytes() != data:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _write(target: Path, text: str) -> None:
    """Writes only what has changed: mutmut goes by the time of a file."""
    if target.exists() and target.read_text() == text:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def _link_the_rest(folder: Path) -> None:
    """What tests read beside the package: docs, csrc, examples, the vendored BLAS."""
    mutated = folder / "mutants"
    (mutated / "hy3d_rocm").mkdir(parents=True, exist_ok=True)
    kept = {"hy3d_rocm", "tests", "build", "pyproject.toml", "shared"}
    links = {
        mutated / entry.name: entry
        for entry in ROOT.iterdir()
        if entry.name not in kept and not entry.name.startswith(".")
    }
    vendored = ROOT / "hy3d_rocm" / "_vendor"
    links |= {place / "hy3d_rocm" / "_vendor": vendored for place in (folder, mutated)}
    for link, entry in links.items():
        if entry.exists() and not link.is_symlink():
            link.symlink_to(entry)


def _mutmut_table(group: Group) -> str:
    tests = [f"tests/unit/{name}" for name in group.tests]
    left_out = [f"--deselect=tests/unit/{name}" for name in group.left_out]
    arguments = ["-p", "no:cacheprovider", "-p", "mutation_profile", *left_out]
    table = {
        "source_paths": ["hy3d_rocm"],
        "only_mutate": sorted(group.python),
        "pytest_add_cli_args_test_selection": tests,
        "pytest_add_cli_args": arguments,
    }
    lines = [f"{key} = {_toml(value)}" for key, value in table.items()]
    # A server that only imports the tests forks: a process that ran them has what they left behind.
    lines += ["use_setproctitle = false", "track_dependencies = false", "timeout_constant = 4.0"]
    lines += ['process_isolation = "forkserver"']
    return "\n".join(["", "[tool.mutmut]", *lines, ""])


def _toml(values: list[str]) -> str:
    return "[" + ", ".join(f'"{value}"' for value in values) + "]"
