"""What lies in a source checkout and in no wheel (`examples/`, `tools/`): imported on demand."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def module(name: str) -> ModuleType | None:
    """The module of this name in the checkout; None where this is an installed package."""
    path = ROOT.joinpath(*name.split("."))
    if not path.with_suffix(".py").is_file():
        return None
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(name)
