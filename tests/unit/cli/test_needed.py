"""Commands where a package is not installed."""

from __future__ import annotations

import subprocess
import sys

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
