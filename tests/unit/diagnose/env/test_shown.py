"""What others may see: no names, no folders of people, no secrets, nothing a terminal obeys."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hy3d_rocm.diagnose.doctor import basic
from hy3d_rocm.diagnose.env import rules
from hy3d_rocm.diagnose.env.machine import Machine
from hy3d_rocm.diagnose.env.rules import judge
from hy3d_rocm.diagnose.env.shown import anonymous, printable

BOB = {"HOME": "/home/bob", "USER": "bob"}
SMITH = {"USERPROFILE": r"C:\Users\John Smith", "USERNAME": "John Smith"}


@pytest.mark.parametrize(
    ("text", "cut", "kept"),
    [
        ("open /data/vae.st failed", "open vae.st failed", "open /data/vae.st failed"),
        (r"C:\Users\someone\x.py line 3", "x.py line 3", r"~\x.py line 3"),
        ("~/.cache/thing", "thing", "~/.cache/thing"),
        ("https://example.org/page/two", *["https://example.org/page/two"] * 2),
        ("https://jo:secret@example.org/p", *["https://...@example.org/p"] * 2),
        ("1/2 and and/or", *["1/2 and and/or"] * 2),
        ("in /home/bob", "in ~", "in ~"),
        ("/home/bobby/x.py", "x.py", "~/x.py"),
        ("bob_model.pt of BOB", *["..._model.pt of ..."] * 2),
        ("a bobbin", *["a bobbin"] * 2),
        (r"C:\Users\John Smith\AppData\x.dll is", "x.dll is", r"~\AppData\x.dll is"),
        (r"denied: 'C:\\Users\\John Smith\\AppData'", "denied: 'AppData'", r"denied: '~\\AppData'"),
        (r"C:\Users\John Smith", "~", "~"),
        (r"at \\nas\jane\dir\f.txt now", "at f.txt now", "at f.txt now"),
        (r"\\nas\jane", "...", "..."),
        ("file:///home/bob/x.py", "x.py", "x.py"),
        ("file://nas/home/John%20Smith/x.py", "x.py", "x.py"),
        ("/home/John Smith/ComfyUI/models/x.pt", "x.pt", "~/ComfyUI/models/x.pt"),
        ("/media/John Smith/disk/x", "x", "~/disk/x"),
        ("'/data/My Own/x y.png'", "'x y.png'", "'/data/My Own/x y.png'"),
        ("/usr/lib/a.so to /opt/rocm/lib", "a.so to lib", "/usr/lib/a.so to /opt/rocm/lib"),
        ("(/a/b/c.py:12)", "(c.py:12)", "(/a/b/c.py:12)"),
        ("/mnt/c/Users/John/x", "x", "~/x"),
        (r"\\?\C:\Users\Jo\x", "x", r"~\x"),
        ("mail jo.doe@example.org", *["mail ..."] * 2),
    ],
)
def test_texts_name_no_user_no_machine_and_no_home_folder(text: str, cut: str, kept: str) -> None:
    assert anonymous({"a": [text]}, BOB) == {"a": [cut]}
    assert anonymous((text,), BOB, keep_paths=True) == [kept]


def test_the_own_home_folder_is_known_in_every_spelling() -> None:
    texts = [
        r"C:\Users\John Smith",
        r"C:\\Users\\John Smith is",
        "c by John Smith",
        "C:/Users/John Smith",
    ]
    assert anonymous(texts, SMITH) == ["~", "~ is", "c by ...", "~"]
    assert anonymous({"/srv/jane/x": 1}, {"HOME": "/srv/jane"}) == {"x": 1}
    assert anonymous("/srv/jane and /srv/janet", {"HOME": "/srv/jane"}, keep_paths=True) == (
        "~ and /srv/janet"
    )
    facts = {"a": "/data/x", "b": [5, None, True]}
    assert anonymous(facts, {"HOME": "/"}, keep_paths=True) == facts


def test_names_that_tell_nobody_apart_stay() -> None:
    text = "CPU: root runs rocm and wan"
    assert anonymous(text, {"USER": "wan", "HOME": "/root"}) == text


def test_a_long_line_without_a_path_is_read_in_linear_time() -> None:
    """Backtracking over spaces and separators would take minutes."""
    for text in ("a " * 50_000, "/" * 50_000, "\\" * 50_000, "/a b" * 20_000, "~" * 50_000,
                 "C:" * 50_000, "'" * 50_000, "/home/" + "a " * 50_000):  # fmt: skip
        began = time.process_time()
        anonymous(text, BOB)
        assert time.process_time() - began < 5.0, text[:8]


@pytest.mark.parametrize(
    "value",
    [
        "", "1", "10.3.0", "FAST", "DYNAMIC", "0,1", "gfx1100;gfx1030", "20GB", "off", "TRUE",
        "expandable_segments:True,max_split_size_mb:512", "garbage_collection_threshold:0.8",
    ],
)  # fmt: skip
def test_values_that_are_known_to_be_harmless_are_shown(value: str) -> None:
    assert rules.public_value(value) == value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("hf_abcdef", "(9 characters, not shown)"),
        ("GPU-1a2b3c4d5e6f", "(16 characters, not shown)"),
        ("/home/bob/x", "(a path, not shown)"),
        (r"C:\Users\bob", "(a path, not shown)"),
        ("0,secret", "(8 characters, not shown)"),
        ("12345678901234567890", "(20 characters, not shown)"),
        ("1\x1b[2J", "(5 characters, not shown)"),
    ],
)
def test_other_values_only_tell_how_long_they_are(value: str, shown: str) -> None:
    assert rules.public_value(value) == shown


def test_no_secret_of_a_variable_is_in_facts_notes_or_findings() -> None:
    secret = "tok-s3cr3t"  # no whole word of any rule
    names = (
        "HSA_OVERRIDE_GFX_VERSION HSA_ANYTHING HY3D_CPU HY3D_ANYTHING HY3D_FAULTS MIOPEN_FIND_MODE "
        "MIOPEN_FIND_ENFORCE MIOPEN_ANYTHING MIOPEN_USER_DB_PATH PYTORCH_HIP_ALLOC_CONF "
        "PYTORCH_CUDA_ALLOC_CONF HIP_VISIBLE_DEVICES"
    )
    environ = dict.fromkeys(names.split(), secret)
    machine = Machine(("gfx1100",), torch=(2, 9), torch_is_rocm=True, rocm=(7, 0))
    facts: dict[str, Any] = basic.collect(environ, machine=machine, torch={"error": "no"})
    assert len(facts["variables"]) > 8
    assert "s3cr3t" not in json.dumps(facts)
    told = [finding.public().text for finding in judge(environ, machine)]
    assert told
    assert not [text for text in told if "s3cr3t" in text]


def test_nothing_that_a_terminal_obeys_is_printable() -> None:
    assert printable("a\x1b[31mb\x9b2Jc\nd\r\x00\x7f\u202e\udcff") == (
        r"a\x1b[31mb\x9b2Jc\nd\r\x00\x7f\u202e\udcff"
    )
    assert printable("käse 漢字 ✓") == "käse 漢字 ✓"
    assert printable("x" * 200, 10) == "xxxxxxx..."


def test_it_is_imported_without_torch_and_numpy() -> None:
    code = (
        "import sys, hy3d_rocm.diagnose.env.rules, hy3d_rocm.diagnose.env.shown; "
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_command_prints_what_a_terminal_obeys(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from hy3d_rocm import cli

    bad = "a\x1b[31m\x9b2J\x9d0;title\x07\u202e\udcff"
    log = tmp_path / "log.txt"
    log.write_bytes(b"RuntimeError: HIP out of memory \x1b[2J \xc2\x9b31m\x07\n")
    for argv in (
        ["decode", f"{bad}.safetensors", "--vae", bad, "--out", bad],
        ["diagnose", bad],
        ["diagnose", str(log)],
        ["compare", bad, bad],
        ["miopen", "restore", bad],
        ["db", "--path", bad, "info"],
        ["validate", "--vae", bad],
        ["render", bad],
        [bad],
        ["decode", "--budget", bad],
        ["doctor", "--seconds", bad],
    ):
        with contextlib.suppress(SystemExit):
            cli.main(argv)
        shown = "".join(capsys.readouterr())
        assert shown
        assert not {c for c in shown if not c.isprintable()} - {"\n", "\t", "\r"}, argv
        assert "\x1b" not in shown


def test_our_log_lines_are_safe_in_a_process_whose_streams_are_not_ours() -> None:
    from hy3d_rocm.diagnose.env import startup

    startup.run({"HY3D_ROCM": "off"})  # as ComfyUI's prestart step does
    bad = "a\x1b[31m\x9b2J\r\x1b[K\u202e\udcff"
    logger, written = logging.getLogger("hy3d_rocm"), io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    try:
        logger.warning("%s.safetensors\n\t%d frames, käse 漢字", bad, 3)
        logger.warning(bad)
        logger.warning("100 %")
        try:
            raise ValueError(bad)
        except ValueError:
            logger.warning("failed", exc_info=True)
    finally:
        logger.removeHandler(handler)
    lines = written.getvalue().splitlines()
    shown = printable(bad)
    assert lines[:4] == [f"{shown}.safetensors", "\t3 frames, käse 漢字", shown, "100 %"]
    assert lines[-1] == f"ValueError: {shown}"


def test_progress_lines_and_log_lines_go_through_the_same_stream() -> None:
    code = (
        "import logging, sys; from hy3d_rocm.diagnose.env.shown import printed_safely\n"
        "with printed_safely():\n"
        "    logging.basicConfig(format='%(message)s')\n"
        "    sys.stderr.write('\\rasking ...\\n')\n"
        "    logging.warning('of %s', 'x\\x1b[2J\\x9b')\n"
        "    print('caf\\u00e9 \\udcff \\u4e2d')\n"
        "assert type(sys.stdout).__name__ == 'TextIOWrapper'\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    end = os.linesep
    assert ran.stderr.decode("latin-1") == f"\rasking ...{end}of x\\x1b[2J\\x9b{end}"
    assert ran.stdout.decode("latin-1") == f"café \\udcff \\u4e2d{end}"
