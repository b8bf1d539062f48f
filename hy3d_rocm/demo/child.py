"""One decode in a process of its own, so that its memory can be measured alone.

`python -m hy3d_rocm.demo.child JOB.json` loads the demo VAE and the latents, notes the memory it
holds, decodes, and writes the frames and a record. The parent reads progress lines from stdout.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from hy3d_rocm.conv.router import Guard

# Small grains: a decode that is given 100 MB must not lend most of it to one convolution.
CONV_WORKSPACE_BYTES = 16 << 20


class ListHandler(logging.Handler):
    """Keeps the library's log lines for the report."""

    def __init__(self) -> None:
        super().__init__(level=logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def say(**fields: Any) -> None:
    """One JSON line to the parent."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def report_progress(done: int, total: int, _grain: object) -> None:
    say(done=done, total=total)
