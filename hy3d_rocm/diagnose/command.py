"""`hy3d-rocm diagnose`: a log's file or standard input in, what it tells on stdout."""

from __future__ import annotations

import argparse
import json
import sys

_EPILOG = """\
Exit code: 0 a run finished and nothing wrong was seen (harmless lines are named); 1 a cause was
found; 2 the log can't be read, or wrong usage; 3 unknown: errors that no rule knows, or no run that
is shown to its end; 4 the log is empty. Nothing is sent anywhere.
"""


def add_diagnose_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    diagnose = commands.add_parser(
        "diagnose",
        help="what a log of ComfyUI, FramePack or PyTorch on an AMD card says went wrong",
        description="Reads a log (any encoding, any length) and reports the causes it knows, the"
        " worst one first, with the lines that show it and what to do.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    diagnose.add_argument("log", nargs="?", default="-", metavar="LOG",
                          help="the file; '-' or nothing: standard input")  # fmt: skip
    diagnose.add_argument("--json", action="store_true", help="machine-readable")


def run_diagnose_command(arguments: argparse.Namespace) -> int:
    """Exit code: see the epilog."""
    from hy3d_rocm.diagnose.examine import examine
    from hy3d_rocm.diagnose.read import lines_of_stream
    from hy3d_rocm.diagnose.report import as_dict, exit_code, text_of

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
