"""These tests need Triton, whose LLVM compiles and assembles, and tinygrad's tables (Python
3.11)."""

from __future__ import annotations

import importlib.util

MISSING = [n for n in ("torch", "triton", "tinygrad") if importlib.util.find_spec(n) is None]
if MISSING:
    collect_ignore_glob = ["test_[!e]*.py", "test_executed.py"]
