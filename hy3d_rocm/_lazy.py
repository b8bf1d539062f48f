"""A package's names, each loaded from its module at its first use. Imports next to nothing."""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # as typing's; importing typing would be most of this package's import time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of `package`; homes: its public names' modules, inside it."""
    module = sys.modules[package]

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(module, name, value)
        return value

    return get, lambda: sorted({*vars(module), *homes})
