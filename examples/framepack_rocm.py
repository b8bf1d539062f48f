"""Runs lllyasviel's FramePack with its memory looked after and its VAE's convolutions protected.

    python examples/framepack_rocm.py FRAMEPACK [--script demo_gradio_f1.py] [its own arguments]

FRAMEPACK: the folder with demo_gradio.py. Nothing in it is changed. See docs/framepack.md.
"""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import suppress
from pathlib import Path

with suppress(ImportError):
    import hy3d_rocm  # noqa: F401  (one that is installed, with its C core, before the checkout's)
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples.framepack import program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="FramePack's folder")
    parser.add_argument("--script", default="demo_gradio.py", help="which of its programs")
    given, its_own = parser.parse_known_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    reason = program.why_not(given.folder, given.script)
    if reason is not None:
        parser.exit(2, f"{reason}\n")
    program.run(given.folder, given.script, its_own)


if __name__ == "__main__":
    main()
