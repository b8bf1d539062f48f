"""Stands in for the C core's rasteriser: keeps what it was given and answers with known numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hy3d_rocm import _native


class Recorder:
    """calls: (name, positional arguments, named ones) of each call, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        for name in ("rasterize", "interpolate", "scatter", "vertex_normals", "inpaint_vertices"):
            monkeypatch.setattr(_native, name, self._answering(name))

    def _answering(self, name: str) -> Any:
        def answer(*given: Any, **named: Any) -> Any:
            self.calls.append((name, given, named))
            outputs = {
                "rasterize": given[3:], "interpolate": given[4:], "scatter": given[3:],
                "vertex_normals": given[2:], "inpaint_vertices": given[:2],
            }[name]  # fmt: skip
            for array in outputs:
                if array is not None:
                    array.reshape(-1)[:] = np.arange(array.size) % 251
            return 1

        return answer

    @property
    def last(self) -> tuple[Any, ...]:
        return self.calls[-1][1]

    @property
    def named(self) -> dict[str, Any]:
        return self.calls[-1][2]
