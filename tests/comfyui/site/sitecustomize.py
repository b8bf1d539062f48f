"""Imported by Python at its start: writes each log record and warning down, with its level.

ComfyUI 0.3.64 prints no levels, and some libraries' loggers do not propagate. A record factory
sees them all and adds no handler, so the process logs as it would without this file.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from typing import Any


def _watch(path: str) -> None:
    make_record = logging.getLogRecordFactory()
    show_warning = warnings.showwarning

    def write(level: str, logger: str, source: str, message: str) -> None:
        entry = {"level": level, "logger": logger, "source": source, "message": message}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made = make_record(*args, **kwargs)
        write(made.levelname, made.name, made.pathname, made.getMessage())
        return made

    def warning(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        write("PYTHON", category.__name__, filename, str(message))
        show_warning(message, category, filename, lineno, file, line)

    logging.setLogRecordFactory(record)
    warnings.showwarning = warning


if "HY3D_HARNESS_RECORDS" in os.environ:
    _watch(os.environ["HY3D_HARNESS_RECORDS"])
