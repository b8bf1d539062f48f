"""`hy3d-rocm doctor`: arguments, what is being done on stderr, findings on stdout."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

from hy3d_rocm.files import write_whole

_EPILOG = """\
Run it with the Python that runs ComfyUI, and with the variables that ComfyUI is started with.
Exit code: 2 with an error among the findings, 1 with a warning, else 0; 3 where the report can't
be written; 130 after Ctrl-C.
"""


def add_doctor_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="what is wrong with this machine's set-up, worst first, with evidence and remedy",
        description="Looks at versions, driver, devices, variables, memory, MIOpen's databases and "
        "disks, tries each convolution back-end in a child process, and says what is "
        "wrong.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("--json", action="store_true", help="machine-readable")
    doctor.add_argument("--report", type=Path, metavar="FILE.html", help="write a page, too")
    doctor.add_argument("--no-self-test", action="store_true", help="compute nothing")
    doctor.add_argument(
        "--seconds", type=_seconds, default=60.0, metavar="N", help="at most (default 60)"
    )


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


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 5 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is no time; give 5 to 3600 seconds")
    return seconds
