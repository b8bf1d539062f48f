"""`hy3d-rocm doctor`: arguments, what is being done on stderr, findings on stdout."""

from __future__ import annotations

import argparse
import json
import sys

from hy3d_rocm.files import write_whole


def run_doctor_command(arguments: argparse.Namespace) -> int:
    """Exit code: see the epilog."""
    from hy3d_rocm.diagnose.doctor.examination import examine

    tell = _tell if sys.stderr.isatty() else None
    try:
        examination = examine(
            self_test=not arguments.no_self_test, seconds=arguments.seconds, tell=tell
        )
    except KeyboardInterrupt:
        return 130
    finally:
        if tell is not None:
            sys.stderr.write("\r\033[K")
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


def _tell(text: str) -> None:
    sys.stderr.write(f"\r\033[K{text} ...")
    sys.stderr.flush()
