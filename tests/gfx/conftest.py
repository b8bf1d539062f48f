"""These tests need Triton, whose LLVM compiles and assembles, and tinygrad's tables."""

from __future__ import annotations

import importlib.util

if any(importlib.util.find_spec(name) is None for name in ("torch", "triton", "tinygrad")):
    collect_ignore_glob = ["test_*.py"]
