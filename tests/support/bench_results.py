"""One result of each bench and tool, as `hy3d-rocm compare` reads it."""

from __future__ import annotations

from typing import Any

ROW = {"name": "tiled", "call": "", "way": "tiled", "seconds": [1.0, 1.02, 1.04],
       "planned_bytes": 1, "peak_bytes": 2**30, "psnr": 50.0, "error": None}  # fmt: skip
RESULTS: dict[str, dict[str, Any]] = {
    "optimize": {"tool": "optimize", "subject": "s", "shape": [1, 2], "dtype": "f", "rows": [ROW]},
    "validate": {
        "tool": "validate", "subject": "s", "shape": [1],
        "rows": [{**ROW, "seconds": 1.0, "ssim": 0.99, "largest": 1e-3}],
        "verdicts": [{"holds": True, "text": "tiled: 50.2 dB, 45 dB are promised"}],
    },
    "bench offload": {
        "bench": "offload", "facts": ["GPU: X"],
        "variants": [{"variant": "resident", "first_seconds": 9.0, "median_seconds": 1.02,
                      "seconds": [1.0, 1.02, 1.04], "peak_bytes": 2**30, "reason": None}],
    },
    "bench decode": {
        "bench": "decode", "facts": [], "psnr": {"ours": 50.0},
        "rows": [{"variant": "ours", "first_seconds": 9.0, "median_seconds": 1.02,
                  "seconds": [1.0, 1.02, 1.04], "peak_bytes": 2**30, "reason": None}],
    },
    "bench decode --device cpu": {
        "bench": "decode", "device": "cpu", "machine": {"model": "m"}, "psnr": "inf",
        "sides": {"ours": {"seconds": [1.0, 1.02, 1.04], "peaks": [2**30, 2**29]}},
    },
    "bench decode cases": {
        "bench": "decode cases", "subject": "s", "device": "cpu", "scale": 1.0,
        "rows": [{"case": "one", "seconds": [1.0, 1.02, 1.04], "peak_bytes": [2**30], "psnr": 50.0,
                  "errors": []}],
    },
    "bench conv": {
        "bench": "conv", "machine": {"model": "m"}, "settings": {},
        "layers": [{"text": "3x3", "seconds": {"ours": [1.0, 1.02, 1.04]}, "reason": None,
                    "extra_bytes": {"ours": 2**30}, "errors": {"ours": 1e-3}}],
    },
    "bench gpu": {
        "bench": "gpu", "facts": [],
        "cells": [{"layer": {"in": 3}, "dtype": "bf16", "layout": "NCDHW",
                   "figures": {"ours": {"seconds": 1.0, "extra_bytes": 2**30, "worst": 1e-3,
                                        "reason": None}}}],
    },
    "bench raster": {
        "bench": "raster", "machine": {"model": "m"}, "settings": {},
        "parts": [{"scene": "s", "faces": 5,
                   "rows": [{"name": "ours", "kind": "k", "reason": None,
                             "seconds": [{"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.52}]}]}],
    },
}  # fmt: skip
