"""The page of the C API: the public headers, whose comments are the contract."""

from __future__ import annotations

from pathlib import Path

HEADERS = Path(__file__).resolve().parents[2] / "include" / "hy3d"
HEAD = """# The C API

The public headers, as they are: C11, no Python. A comment above a declaration is its contract:
what, sizes and units, who owns, which threads, which errors. Every function that can fail returns
`hy3d_status` and touches its outputs only when it returns `HY3D_OK`, unless its comment says
otherwise; nothing ever ends the process.

`make core` builds `build/c/libhy3d_core.a` and `libhy3d_core.so`; `tests/c/` is full of uses.
"""
ORDER = ["status", "context", "tensor", "conv3d", "moments", "schedule", "blend", "seed", "raster"]


def page() -> str:
    there = {path.stem: path for path in sorted(HEADERS.glob("*.h"))}
    names = [name for name in ORDER if name in there]
    names += [name for name in there if name not in names]
    parts = [HEAD]
    for name in names:
        parts.append(f"## hy3d/{name}.h")
        parts.append("```c\n" + there[name].read_text(encoding="utf-8").rstrip() + "\n```")
    return "\n\n".join(parts) + "\n"
