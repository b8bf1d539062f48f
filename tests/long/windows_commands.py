"""The commands as a user of Windows has them: his folder has blanks, umlauts and a character that
no code page has, what they print goes through cp1252, and paths are longer than 260 characters.

    python tests/long/windows_commands.py FOLDER

check_windows_python.py runs it under wine, wheels.yml on Windows. It runs on any system. Each
command has to end with the right exit code and the right words, without a traceback, and what it
wrote has to be whole. Exits with 1 where anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

USER = "Jörg Müller ☂"
FRAMES = 9
LOG = """got prompt
!!! Exception during processing !!! HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has \
a total capacity of 15.98 GiB of which 1.20 GiB is free.
  File "C:\\Users\\Jörg Müller ☂\\ComfyUI\\comfy\\sd.py", line 1, in decode — │ ☃
"""
IS_WINDOWS = os.name == "nt"


class CommandError(AssertionError):
    """A command did otherwise."""


class Home:
    """The user's folder, what is in it, and the environment that says so."""

    def __init__(self, folder: Path) -> None:
        from check_resume import make_inputs

        self.path = folder / USER
        self.path.mkdir(parents=True)
        make_inputs(self.path, 1 + (FRAMES - 1) // 4)
        (self.path / "log ☂.txt").write_text(LOG, encoding="utf-8")
        temporary = self.path / "AppData" / "Local" / "Temp"
        temporary.mkdir(parents=True)
        where = {
            "HOME": self.path, "USERPROFILE": self.path, "TEMP": temporary, "TMP": temporary,
            "TMPDIR": temporary, "LOCALAPPDATA": temporary.parent,
        }  # fmt: skip
        # The encoding of a pipe, and of text files, as Windows in the west of Europe has it.
        encoding = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252"}
        package = str(Path(__import__("hy3d_rocm").__file__).parents[1])
        self.environ = {
            **os.environ, **{name: str(path) for name, path in where.items()}, **encoding,
            "PYTHONPATH": package,
        }  # fmt: skip

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "ignore", "-m", "hy3d_rocm"]
        return subprocess.Popen(
            [*command, *map(str, words)], cwd=self.path, env=self.environ,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def ended(self, process: subprocess.Popen[bytes], *codes: int) -> tuple[str, str]:
        out, err = (text.decode("cp1252") for text in process.communicate(timeout=300))
        if process.returncode not in codes or "Traceback" in out + err:
            raise CommandError(f"exit code {process.returncode}, not {codes}:\n{out}\n{err}")
        return out, err

    def run(self, *words: object, codes: tuple[int, ...] = (0,)) -> tuple[str, str]:
        return self.ended(self.start(*words), *codes)

    def decode(self, out: object, *more: object, code: int = 0) -> tuple[str, str]:
        words = ("latents.safetensors", "--vae", "vae", "--device", "cpu", "--out", out, *more)
        return self.run("decode", *words, codes=(code,))


def expect(text: str, *words: str) -> None:
    for word in words:
        if word not in text:
            raise CommandError(f"no {word!r} in {text!r}")


def frames_of(path: Path) -> int:
    if path.suffix == ".npy":
        import numpy as np

        return int(np.load(path).shape[2])
    if path.suffix == "":
        return len(list(path.iterdir()))
    from hy3d_rocm.frames.video import count_frames

    return count_frames(path)


def doctor(home: Home) -> None:
    """With the self-test: the child that tries convolutions starts, answers and ends."""
    out, _ = home.run("doctor", "--report", "Bericht ☂.html", codes=(0, 1, 2))
    expect(out, "Python")
    expect((home.path / "Bericht ☂.html").read_text(encoding="utf-8"), "<html")
    out, _ = home.run("doctor", "--json", codes=(0, 1, 2))
    tried = json.loads(out)["facts"]["self_test"]
    expect(json.dumps(tried), "ok")


def diagnose(home: Home) -> None:
    out, _ = home.run("diagnose", "log ☂.txt", codes=(0, 1))
    expect(out, "log ?.txt", "memory")
    _, err = home.run("diagnose", "keines ☂.txt", codes=(2,))
    expect(err, "keines \\u2602.txt can't be read")


def plan(home: Home) -> None:
    out, _ = home.run("plan", "--vae", "vae", "--program")
    expect(out, "section 0")


def tables(home: Home) -> None:
    """The verdicts' file lies in the user's folder; MIOpen's are looked for there."""
    home.run("db", "list")
    out, _ = home.run("miopen", "info")
    expect(out, "J\xf6rg M\xfcller \\u2602")


def decode(home: Home) -> None:
    for name in ("Clip ☂.mp4", "Bilder ☂.npy", "Bilder ☂"):
        out, _ = home.decode(name, "--json", "Bericht ☂.json")
        expect(out, f"{name.replace('☂', chr(92) + 'u2602')}: {FRAMES} frames")
        if frames_of(home.path / name) != FRAMES:
            raise CommandError(f"{name} has {frames_of(home.path / name)} frames")
        report = json.loads((home.path / "Bericht ☂.json").read_text(encoding="utf-8"))
        expect(report["out"], "☂")
    left = [path.name for path in home.path.glob("*.partial")]
    if left:
        raise CommandError(f"{left} are left")


def long_paths(home: Home) -> None:
    """The name itself can be had; what is made beside it could not be, without a mark."""
    room = (250 if IS_WINDOWS else 400) - len(str(home.path))
    folder = home.path / ("l" * min(room - 20, 200))
    folder.mkdir()
    home.decode(folder / "bilder", "--resume")
    if frames_of(folder / "bilder") != FRAMES:
        raise CommandError(f"{folder / 'bilder'} is not whole")


def odd_names(home: Home) -> None:
    if not IS_WINDOWS:
        return
    for name in ("NUL.mp4", "12:30.mp4", "clip.mp4."):
        _, err = home.decode(name, code=1)
        expect(err, "Windows can't give a file the name")


def held_open(home: Home) -> None:
    """By this process, as a player does it."""
    path = home.path / "Film.mp4"
    path.write_bytes(before := b"an older film")
    with open(path, "rb"):
        _, err = home.decode(path, "--overwrite", code=1 if IS_WINDOWS else 0)
    if IS_WINDOWS:
        expect(err, "can't be replaced", "a program has it open", "Film_2.mp4")
        if path.read_bytes() != before or frames_of(home.path / "Film_2.mp4") != FRAMES:
            raise CommandError("an output was lost")


def stopped(home: Home) -> None:
    """Ctrl-Break, sent by the process to itself: wine has no console to send it with."""
    code = (
        "import signal, sys\n"
        "from hy3d_rocm.cli.stopping import interruptible\n"
        "with interruptible(lambda text: print(text, file=sys.stderr, flush=True)) as cancel:\n"
        "    signal.raise_signal(getattr(signal, 'SIGBREAK', signal.SIGINT))\n"
        "    sys.exit(4 if cancel.wait(60) else 5)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=home.environ, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    _, err = home.ended(process, 4)
    expect(err, "again stops at once")


CHECKS: tuple[Callable[[Home], None], ...] = (
    diagnose, plan, tables, decode, long_paths, odd_names, held_open, stopped, doctor,
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[check.__name__ for check in CHECKS])
    chosen = parser.parse_args()
    home, failed = Home(chosen.folder.resolve()), 0
    for check in CHECKS:
        if check.__name__ not in chosen.only:
            continue
        began = time.monotonic()
        try:
            check(home)
            how = "ok"
        except (CommandError, subprocess.TimeoutExpired, OSError) as error:
            how, failed = f"FAILED: {error}", failed + 1
        shown = f"{check.__name__}: {how}, {time.monotonic() - began:.0f} s"
        print(shown.encode("ascii", "backslashreplace").decode(), flush=True)
    print(f"{len(chosen.only)} checks, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
