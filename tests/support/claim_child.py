"""A process that claims an output and writes it: its frames are of one grey, so that the output
tells whose they are."""

from __future__ import annotations

import sys
import time
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from hy3d_rocm.frames.claim import Claim
from hy3d_rocm.frames.output import OutputError
from hy3d_rocm.frames.sinks import sink_for

COUNT = 6


def write(path: Path, grey: int, resume: bool, hold: bool, talk: Connection) -> None:
    """Waits for a word, then says "began" or why it was refused; with `hold` it waits for another
    word in the middle of its frames."""
    frames = torch.full((1, 3, COUNT, 16, 16), grey / 127.5 - 1)
    claim = Claim(path, {"grey": grey} if resume else None)
    talk.recv()
    try:
        with claim:
            talk.send("began")
            sink = sink_for(path, fps=Fraction(24), claim=claim)
            sink.begin(tuple(frames.shape), frames.dtype, {"grey": grey})
            for at in range(COUNT):
                time.sleep(0.01)
                if hold and at == COUNT // 2:
                    talk.recv()
                sink.put(0, at, frames[:, :, at : at + 1])
            sink.finish()
    except OutputError as error:
        talk.send(f"refused: {error}")
        sys.exit(1)
