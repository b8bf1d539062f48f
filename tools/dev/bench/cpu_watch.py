"""What a convolution did: strategy and workspace of a call, and the weight cache's figures."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from hy3d_rocm import _native


@dataclasses.dataclass(frozen=True)
class Told:
    """What the core said about one call. workspace_bytes: of all threads together."""

    strategy: str
    threads: int
    workspace_bytes: int

    @property
    def library(self) -> str | None:
        """The BLAS library that computed, with its version where it tells one; None: our code."""
        if not self.strategy.endswith("gemm"):
            return None
        text = str(_native.blas_info()["text"])
        return _library_name(text)

    @property
    def text(self) -> str:
        """ "thin x1", "panel-dgemm x2, OpenBLAS 0.3.34"."""
        return f"{self.strategy} x{self.threads}" + (f", {self.library}" if self.library else "")


def _library_name(text: str) -> str:
    """Out of the core's description: OpenBLAS says its name and version in front; of any other
    library the file's name is known."""
    if text.startswith("not an OpenBLAS: "):
        return re.split(r"[/\\]", text.removeprefix("not an OpenBLAS: ").partition(";")[0])[-1]
    return " ".join(text.partition(";")[0].split()[:2])


@contextlib.contextmanager
def listening() -> Iterator[list[Told]]:
    """Notes what the core tells the public functions inside, which don't hand it on."""
    kept: list[Told] = []
    real = _native.conv3d

    def call(*arguments: Any, **options: Any) -> tuple[str, int, int]:
        answer = real(*arguments, **options)
        kept.append(Told(*answer))
        return answer

    vars(_native)["conv3d"] = call
    try:
        yield kept
    finally:
        vars(_native)["conv3d"] = real
