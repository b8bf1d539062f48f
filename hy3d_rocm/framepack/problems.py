"""The four problems of FramePack on AMD cards, and how a log tells them apart. Pure.

The decision tree of specification 003: is there an error or none, and does it come in the decode.
`hy3d-rocm diagnose LOG` knows these and many others from a whole log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """sign: what is seen. cause, remedy: sentences without their full stop."""

    sign: str
    cause: str
    remedy: str

    def text(self) -> str:
        """All of it."""
        return f"{self.sign}: {self.cause}; {self.remedy}"


NO_MEMORY = Problem(
    '"BlockAllocator::alloc failed" in the VAE decode',
    "the card's memory is gone, held by the transformer or by another program",
    "close other programs, start with HY3D_ROCM_VAE=full, or keep 1 GB more free",
)
HANG = Problem(
    'nothing after "[VAE Decode] Attempting GPU decode" and the GPU at 0 %',
    "MIOpen's search for an algorithm hangs",
    'end the program, run "hy3d-rocm miopen clear", which makes a backup; if it hangs again start '
    "with HY3D_ROCM_VAE=cpu",
)
NO_ALGORITHM = Problem(
    '"No suitable algorithm was found" or "miopenStatusUnknownError"',
    "MIOpen cannot do a convolution; those of the VAE go another way by themselves",
    "if the program ends all the same start with HY3D_ROCM_VAE=cpu",
)
OUT_OF_MEMORY = Problem(
    '"HIP out of memory" elsewhere',
    "a section is made again with more left free, until no weight is left to take away",
    "keep 1 GB more free, or make a shorter or smaller video",
)
ALL = (NO_MEMORY, HANG, NO_ALGORITHM, OUT_OF_MEMORY)

_TEXTS = (
    (NO_ALGORITHM, re.compile(r"no suitable algorithm|miopenStatus", re.IGNORECASE)),
    (NO_MEMORY, re.compile(r"BlockAllocator", re.IGNORECASE)),
    (OUT_OF_MEMORY, re.compile(r"out of memory", re.IGNORECASE)),
)


def problem_of(text: str, in_decode: bool) -> Problem | None:
    """Which of them an error's text names. A lack of memory is another one in the decode."""
    for problem, pattern in _TEXTS:
        if pattern.search(text):
            lacks = problem in (NO_MEMORY, OUT_OF_MEMORY)
            return (NO_MEMORY if in_decode else OUT_OF_MEMORY) if lacks else problem
    return None
