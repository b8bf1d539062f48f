"""What torch says: in this process where it has the GPU started already, else in a child.

Starting the GPU may hang in a broken driver, and a broken build may take the process with it: so
neither happens in the process that was asked for a diagnosis.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from hy3d_rocm.env.doctor import torch_facts

_CALL = f"{__name__}:here"


def collect(seconds: float) -> dict[str, Any]:
    """`here()`, at most about `seconds` later; {"error", "is_hang"} where nothing is known."""
    if is_started():
        return here() | {"in_this_process": True}
    from hy3d_rocm.conv.probe.parent import NoAnswerError, ask

    try:
        facts = ask(_CALL, limit_s=seconds)
    except NoAnswerError as error:
        return {"error": str(error), "is_hang": error.is_hang}
    return facts if isinstance(facts, dict) else {"error": "the child's answer is no table"}


def is_started() -> bool:
    """Whether torch is in this process and has started its GPU."""
    torch = sys.modules.get("torch")
    try:
        return bool(torch is not None and torch.cuda.is_initialized())
    except Exception:  # noqa: BLE001  (half-imported, or a double: the child will tell)
        return False


def here() -> dict[str, Any]:
    """As env.doctor.torch_facts, with "architectures", "library", "triton" and GPUs' memory."""
    facts = torch_facts()
    if "version" in facts:
        # One answer less where it fails; what matters is in "error" already.
        facts.update(architectures=[], library="", triton=triton())
        with suppress(Exception):
            facts["architectures"] = _architectures()
        with suppress(Exception):
            facts["library"] = _library()
        for index, gpu in enumerate(facts["gpus"]):
            with suppress(Exception):
                gpu.update(_memory(index))
    return facts


def triton() -> dict[str, str]:
    """{"version", "error"} of the module that Triton's kernels need."""
    try:
        import triton
    except Exception as error:  # noqa: BLE001  (its libraries may miss anything: that is the fact)
        return {"version": "", "error": f"{type(error).__name__}: {error}"}
    return {"version": str(getattr(triton, "__version__", "unknown")), "error": ""}


def _architectures() -> list[str]:
    """What this build has kernels for; not asked through torch.cuda, which wants a GPU."""
    import torch

    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return flags.split() if flags else []


def _library() -> str:
    """MIOpen's version, or cuDNN's."""
    import torch

    from hy3d_rocm.conv.verdict_store.machine import library_version

    if not torch.version.hip and not torch.version.cuda:
        return ""
    number = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return library_version(number, is_amd=bool(torch.version.hip))


def _memory(index: int) -> dict[str, Any]:
    import torch

    from hy3d_rocm.memory import gpu_bytes

    free, total = gpu_bytes(index)
    return {
        "free_bytes": free,
        "total_bytes": total,
        "allocated_bytes": int(torch.cuda.memory_allocated(index)),
        "reserved_bytes": int(torch.cuda.memory_reserved(index)),
    }
