"""Whether another copy of this package, one with the C core, is hidden by this one.

`python -m hy3d_rocm` in the pack's folder runs the source beside it, whatever pip has installed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

OWN = Path(__file__).resolve().parents[1]


def built_elsewhere(folders: Sequence[str] | None = None, own: Path = OWN) -> Path | None:
    """The first other `hy3d_rocm` in these folders (default: sys.path) that has the C core."""
    for folder in sys.path if folders is None else folders:
        package = Path(folder or ".") / "hy3d_rocm"
        for ending in EXTENSION_SUFFIXES:
            if (package / f"_core{ending}").is_file() and package.resolve() != own:
                return package
    return None


def remedy() -> str:
    """What brings the C core, as the end of a sentence."""
    built = built_elsewhere()
    if built is not None:
        return (
            f"this is the source in {OWN}, and the installed package, which has it, is in {built}:"
            " start Python in another folder, or use the command hy3d-rocm"
        )
    return "run `pip install .` in the pack's folder (needs a C compiler)"
