"""The dependency law of docs/architecture.md, read off the sources as text."""

from __future__ import annotations

import ast
import functools
import re
from collections import deque
from collections.abc import Collection
from pathlib import Path

import pytest
from places import ROOT

PUBLIC_HEADERS = sorted((ROOT / "include" / "hy3d").glob("*.h"))
CORE_SOURCES = sorted((ROOT / "csrc").rglob("*.[ch]")) + sorted((ROOT / "csrc").rglob("*.inc"))
PYTHON_SOURCES = sorted((ROOT / "hy3d_rocm").rglob("*.py"))
C_STANDARD_HEADERS = set(
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal "
    "stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath "
    "threads time uchar wchar wctype".split()
)
# The door to the operating system: one header, one file a system.
OS = "csrc/base/os_posix.c csrc/base/os_windows.c csrc/base/os.h"
# What only one place may use: a pattern over the code (comments stripped), and its owner.
SINGLE_OWNERS = [
    (r"\bpthread_|<pthread\.h>", "csrc/base/os_posix.c csrc/base/os.h"),
    (r"\bdlopen\b|\bdlsym\b", "csrc/base/os_posix.c"),
    (r"cblas_", "csrc/base/blas.c"),
    (r"\b(malloc|calloc|realloc|free|aligned_alloc|posix_memalign)\s*\(", "csrc/base/os_posix.c"),
    (r"_aligned_malloc|<(windows|process|malloc)\.h>|\bLoadLibrary", "csrc/base/os_windows.c"),
    # What the core does never depends on the system, but for the two files that are one each.
    (r"\b_WIN32\b", OS),
    # Through the system's door: memory is counted, threads are the pool's.
    (r"\bhy3d__memory_\w+\s*\(", f"csrc/base/alloc.c {OS}"),
    (r"\bhy3d__thread_(start|join)\s*\(", f"csrc/base/parallel.c {OS}"),
    (r"\bhy3d__thread_\w+\s*\(", f"csrc/base/parallel.c csrc/base/cancel.c {OS}"),
    (r"\bhy3d__library_\w+\s*\(", f"csrc/base/blas.c {OS}"),
    (r"__builtin_cpu_supports|<cpuid\.h>|\b__get_cpuid", "csrc/base/cpu.c"),
    (r"\bDLManagedTensor\b", "csrc/python/view.c"),
    # Tensors of any stride and type by the one, flat arrays of one type by the other.
    (r"PyObject_GetBuffer", "csrc/python/view.c csrc/python/flat.c"),
]
POSIX_HEADERS = r"<(unistd|pthread|dlfcn|sys/\w+|sched|fcntl)\.h>"


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def code_of(path: Path) -> str:
    """The file without comments and string literals, line numbers kept."""
    text = path.read_text()
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())  # noqa: E731
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"(?!\s*\n?#)', blank, text, flags=re.S)


def includes_of(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+([<"][^>"]+[>"])', path.read_text(), flags=re.M)


@functools.cache
def imports_in(text: str, top_level_only: bool = False) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Statements, in which alone others can be, are gone through; not what is computed in them."""
    found: list[ast.Import | ast.ImportFrom] = []
    waiting: list[ast.AST] = list(ast.parse(text).body)
    for node in waiting:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append(node)
        elif not top_level_only:
            inner = ("body", "orelse", "finalbody", "handlers", "cases")
            parts = (getattr(node, name, ()) for name in inner if not isinstance(node, ast.expr))
            waiting += (part for group in parts for part in group)
    return tuple(found)


@functools.cache
def imported_modules(path: Path, *, top_level_only: bool = False) -> tuple[str, ...]:
    names: list[str] = []
    for node in imports_in(path.read_text(), top_level_only):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif node.module and node.level == 0:
            names.append(node.module)
    return tuple(names)


def test_there_is_something_to_check() -> None:
    assert len(PUBLIC_HEADERS) >= 7
    assert len(CORE_SOURCES) >= 20
    assert len(PYTHON_SOURCES) >= 20


@pytest.mark.parametrize("header", PUBLIC_HEADERS, ids=lambda path: path.name)
def test_public_headers_include_only_the_c_standard_and_each_other(header: Path) -> None:
    siblings = {f'"hy3d/{path.name}"' for path in PUBLIC_HEADERS}
    standard = {f"<{name}.h>" for name in C_STANDARD_HEADERS}
    assert set(includes_of(header)) <= siblings | standard


def test_kernels_include_only_their_header_and_intrinsics() -> None:
    allowed = {'"kernels.h"', '"kernels.inc"', "<immintrin.h>", "<stddef.h>", "<stdint.h>"}
    allowed |= {"<string.h>", "<math.h>"}
    kernels = ROOT / "csrc" / "kernels"
    allowed |= {f'"kernels/{header.name}"' for header in kernels.glob("*.h")}
    for source in kernels.glob("*.[ch]"):
        assert set(includes_of(source)) <= allowed, relative(source)


# What a folder of csrc includes of the others; a folder that is not named here: `SHARED`.
SHARED = frozenset({"base", "kernels", "elements"})
BELOW = {"base": set(), "kernels": set(), "elements": {"kernels"}, "python": set()}
BASE_HEADERS = {f"hy3d/{name}.h" for name in ("context", "export", "status", "tensor")}


@pytest.mark.parametrize(
    "folder", sorted({path.parent.name for path in CORE_SOURCES}), ids=lambda name: f"csrc/{name}"
)
def test_a_folder_includes_its_own_headers_public_ones_and_those_below(folder: str) -> None:
    allowed = BELOW.get(folder, SHARED) | {folder, "hy3d"}
    for path in (ROOT / "csrc" / folder).glob("*.[ch]"):
        ours = [name.strip('"') for name in includes_of(path) if name[0] == '"']
        strangers = {name for name in ours if "/" in name and name.split("/")[0] not in allowed}
        if folder == "base":
            strangers |= {name for name in ours if name.startswith("hy3d/")} - BASE_HEADERS
        assert not strangers, f"{relative(path)} includes {strangers}"


def test_no_two_files_of_csrc_have_one_name() -> None:
    """But for a .c and its .h, which are in one folder."""
    places: dict[str, set[str]] = {}
    for path in CORE_SOURCES:
        places.setdefault(path.stem, set()).add(path.parent.name)
    twice = {name: folders for name, folders in places.items() if len(folders) > 1}
    assert not twice
    headers = [path.name for path in CORE_SOURCES if path.suffix == ".h"]
    public = [path.name for path in PUBLIC_HEADERS]
    assert not set(headers) & set(public)


@pytest.mark.parametrize(("pattern", "owner"), SINGLE_OWNERS, ids=lambda value: str(value)[-20:])
def test_each_outside_library_has_one_owner(pattern: str, owner: str) -> None:
    users = {
        relative(path)
        for path in CORE_SOURCES
        if re.search(pattern, code_of(path)) or re.search(pattern, " ".join(includes_of(path)))
    }
    owners = set(owner.split())
    owners |= {f"{name.rsplit('.', 1)[0]}.h" for name in owners}
    assert users <= owners, f"only {owner} may use {pattern}"


def test_python_h_only_under_csrc_python() -> None:
    users = {relative(path) for path in CORE_SOURCES if "<Python.h>" in includes_of(path)}
    assert all(user.startswith("csrc/python/") for user in users), users


def test_posix_only_in_one_file_and_its_types() -> None:
    users = {
        relative(path)
        for path in CORE_SOURCES
        if re.search(POSIX_HEADERS, " ".join(includes_of(path)))
    }
    assert users <= {"csrc/base/os_posix.c", "csrc/base/os.h"}, users


def test_comfy_only_under_the_comfy_folder() -> None:
    for path in PYTHON_SOURCES:
        if relative(path).startswith("hy3d_rocm/comfy/"):
            continue
        names = [m for m in imported_modules(path) if re.match(r"(comfy|folder_paths)\b", m)]
        assert not names, f"{relative(path)} imports {names}"


def test_nothing_imports_the_command_line() -> None:
    for path in PYTHON_SOURCES:
        if relative(path).startswith(("hy3d_rocm/cli/", "hy3d_rocm/__main__.py")):
            continue
        names = [m for m in imported_modules(path) if re.match(r"hy3d_rocm\.cli\b", m)]
        assert not names, f"{relative(path)} imports {names}"


def test_nothing_imports_what_no_wheel_has_and_only_commands_a_bench() -> None:
    """A developer's tools and the examples stay outside of the package; what two need is not in a
    bench."""
    for path in PYTHON_SOURCES:
        strangers = [m for m in imported_modules(path) if re.match(r"(examples|tools)\b", m)]
        assert not strangers, f"{relative(path)} imports {strangers}"
    bench = re.compile(r"hy3d_rocm\.bench\b")
    graph = package_graph()
    users = {name for name, found in graph.items() if any(bench.match(m) for m in found)}
    assert "hy3d_rocm.bench.command" in users  # which cli/ imports by its name
    assert not [name for name in users if not re.match(r"hy3d_rocm\.(cli|bench)\b", name)]


def test_diagnose_and_the_door_do_not_import_torch_at_module_level() -> None:
    lean = [path for path in PYTHON_SOURCES if relative(path).startswith("hy3d_rocm/diagnose/")]
    lean += [ROOT / "hy3d_rocm" / name for name in ("__init__.py", "_native.py")]
    # Of the commands the one that is run is imported.
    lean += [ROOT / "hy3d_rocm" / name for name in ("__main__.py", "cli/__init__.py")]
    lean += sorted((ROOT / "hy3d_rocm" / "_fallback").glob("*.py"))
    for path in lean:
        heavy = {m.split(".")[0] for m in imported_modules(path, top_level_only=True)}
        assert not heavy & {"torch", "numpy", "diffusers"}, relative(path)


def test_prestartup_does_not_import_torch_at_all() -> None:
    assert "torch" not in set(imported_modules(ROOT / "prestartup_script.py"))


# Imports that close a circle and stay: (from, to), and why.
ALLOWED_CIRCLES = {
    ("hy3d_rocm", "*"): "the door names for type checkers what it loads when it is asked for",
}


TOOLS = re.compile(r"hy3d_rocm\.tools\b")


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """By module all of ours that it imports: at the top, in functions and for types alone."""
    graph: dict[str, set[str]] = {}
    for name, text in sources.items():
        found: set[str] = set()
        for node in imports_in(text):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif node.module and node.level == 0:
                parts = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                found |= {p if p in sources else node.module for p in parts.values()}
        graph[name] = (found & sources.keys()) - {name}
    return graph


@functools.cache
def package_graph() -> dict[str, set[str]]:
    return import_graph({module_name(p): p.read_text() for p in PYTHON_SOURCES})


def without(graph: dict[str, set[str]], edges: Collection[tuple[str, str]]) -> dict[str, set[str]]:
    return {
        name: {m for m in more if (name, m) not in edges and (name, "*") not in edges}
        for name, more in graph.items()
    }


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """A shortest circle's modules, beginning and ending with the same; [] where there is none."""
    left = {name: set(more) for name, more in graph.items()}
    while leaves := [name for name, more in left.items() if not more & left.keys()]:
        for name in leaves:
            del left[name]
    best: list[str] = []
    for start in left:
        before, queue = {start: ""}, deque([start])
        while queue:
            here = queue.popleft()
            if start in left[here]:
                path = [start]
                while here:
                    path.insert(0, here)
                    here = before[here]
                best = path if not best or len(path) < len(best) else best
                break
            for name in sorted(left[here] & left.keys() - before.keys()):
                before[name] = here
                queue.append(name)
    return best


def test_no_module_imports_itself_in_a_circle() -> None:
    """Nor in functions, nor for types, but for a few that have reasons; and these are needed."""
    graph = package_graph()
    assert not circle_in(without(graph, ALLOWED_CIRCLES)), circle_in(
        without(graph, ALLOWED_CIRCLES)
    )
    for edge in ALLOWED_CIRCLES:
        others = ALLOWED_CIRCLES.keys() - {edge}
        assert circle_in(without(graph, others)), f"{edge} closes no circle: take it off the list"


def test_only_what_a_user_runs_imports_the_tools() -> None:
    """Commands, benches and nodes; a decode does without."""
    graph = package_graph()
    users = {name for name, found in graph.items() if any(TOOLS.match(m) for m in found)}
    assert "hy3d_rocm.cli.tools" in users
    allowed = re.compile(r"hy3d_rocm\.(tools|bench|tune|cli|comfy)\b")
    assert not [name for name in users if not allowed.match(name)]


def test_the_tools_know_nothing_of_the_benches_that_use_them() -> None:
    graph = package_graph()
    tools = {name: found for name, found in graph.items() if TOOLS.match(name)}
    assert len(tools) > 5
    assert not [name for name, found in tools.items() if any(".bench" in m for m in found)]


def test_a_circle_is_found_wherever_its_imports_stand() -> None:
    sources = {
        "a": "import b",
        "b": "def f():\n    from c import thing",
        "c": "if TYPE_CHECKING:\n    from a import X",
        "d": "import a",
    }
    assert circle_in(import_graph(sources)) == ["a", "b", "c", "a"]
    sources["c"] = ""
    assert circle_in(import_graph(sources)) == []


def test_no_mutable_statics_in_the_c_code() -> None:
    # A static that is neither a function nor const. Module definitions are the C API's own.
    pattern = re.compile(
        r"^\s*static\s+(?!inline\b|const\b|_Thread_local\s+const)[^;{}()=]*(?:=|;)", re.M
    )
    allowed = re.compile(r"PyModuleDef|PyMethodDef|PyType_Slot|PyType_Spec|PyMemberDef|PyGetSetDef")
    for path in CORE_SOURCES:
        for match in pattern.finditer(code_of(path)):
            line = match.group().strip()
            if " const " in line or allowed.search(line):
                continue
            raise AssertionError(f"{relative(path)}: mutable static: {line}")
