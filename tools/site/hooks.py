"""Pages of the documentation site that are made from the code when it is built.

MkDocs calls `on_files` and `on_page_markdown`. What is made here cannot grow stale: the causes come
from the rules of `hy3d-rocm diagnose`, the commands from their parsers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import causes  # noqa: E402
import commands  # noqa: E402

OUTSIDE = re.compile(r"\[([^]]+)\]\(\.\./([^)\s]+)\)")


def releases() -> str:
    return (
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("# Changelog", "# Releases", 1)
    )


GENERATED = {
    "causes.md": causes.page,
    "commands.md": commands.page,
    "releases.md": releases,
}


def on_files(files: Any, config: Any) -> Any:
    for name, make in GENERATED.items():
        files.append(File.generated(config, name, content=make()))
    return files


def on_page_markdown(markdown: str, **_others: Any) -> str:
    """Links to files of the repository that are no pages become the files' names."""
    return OUTSIDE.sub(lambda link: f"{link[1]}: `{link[2]}`", markdown)
