"""Why a way of decoding ended, and what may help."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hy3d_rocm.conv.errors import Kind, classify
from hy3d_rocm.decode.faults import is_out_of_memory

OUT_OF_MEMORY = "out of memory"
NOT_FINITE = "not finite"
CONVOLUTION = "a convolution that failed"

_ADVICE = {
    OUT_OF_MEMORY: "free memory, or decode fewer frames or a smaller picture",
    NOT_FINITE: "look at the VAE's file (a broken download?) and at the latents' scale",
    CONVOLUTION: 'run "hy3d-rocm doctor", or decode under hy3d_rocm.protect()',
}


@dataclass(frozen=True)
class Failure:
    """what: one of the words above. text: the error's. wider: the type to try the same way in.
    on_host: whether it was the host's memory that was short."""

    what: str
    text: str
    wider: torch.dtype | None = None
    on_host: bool = False

    def final(self, taken: str, why: Exception) -> Exception:
        """The error where nothing is left to try. taken: the way, in words."""
        text = (
            f"the decode ended: {self.what} in {taken} ({self.text}), and nothing is left to try "
            f"({why}): {_ADVICE[self.what]}"
        )
        return MemoryError(text) if self.what == OUT_OF_MEMORY else RuntimeError(text)


def failure_of(error: Exception, on_cpu: bool) -> Failure:
    """What another way may cure; all else is raised again. on_cpu: the way computes there."""
    text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if is_out_of_memory(error):
        on_host = on_cpu or isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)
        return Failure(OUT_OF_MEMORY, text, on_host=on_host)
    known = classify(error)
    if known is None or known.kind is Kind.DEVICE_LOST:
        raise error
    return Failure(CONVOLUTION, text)
