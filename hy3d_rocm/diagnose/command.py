"""`hy3d-rocm doctor` and `hy3d-rocm diagnose`: findings on stdout; what is being done on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext

from hy3d_rocm.arguments import StatusLine
from hy3d_rocm.files import write_whole


def run_doctor_command(arguments: argparse.Namespace) -> int:
    """Exit code: see the epilog."""
    from hy3d_rocm.diagnose.doctor.examination import examine

    line = StatusLine(sys.stderr)
    tell = (lambda text: line.show(f"{text} ...")) if line.is_terminal else None
    try:
        examination = examine(
            self_test=not arguments.no_self_test, seconds=arguments.seconds, tell=tell
        )
    except KeyboardInterrupt:
        return 130
    finally:
        line.clear()
    if arguments.json:
        sys.stdout.write(json.dumps(examination.as_dict(), indent=2) + "\n")
    else:
        sys.stdout.write(examination.text() + "\n")
    if arguments.report is not None:
        try:
            write_whole(arguments.report, examination.html())
        except OSError as error:
            said = error.strerror or str(error)
            sys.stderr.write(f"hy3d-rocm doctor: {arguments.report} can't be written: {said}\n")
            return 3
        sys.stderr.write(f"the page is in {arguments.report}\n")
    return examination.exit_code


def run_diagnose_command(arguments: argparse.Namespace) -> int:
    """Exit code: see the epilog."""
    from hy3d_rocm.diagnose.log.examine import examine
    from hy3d_rocm.diagnose.log.read import lines_of_stream
    from hy3d_rocm.diagnose.log.report import as_dict, exit_code, text_of

    is_piped = arguments.log == "-"
    source = "standard input" if is_piped else arguments.log
    try:
        with nullcontext(sys.stdin.buffer) if is_piped else open(arguments.log, "rb") as stream:
            found = examine(lines_of_stream(stream))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        sys.stderr.write(f"hy3d-rocm diagnose: {source} can't be read: {reason}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    if arguments.json:
        sys.stdout.write(json.dumps(as_dict(found, source), indent=2) + "\n")
    else:
        sys.stdout.write(text_of(found, source))
    return exit_code(found)
