"""Processes that are forked from one which has imported torch: as an interpreter would be."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import warm_start

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytestmark = pytest.mark.skipif(not warm_start.IS_THERE, reason="it forks none here")


def test_a_process_has_its_words_streams_folder_environment_and_code(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "print(sys.argv, os.getcwd(), sys.stdin.read(), sorted(os.environ))\n"
        "print(__name__, sys.path[0] == '', 'of the environment' in sys.path)\n"
        "print('to the other', file=sys.stderr)\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    env = {"PYTHONPATH": "of the environment"}
    made = warm_start.run("-c", program, "7", text="read", cwd=tmp_path, env=env)
    assert made.returncode == 7
    assert made.stdout.splitlines() == [
        f"['-c', '7'] {tmp_path} read ['PYTHONPATH']", "__main__ True True"
    ]  # fmt: skip
    assert made.stderr == "to the other\n"


def test_scripts_and_modules_run_too(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import sys\nif __name__ == '__main__': print(sys.argv)\n")
    script = tmp_path / "script.py"
    script.write_text("import beside\nprint(__name__, beside.__name__)\n")
    assert warm_start.run(str(script)).stdout == "__main__ beside\n"
    path = str(tmp_path / "beside.py")
    assert warm_start.run("-m", "beside", "x", cwd=tmp_path).stdout == f"[{path!r}, 'x']\n"


@pytest.mark.parametrize(
    ("program", "code", "last"),
    [
        ("raise ValueError('so')", 1, "ValueError: so"),
        ("import sys; sys.exit('in words')", 1, "in words"),
        ("import atexit; atexit.register(print, 'at the end'); print('first')", 0, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
    ],
)
def test_how_it_ends_is_told(program: str, code: int, last: str) -> None:
    made = warm_start.run("-c", program)
    assert made.returncode == code
    assert (made.stderr.splitlines() or [""])[-1] == last
    assert made.stdout == ("first\nat the end\n" if "atexit" in program else "")


def test_torch_is_imported_and_nothing_of_the_package() -> None:
    program = (
        "import sys; print('torch' in sys.modules, [m for m in sys.modules if"
        " m.split('.')[0] == 'hy3d_rocm'], sys.modules['torch'].get_num_threads())"
    )
    assert warm_start.run("-c", program).stdout == "True [] 1\n"


def test_its_processor_time_is_known() -> None:
    before = warm_start.Server.seconds
    program = "import time\nwhile time.process_time() < 0.3: pass"
    assert warm_start.run("-c", program).returncode == 0
    assert 0.3 <= warm_start.Server.seconds - before < 3


def test_one_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired) as ended:
        warm_start.run("-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)",
                       timeout=0.5)  # fmt: skip
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.value.output), 0)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def first_of(server: warm_start.Server) -> int:
    """The first process, from which the server's is forked, whose child this one is."""
    with tempfile.TemporaryFile() as errors:
        child = server.run(
            "-c", "import os; print(os.getppid())", stderr=errors.fileno(), environ=os.environ
        )
        child.stdin.close()
        with child.stdout:
            found = int(child.stdout.read())
        assert child.wait(30) == 0
    return parent(found)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_first_process_is_everybodys_and_ends_with_the_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One of its own here, which imports nothing."""
    monkeypatch.setenv(warm_start.RUN, f"{os.getpid()}-alone")
    source = Path(warm_start.__file__).read_text(encoding="utf-8")
    script = tmp_path / "warm_start.py"
    script.write_text(re.sub(r"^MODULES = .*", "MODULES = ()", source, flags=re.M))
    monkeypatch.setattr(warm_start, "__file__", str(script))
    servers = [warm_start.Server() for _ in range(2)]
    first, other = map(first_of, servers)
    assert first == other
    servers[0].close()
    assert first_of(servers[1]) == first
    servers[1].close()
    until = time.monotonic() + 30
    while runs(first):
        assert time.monotonic() < until
        time.sleep(0.05)
