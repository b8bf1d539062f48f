"""Decoding a video latent within a memory budget (docs/decode.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hy3d_rocm._lazy import names

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
_HOME = {name: "report" if name.startswith("Decode") else "executor" for name in __all__}
__getattr__, __dir__ = names(__name__, _HOME)
