"""What `hy3d-rocm optimize` tries on a machine, and what it says it does not. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.report import DecodeOptions
from hy3d_rocm.decode.tools.runs import Setting, strategies_for
from hy3d_rocm.units import MB, size_text

if TYPE_CHECKING:
    from hy3d_rocm.decode.tools.subjects import Subject

CHUNKS = (1, 2, 4, 8)  # the specification's
_SLICES = {"cpu": (16 * MB, 32 * MB, 64 * MB), "cuda": (128 * MB, 256 * MB, 512 * MB)}
_CLEANUPS = (1, 0)  # after each result; never
_THRESHOLDS = (0.5, 0.95)  # below and above the usual share of what is free
_BATCH = 2


def settings_for(
    subject: Subject,
    *,
    strategies: Sequence[str] = ("whole", "streamed", "tiled", "cpu"),
    precisions: Sequence[str] | None = None,
    chunks: Sequence[int] = CHUNKS,
    budget: int | str | None = None,
    quarter: int | None = None,
) -> list[Setting]:
    """In the order in which they are tried: what is likely best first, on a GPU memory_settings()
    last.

    precisions: None for the VAE's own, and on a GPU bf16, fp16 and fp32, too. quarter: the budget
    that tiles are cut for where none is given.
    """
    family, device = subject.family, subject.device
    strategies = strategies_for(subject, strategies)
    usual = ("auto", "bf16", "fp16", "fp32") if device.type == "cuda" else ("auto",)
    names = precisions or usual
    own = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    is_own = own.get(str(family.dtype).removeprefix("torch."), "")
    frames = int(subject.latents.shape[2])
    sizes = [c for c in chunks if c <= frames] or [1]
    found: list[Setting] = []
    for precision in dict.fromkeys("auto" if p == is_own else p for p in names):
        for strategy in strategies:
            if strategy == "cpu" and (device.type == "cpu" or precision != "auto"):
                continue  # on the CPU that is "streamed" by another convolution
            for options, note in _variants(strategy, family, device.type, sizes):
                room = budget if budget is not None or strategy != "tiled" else quarter
                name = " ".join(filter(None, [strategy, "" if precision == "auto" else precision,
                                              note]))  # fmt: skip
                found.append(Setting(name, strategy, precision, room, options))
    return found + memory_settings(family, device.type, strategies, budget, quarter)


def memory_settings(
    family: Any, device: str, strategies: Sequence[str], budget: int | str | None = None,
    quarter: int | None = None,
) -> list[Setting]:  # fmt: skip
    """What may be chosen about memory on a GPU, one thing at a time: cleanup_frequency, a batch,
    cpu_offload at a quarter of whole's memory, memory_threshold. None on a CPU: see not_swept()."""
    if device == "cpu" or not strategies:
        return []
    base = "streamed" if "streamed" in strategies else strategies[0]
    found = [
        Setting(f"{base} cleanup {n}", base, "auto", budget, DecodeOptions(cleanup_frequency=n))
        for n in _CLEANUPS
    ]
    found.append(Setting(f"{base} batch of {_BATCH}", base, "auto", budget, batch=_BATCH))
    if _spills(family, strategies):
        found += [
            Setting(f"streamed {word}", "streamed", "auto", budget or quarter,
                    DecodeOptions(cpu_offload=offloads))
            for word, offloads in (("offloading", True), ("without offload", False))
        ]  # fmt: skip
    if budget is None:
        found += [
            Setting(f"auto threshold {share}", options=DecodeOptions(memory_threshold=share))
            for share in _THRESHOLDS
        ]
    return found


def _spills(family: Any, strategies: Sequence[str]) -> bool:
    """Whether activations that do not fit the GPU can go to the host."""
    return "streamed" in strategies and bool(family.has_global_norms)


def not_swept(
    family: Any, device: str, strategies: Sequence[str], budget: int | str | None = None,
    chunks: Sequence[int] | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """Sentences about what is not tried, and why. chunks: as asked for, None where they were
    not."""
    said = []
    if chunks and "streamed" in strategies and family.has_global_norms:
        said.append(
            f"chunk_size is ignored by streamed: the norms of {family.name} see the whole video, "
            "so slices are tried in place of chunks."
        )
    elif chunks and getattr(family, "is_image", False):
        said.append(f"chunk_size is ignored: {family.name} makes single images.")
    if device == "cpu":
        said.append(
            "Tried on a GPU only: cpu_offload (here everything is in the host's memory), "
            "cleanup_frequency, memory_threshold and a batch (they change what a GPU's allocator "
            "holds), and fp32 beside the VAE's own type (--precisions auto,fp32 tries it)."
        )
        return tuple(said)
    if not _spills(family, strategies):
        said.append(
            f"cpu_offload is not tried: {family.name} streams in chunks, of which nothing is moved "
            "to the host."
            if not family.has_global_norms
            else "cpu_offload is not tried: streamed alone moves activations to the host."
        )
    if budget is not None:
        said.append("memory_threshold is not tried: it is a share for the budget auto.")
    return tuple(said)


def _variants(
    strategy: str, family: Any, device: str, sizes: list[int]
) -> list[tuple[DecodeOptions, str]]:
    if strategy == "streamed" and family.has_global_norms:
        return [
            (DecodeOptions(slice_bytes=size), f"slices of {size_text(size, 0)}")
            for size in _SLICES.get(device, _SLICES["cpu"])
        ]
    if strategy in ("streamed", "tiled"):
        chosen = sizes if strategy == "streamed" else sizes[:2]
        return [(DecodeOptions(chunk_size=size), f"chunks of {size}") for size in chosen]
    return [(DecodeOptions(), "")]
