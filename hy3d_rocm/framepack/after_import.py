"""Changes to modules of somebody's program, made right after each has been imported.

The program keeps its own order of imports: what it sets before it imports diffusers (HF_HOME) must
still come first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]


class AfterImport(MetaPathFinder):
    """While open (`with`), `changes` by a module's full name are made once it has been run."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self.changes = dict(changes)

    def __enter__(self) -> AfterImport:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, with the change behind its loader."""
        if fullname not in self.changes:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Changing(spec.loader, self.changes[fullname])
                return spec
        return None


class _Changing(Loader):
    def __init__(self, inner: Loader, change: Change) -> None:
        self._inner = inner
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._change(module)

    def __getattr__(self, name: str) -> Any:  # get_source and so on, for tracebacks
        return getattr(self._inner, name)
