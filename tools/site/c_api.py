"""The page of the C API, from the public headers: python tools/site/c_api.py > docs/c_api.md"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

HEADERS = Path(__file__).resolve().parents[2] / "include" / "hy3d"
HEAD = """# The C API

C11 on Linux, without Python. This page is made from the headers, whose comments are the contract,
by `python tools/site/c_api.py > docs/c_api.md`.

- **Install**: `make install PREFIX=$HOME/.local`; no root is needed. `DESTDIR=` is put before it,
  for packages. `make uninstall` with the same variables removes it.
- **Compile**: `cc -std=c11 program.c $(pkg-config --cflags --libs hy3d_core)`, with
  `PKG_CONFIG_PATH=PREFIX/lib/pkgconfig` unless pkg-config looks there by default.
- **Link**: run with `LD_LIBRARY_PATH=PREFIX/lib`, or link the program with
  `-Wl,-rpath,PREFIX/lib`. Static: `PREFIX/lib/libhy3d_core.a -pthread -ldl -lm` instead. Structs
  may grow with a minor version, which is in the shared library's name: compile again then. BLAS
  is no dependency; the few convolutions that need one load it at their first use.
- **Ownership**: what a `_create` function makes, its `_destroy` frees (`hy3d_alloc`:
  `hy3d_free`), the context last. Tensors are views of your memory: keep weights and bias as long
  as a plan uses them.
- **Memory**: a context takes all its memory from `hy3d_context_options.allocator`, or from the
  system if that is `NULL`.
- **Threads**: one context serves all threads, a plan any number at once, a workspace one call at
  a time. How many threads a call uses never changes its result.
- **Errors**: a function that can fail returns `hy3d_status`; `hy3d_status_text` is its sentence.
  Outputs are written on `HY3D_OK` only, unless a comment says otherwise. Nothing ends the
  process.
- **Cancel**: call `hy3d_cancel_request` from any thread. A long call checks it before each unit
  of work (grain) and ends with `HY3D_ERR_CANCELLED`.

Two example programs: `examples/c/plan_decode.c` plans a decode under a memory budget,
`examples/c/time_conv3d.c` times a convolution and checks its values.
"""
ORDER = ["status", "context", "tensor", "conv3d", "moments", "graph", "schedule", "tiles", "blend"]
# What is no declaration: guards, siblings, C++.
SKIPPED = re.compile(r"#include|#(ifndef|define) HY3D_\w+_H$|#endif$|HY3D_(BEGIN|END)_DECLS$")
ESCAPE = "\\"
WORD = re.compile(r"(?:\\\*)?\b[A-Za-z_]\w*(?:(?:->|\.)\w+|\[[^\]\s]+\])*")


def marked(found: re.Match[str]) -> str:
    """A word of code in backticks, others as they are."""
    word = found[0]
    return f"`{word.removeprefix(ESCAPE)}`" if re.search(r"_|->|\[", word) else word


def prose(comment: str) -> str:
    """A comment as Markdown: one line a paragraph or item, names of code marked."""
    lines = [re.sub(r"^(/\*| \*) ?", "", line) for line in comment[:-2].splitlines()]
    text = re.sub(r"\n {2,}- ", "\n\n- ", "\n".join(lines))
    text = "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [WORD.sub(marked, re.sub(r"([*<])", r"\\\1", part)) for part in parts[::2]]
    return "".join(parts)


def listing(code: str) -> str:
    """Declarations without HY3D_API, whose width is taken off the lines that continue one."""
    parts = re.split(r"^HY3D_API ([^;]*;)", code, flags=re.M)
    parts[1::2] = [re.sub(r"^ {9}(?= {4})", "", part, flags=re.M) for part in parts[1::2]]
    return "".join(parts)


def title(code: str) -> str:
    outside = re.sub(r"\{.*?^\}", "", code, flags=re.S | re.M)
    names = re.findall(
        r"^#define (\w+)|^HY3D_API [^(]*?(\w+)\(|^typedef [^(;]*?(\w+);|\(\*(\w+)\)", outside, re.M
    )
    return ", ".join(dict.fromkeys("".join(found) for found in names))


def items(text: str) -> Iterator[tuple[str, str]]:
    """(comment or "", declarations that it stands above), in order; the header's own: no code."""
    comment, code, is_open = "", "", False
    for part in re.findall(r"^/\*(?s:.*?)\*/$|^.*$", text, re.M):
        if is_open or (part and not part.startswith("/*") and not SKIPPED.match(part)):
            code += part + "\n"
            is_open = code.count("{") + code.count("#if") > code.count("}") + code.count("#endif")
            continue
        if code or (comment and part):
            yield comment, code
            comment = code = ""
        if part.startswith("/*"):
            comment = part
    if code:
        yield comment, code


def page() -> str:
    there = {path.stem: path for path in sorted(HEADERS.glob("*.h"))}
    parts = [HEAD.rstrip()]
    for name in [*ORDER, *(name for name in there if name not in ORDER)]:
        parts.append(f"## hy3d/{name}.h")
        for comment, code in items(there[name].read_text(encoding="utf-8")):
            parts += [f"### {title(code)}"] if code else []
            parts += [prose(comment)] if comment else []
            parts += [f"```c\n{listing(code)}```"] if code else []
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
