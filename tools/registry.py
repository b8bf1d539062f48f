"""What is missing before ComfyUI's registry can serve this pack: python tools/registry.py

Its rules: https://docs.comfy.org/registry/specifications. Prints what a maintainer has to set, one
line each, and exits with 1; with 0 where nothing is missing. tests/project/test_registry_rules.py
holds what does not depend on a maintainer.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Pictures for the registry's pages, and the most pixels that it takes; a banner is 21:9.
ICON, BANNER = "docs/images/icon.png", "docs/images/banner.png"
LINE = re.compile(r"^(# )?(hy3d-rocm==\S+; .+)$", re.MULTILINE)


def core_requirement(root: Path = ROOT) -> tuple[str, bool]:
    """The line of requirements.txt that brings the built C core, and whether it is in force."""
    found = LINE.search((root / "requirements.txt").read_text(encoding="utf-8"))
    if found is None:
        raise ValueError("requirements.txt has no line hy3d-rocm==VERSION; ...")
    return found[2], not found[1]


def missing(root: Path = ROOT) -> list[str]:
    """What a maintainer has to set, as sentences."""
    with (root / "pyproject.toml").open("rb") as file:
        written = tomllib.load(file)
    comfy, lacks = written["tool"]["comfy"], []
    repository = written["project"].get("urls", {}).get("Repository", "")
    if not re.fullmatch(r"https://[^/]+/[^/]+/[^/]+", repository):
        lacks.append(
            'pyproject.toml, [project.urls]: Repository = "https://...", the repository\'s address'
        )
    for name, picture in (("Icon", ICON), ("Banner", BANNER)):
        if not re.fullmatch(rf"https://\S+/{re.escape(picture)}", comfy.get(name, "")):
            lacks.append(
                f'pyproject.toml, [tool.comfy]: {name} = "https://...", where {picture} of that '
                "repository is served as a file"
            )
    line, in_force = core_requirement(root)
    if not in_force:
        lacks.append(
            f'requirements.txt: once {line.partition(";")[0]} is on PyPI, take the "# " off its '
            "line, so that ComfyUI-Manager installs the C core"
        )
    return lacks


def main() -> int:
    lacks = missing()
    sys.stdout.write("".join(f"{line}\n" for line in lacks) or "nothing is missing\n")
    return 1 if lacks else 0


if __name__ == "__main__":
    sys.exit(main())
