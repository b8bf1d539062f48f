"""The table of packages in docs/architecture.md, from their own docstrings:
python tools/site/folders.py"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- packages: python tools/site/folders.py -->\n", "<!-- end of packages -->\n"


def table() -> str:
    """A row a package: its folder, and the first paragraph of its docstring."""
    rows = ["| package | what is in it |", "|---|---|"]
    for init in sorted((ROOT / "hy3d_rocm").glob("*/**/__init__.py")):
        text = ast.get_docstring(ast.parse(init.read_text("utf-8"))) or ""
        first = " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")
        rows.append(f"| `{init.parent.relative_to(ROOT).as_posix()}/` | {first} |")
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    """The page's text with the table as it is now. ValueError where its place is not marked."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{PAGE.name} lacks a line {BEGIN.strip()!r} or {END.strip()!r}")
    return text[: text.index(BEGIN) + len(BEGIN)] + "\n" + table() + "\n" + text[text.index(END) :]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
