"""`hy3d-rocm diagnose`: a log's file or standard input in, what it tells on stdout."""

from __future__ import annotations

import argparse
import json
import sys


def run_diagnose_command(arguments: argparse.Namespace) -> int:
    """Exit code: see the epilog."""
    from hy3d_rocm.diagnose.log.examine import examine
    from hy3d_rocm.diagnose.log.read import lines_of_stream
    from hy3d_rocm.diagnose.log.report import as_dict, exit_code, text_of

    source = "standard input" if arguments.log == "-" else arguments.log
    try:
        if arguments.log == "-":
            found = examine(lines_of_stream(sys.stdin.buffer))
        else:
            with open(arguments.log, "rb") as stream:
                found = examine(lines_of_stream(stream))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        sys.stderr.write(f"hy3d-rocm diagnose: {source} can't be read: {reason}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    if arguments.json:
        text = json.dumps(as_dict(found, source), indent=2, ensure_ascii=True) + "\n"
    else:
        text = text_of(found, source)
    _write(text)
    return exit_code(found)


def _write(text: str) -> None:
    """A log may hold characters that this terminal's encoding has not got (Windows)."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
