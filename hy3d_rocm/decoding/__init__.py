"""Decoding a video latent within a memory budget (docs/decode.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hy3d_rocm.decoding.executor import decode_into as decode_into
    from hy3d_rocm.decoding.executor import decode_with_report as decode_with_report
    from hy3d_rocm.decoding.executor import encode as encode
    from hy3d_rocm.decoding.executor import encode_with_report as encode_with_report
    from hy3d_rocm.decoding.report import DecodeCancelled as DecodeCancelled
    from hy3d_rocm.decoding.report import DecodeOptions as DecodeOptions
    from hy3d_rocm.decoding.report import DecodeReport as DecodeReport

__all__ = [
    "DecodeCancelled", "DecodeOptions", "DecodeReport", "decode_into", "decode_with_report",
    "encode", "encode_with_report",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "report" if name.startswith("Decode") else "executor"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
