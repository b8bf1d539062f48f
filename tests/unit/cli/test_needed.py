"""Commands where a package is not installed, and at Ctrl-C."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hy3d_rocm import cli

WORDS = ("plan --vae hunyuan --latent 9x40x64", "validate --frames 5 --size 64x64",
         "bench precision", "tune --vae wan21 --size 64x64 --frames 5")  # fmt: skip
CODE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from hy3d_rocm import cli
print([cli.main(words.split()) for words in sys.argv[1:]])
"""


@pytest.mark.parametrize(
    ("missing", "told"),
    [("PIL", "hy3d-rocm plan: this needs Pillow: {python} -m pip install Pillow\n"),
     # Of a package that is there, in another version: its own words tell more.
     ("diffusers.models.later", None), ("hy3d_rocm.gone", None)],
)  # fmt: skip
def test_a_missing_package_is_told_from_a_missing_part(
    missing: str, told: str | None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fail(_arguments: object) -> int:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr("hy3d_rocm.cli.plan.run_plan_command", fail)
    words = ["plan", "--vae", "hunyuan", "--latent", "9x40x64"]
    if told is None:
        with pytest.raises(ModuleNotFoundError, match=missing):
            cli.main(words)
    else:
        assert cli.main(words) == 1
        assert capsys.readouterr().err == told.format(python=sys.executable)


def test_without_torch_a_command_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *WORDS], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"{[1] * len(WORDS)}\n"
    assert done.stderr.splitlines() == [
        f"hy3d-rocm {words.split()[0]}: this needs PyTorch, which is not installed for "
        f"{sys.executable}: install the build for your card first"
        for words in WORDS
    ]


@pytest.mark.parametrize("words", ["plan --vae hunyuan", "compare A B", "db list", "miopen info"])
def test_ctrl_c_is_a_sentence_and_130(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_arguments: object) -> int:
        raise KeyboardInterrupt

    name = words.split()[0]
    module = {"plan": "cli.plan", "compare": "bench.compare", "miopen": "diagnose.miopen.command"}
    home = module.get(name, "conv.verdict_store.command")
    monkeypatch.setattr(f"hy3d_rocm.{home}.run_{name}_command", interrupted)
    assert cli.main(words.split()) == 130
    assert capsys.readouterr().err == f"hy3d-rocm {name}: interrupted\n"
