"""Rules about variables, this pack's own parts and settings, and the self-test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hy3d_rocm.doctor.finding import Facts, Rule, Said, Severity
from hy3d_rocm.doctor.selftest import is_wrong, tier_name
from hy3d_rocm.env.choices import PATCH_VARIABLE, read_patch_choice

_VERDICTS = {
    "throws": Severity.ERROR, "harmful": Severity.WARNING, "does nothing": Severity.ADVICE,
}  # fmt: skip
_TITLES = {
    "throws": "{name} has a value that is refused",
    "harmful": "{name} does harm",
    "does nothing": "{name} has no effect",
}
_SWITCHES = ("HY3D_ROCM", "HY3D_ROCM_ENV", "HY3D_ROCM_VAE")
_NO_REMEDY = "leave it unset"


def variables(facts: Facts) -> Iterator[Said]:
    """One finding for each rule of the variables' table, with all variables that it speaks of."""
    by_rule: dict[str, list[Mapping[str, Any]]] = {}
    for judged in facts.rows("judged"):
        if judged.get("verdict") in _VERDICTS:
            by_rule.setdefault(str(judged.get("rule")), []).append(judged)
    for rule, group in by_rule.items():
        first = group[0]
        verdict = str(first["verdict"])
        names = ", ".join(str(judged.get("subject") or judged.get("name")) for judged in group)
        values = ", ".join(f"{judged.get('name')}={judged.get('value')}" for judged in group)
        yield Said(
            _TITLES[verdict].format(name=names),
            f"{values}: {first.get('effect')}",
            str(first.get("remedy") or _NO_REMEDY),
            severity=_VERDICTS[verdict],
            id=f"variable-{rule}",
            source=str(first.get("source") or ""),
        )


def switched_off(facts: Facts) -> Iterator[Said]:
    off = [
        f"{name}=off"
        for name in _SWITCHES
        if str(facts.get(f"variables.{name}.value", "")).strip().lower() == "off"
    ]
    text = str(facts.get(f"variables.{PATCH_VARIABLE}.value", ""))
    choice = read_patch_choice({PATCH_VARIABLE: text})
    if text.startswith("("):  # it holds more than known words, so facts don't have it
        off.append(f"{PATCH_VARIABLE} is not understood, so nothing is corrected in place")
    elif choice.mode == "off":
        off.append(choice.problem or f"{PATCH_VARIABLE}={text.strip()}")
    off += [f"the setting {name} is off" for name in facts.get("comfyui.switched_off", [])]
    if off:
        yield Said("Parts of this pack are switched off", ", ".join(off),
                   "switch them on again where the trouble is in what they care for")  # fmt: skip


def core_missing(facts: Facts) -> Iterator[Said]:
    if facts.get("core.available") is False:
        yield Said(
            "The C core of this package is missing: convolutions on the CPU are slower without it",
            str(facts.get("core.missing", "")),
            str(facts.get("core.blas.error") or "install this package with pip where a C compiler "
                "is, or from a wheel"),
        )  # fmt: skip


def blas_missing(facts: Facts) -> Iterator[Said]:
    if facts.get("core.available") and facts.get("core.blas.available") is False:
        yield Said(
            "The C core has no BLAS: convolutions on the CPU are slow",
            str(facts.get("core.blas.error", "")),
            "install this package again with pip (its wheel brings OpenBLAS), or a system OpenBLAS",
        )


def core_lowered(facts: Facts) -> Iterator[Said]:
    level, detected = facts.get("core.cpu.level"), facts.get("core.cpu.detected")
    if level and detected and level != detected:
        yield Said("The CPU kernels are limited below what this CPU can do",
                   f"{level} instead of {detected}", "unset HY3D_CPU")  # fmt: skip


def hung_before(facts: Facts) -> Iterator[Said]:
    count = facts.number("knowledge.verdicts.hang")
    if count:
        yield Said(
            "Convolutions have hung on this machine; that back-end is no longer tried for them",
            f"{count} of them in {facts.get('knowledge.path')} (hy3d-rocm db list --verdict hang)",
            "after an update of driver or PyTorch: hy3d-rocm tune --retry-hung",
        )


def knowledge_unreadable(facts: Facts) -> Iterator[Said]:
    error = facts.get("knowledge.error", "")
    if error and "no such table" not in error:
        yield Said(
            "The database of measured convolutions can't be read",
            f"{facts.get('knowledge.path')}: {error}",
            "close ComfyUI and move that file away; a new one is made",
        )


def tiers(facts: Facts) -> Iterator[Said]:
    """One finding for each back-end that was wrong, hung or failed."""
    is_amd = bool(facts.get("torch.hip"))
    for result in facts.rows("self_test.results"):
        name = tier_name(str(result.get("tier")), is_amd)
        where = f"{result.get('shape')} on {result.get('device')}"
        detail, verdict = str(result.get("detail") or ""), result.get("verdict")
        left_out = "" if result.get("tier") == "cpu" else "; protect() does without it"
        said = _tier(result, name, f"{where}: {detail or verdict}{left_out}", verdict, is_amd)
        if said is not None:
            yield said


def _tier(
    result: Mapping[str, Any], name: str, evidence: str, verdict: Any, is_amd: bool
) -> Said | None:
    tier = result.get("tier")
    if is_wrong(result):
        fix = "update PyTorch or the driver, and say so in an issue" if tier == "vendor" else \
            "report it with this report"  # fmt: skip
        return Said(f"A convolution by {name} comes out wrong", evidence, fix,
                    severity=Severity.ERROR, id=f"tier-wrong-{tier}")  # fmt: skip
    if verdict == "hang":
        fix = "restart the machine and run this again"
        if tier == "vendor" and is_amd:
            fix = "set MIOPEN_FIND_MODE=FAST, and hy3d-rocm miopen clear if that was set"
        return Said(f"A convolution by {name} hangs", evidence, fix,
                    severity=Severity.WARNING if tier == "vendor" else Severity.ERROR,
                    id=f"tier-hang-{tier}")  # fmt: skip
    if verdict == "error":
        fix = "update PyTorch or the driver" if tier == "vendor" else "report it with this report"
        return Said(f"A convolution by {name} fails", evidence, fix,
                    severity=Severity.WARNING, id=f"tier-error-{tier}")  # fmt: skip
    if verdict == "slow-find":
        return Said(f"The first convolution by {name} takes long",
                    f"{evidence}: {result.get('first_seconds') or 0:.1f} s, and later "
                    f"{result.get('seconds') or 0:.3f} s", "set MIOPEN_FIND_MODE=FAST",
                    severity=Severity.ADVICE, id=f"tier-slow-{tier}")  # fmt: skip
    if verdict == "oom":
        return Said(f"No memory was free to try {name}", evidence,
                    "free the card's memory and run this again",
                    severity=Severity.ADVICE, id=f"tier-memory-{tier}")  # fmt: skip
    return None


def no_gpu_tier(facts: Facts) -> Iterator[Said]:
    on_gpu = [
        r for r in facts.rows("self_test.results")
        if str(r.get("device")).startswith("cuda") and r.get("tier") != "cpu"
        and r.get("verdict") != "refused"
    ]  # fmt: skip
    if on_gpu and all(r.get("verdict") not in ("ok", "slow-find") for r in on_gpu):
        is_amd = bool(facts.get("torch.hip"))
        verdicts = ", ".join(
            f"{tier_name(str(r.get('tier')), is_amd)}: {r.get('verdict')}" for r in on_gpu
        )
        yield Said(
            "No convolution back-end works on the GPU",
            verdicts,
            "restart the machine; if it stays so, decode on the CPU (--cpu-vae)",
        )


def not_tested(facts: Facts) -> Iterator[Said]:
    why = facts.get("self_test.why", "")
    if facts.get("self_test") and not facts.get("self_test.ran") and why:
        yield Said("The self-test could not be run", why, "run hy3d-rocm doctor on a console")


def all_well(facts: Facts) -> Iterator[Said]:
    is_amd = bool(facts.get("torch.hip"))
    good = [r for r in facts.rows("self_test.results") if r.get("verdict") == "ok"]
    by_device: dict[str, list[str]] = {}
    for result in good:
        name = tier_name(str(result.get("tier")), is_amd)
        by_device.setdefault(str(result.get("device")), []).append(name)
    if by_device:
        text = "; ".join(f"{device}: {', '.join(names)}" for device, names in by_device.items())
        yield Said(f"{len(good)} convolution back-ends were tried and are right", text)


RULES = (
    Rule("variable", Severity.WARNING, variables),
    Rule("no-gpu-tier", Severity.ERROR, no_gpu_tier),
    Rule("tier", Severity.WARNING, tiers),
    Rule("blas-missing", Severity.WARNING, blas_missing),
    Rule("knowledge-unreadable", Severity.WARNING, knowledge_unreadable),
    Rule("core-missing", Severity.ADVICE, core_missing),
    Rule("core-lowered", Severity.ADVICE, core_lowered),
    Rule("switched-off", Severity.ADVICE, switched_off),
    Rule("hung-before", Severity.ADVICE, hung_before),
    Rule("not-tested", Severity.ADVICE, not_tested),
    Rule("self-test", Severity.FINE, all_well),
)  # fmt: skip
