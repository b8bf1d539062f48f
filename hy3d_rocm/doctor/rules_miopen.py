"""Rules about MIOpen's caches and databases, and which find mode suits their state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hy3d_rocm.doctor.finding import Facts, Rule, Said, Severity
from hy3d_rocm.env.checks import FILLED
from hy3d_rocm.units import GB, size_text

_FIND_MODES = "https://rocm.docs.amd.com/projects/MIOpen/en/latest/how-to/find-and-immediate.html"
_CLEAR = "close ComfyUI and run hy3d-rocm miopen clear (it makes a backup first)"
_DATABASES = ("find", "performance", "compiled")


def _concerned(facts: Facts) -> bool:
    """Whether MIOpen is what convolutions run on, or would."""
    return bool(facts.get("torch.hip") or facts.get("machine.runs_on_amd"))


def _mode(facts: Facts) -> str:
    number = {"1": "NORMAL", "2": "FAST", "3": "HYBRID", "5": "DYNAMIC_HYBRID"}
    value = str(facts.get("variables.MIOPEN_FIND_MODE.value", "")).strip().upper()
    return number.get(value, value)


def _files(facts: Facts) -> Iterator[Mapping[str, Any]]:
    for place in facts.rows("miopen.places"):
        for file in place.get("files") or ():
            if isinstance(file, Mapping):
                yield file


def _found(facts: Facts) -> tuple[int, int]:
    """Find results for the MIOpen that torch has, and for others; all, where that isn't known."""
    own = str(facts.get("torch.library", ""))
    mine = others = 0
    for file in _files(facts):
        if file.get("holds") == "find":
            is_other = bool(own and file.get("version") and file["version"] != own)
            mine += 0 if is_other else int(file.get("entries") or 0)
            others += int(file.get("entries") or 0) if is_other else 0
    return mine, others


def empty(facts: Facts) -> Iterator[Said]:
    mine, others = _found(facts)
    mode = _mode(facts)
    if not _concerned(facts) or mine or mode == "FAST" or not facts.get("miopen"):
        return
    old = f" ({others} are of another version of MIOpen, which this one does not read)" if others \
        else ""  # fmt: skip
    yield Said(
        "MIOpen has no find results for this card yet: it will time every solver it has",
        f"0 find results{old}; MIOPEN_FIND_MODE is {mode or 'not set, so DYNAMIC_HYBRID'}",
        "set MIOPEN_FIND_MODE=FAST before ComfyUI is started (this pack does, if nothing is set)",
    )


def filled(facts: Facts) -> Iterator[Said]:
    mine, _ = _found(facts)
    if _concerned(facts) and mine >= FILLED and _mode(facts) == "FAST":
        yield Said(
            "MIOpen's database is filled: a mode that searches may now be better than FAST",
            f"{mine} find results; FAST takes them too, and guesses for every new shape",
            "run hy3d-rocm tune for the shapes that you use, then try "
            "MIOPEN_FIND_MODE=DYNAMIC_HYBRID: only new shapes take longer, once",
        )


def not_writable(facts: Facts) -> Iterator[Said]:
    if not _concerned(facts):
        return
    for place in facts.rows("miopen.places"):
        if place.get("error") or not place.get("writable", True):
            why = place.get("error") or "this user may not write there"
            yield Said(
                f"MIOpen can't keep its {place.get('kind')}",
                f"{place.get('path')}: {why}",
                f"make {place.get('path')} yours: sudo chown -R $USER there",
            )


def on_network_disk(facts: Facts) -> Iterator[Said]:
    network = [p for p in facts.rows("miopen.places") if p.get("chosen_by") == "network"]
    if _concerned(facts) and network:
        yield Said(
            "MIOpen forgets everything at each restart: the home folder is on a network disk",
            f"it uses {network[0].get('path')} instead",
            "set MIOPEN_USER_DB_PATH and MIOPEN_CUSTOM_CACHE_DIR to a folder on a local disk",
        )


def damaged(facts: Facts) -> Iterator[Said]:
    bad = [
        str(file.get("path"))
        for file in _files(facts)
        if file.get("holds") in _DATABASES and file.get("entries") is None and file.get("bytes")
        and not file.get("in_use")  # open in MIOpen: not counted
        and not str(file.get("path")).endswith(("-wal", "-shm", "-journal", ".txt"))
    ]  # fmt: skip
    if _concerned(facts) and bad:
        yield Said("A database of MIOpen's can't be read", ", ".join(bad[:4]),
                   _CLEAR)  # fmt: skip


def outgrown(facts: Facts) -> Iterator[Said]:
    """Files of versions that are no longer used."""
    by_version: dict[str, int] = {}
    for place in facts.rows("miopen.places"):
        for version, size in (place.get("versions") or {}).items():
            if version:
                by_version[version] = by_version.get(version, 0) + int(size or 0)
    own = str(facts.get("torch.library", "")) or (max(by_version, default=""))
    old = {version: size for version, size in by_version.items() if version != own}
    if sum(old.values()) >= GB and own in by_version:
        which = ", ".join(f"{version}: {size_text(size)}" for version, size in old.items())
        yield Said("Kernels of older versions of MIOpen take up room",
                   f"{which}; this PyTorch has {own}",
                   _CLEAR)  # fmt: skip


RULES = (
    Rule("miopen-not-writable", Severity.WARNING, not_writable),
    Rule("miopen-damaged", Severity.WARNING, damaged,
         "https://github.com/ROCm/MIOpen/issues/1878"),
    Rule("miopen-network-disk", Severity.WARNING, on_network_disk,
         "https://github.com/ROCm/MIOpen/blob/2d1fd997a6fcf801ac4ca7a63e0656ef1cb9f488/src/"
         "db_path.cpp.in"),
    Rule("miopen-empty", Severity.ADVICE, empty,
         f"{_FIND_MODES} https://github.com/patientx/ComfyUI-Zluda/issues/350"),
    Rule("miopen-filled", Severity.ADVICE, filled,
         f"{_FIND_MODES} https://github.com/ROCm/MIOpen/pull/417"),
    Rule("miopen-old-versions", Severity.ADVICE, outgrown,
         "https://github.com/patientx/ComfyUI-Zluda/issues/350"),
)  # fmt: skip
