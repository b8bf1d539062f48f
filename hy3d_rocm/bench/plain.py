"""Figures as JSON takes them."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: as text."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
