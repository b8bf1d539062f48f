"""Checks of rules/pack.toml: variables, this pack's own parts and settings, and the self-test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hy3d_rocm.doctor.finding import Facts, Said
from hy3d_rocm.doctor.selftest import is_wrong, tier_name
from hy3d_rocm.env.choices import PATCH_VARIABLE, read_patch_choice

_VERDICTS = ("throws", "harmful", "does nothing")
_SWITCHES = ("HY3D_ROCM", "HY3D_ROCM_ENV", "HY3D_ROCM_VAE")


def variables(facts: Facts) -> Iterator[Said]:
    """One finding for each rule of the variables' table, with all variables that it speaks of."""
    by_rule: dict[str, list[Mapping[str, Any]]] = {}
    for judged in facts.rows("judged"):
        if judged.get("verdict") in _VERDICTS:
            by_rule.setdefault(str(judged.get("rule")), []).append(judged)
    for rule, group in by_rule.items():
        first = group[0]
        yield Said(
            str(first["verdict"]), "" if first.get("remedy") else "no-remedy",
            names=", ".join(str(judged.get("subject") or judged.get("name")) for judged in group),
            values=", ".join(f"{judged.get('name')}={judged.get('value')}" for judged in group),
            rule=rule, effect=first.get("effect"), remedy=first.get("remedy"),
            source=first.get("source") or "",
        )  # fmt: skip


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
        yield Said(off=", ".join(off))


def core_missing(facts: Facts) -> Iterator[Said]:
    if facts.get("core.available") is False:
        error = facts.get("core.blas.error")
        missing = facts.get("core.missing", "")
        yield Said("why" if error else "", missing=missing, error=error)


def blas_missing(facts: Facts) -> Iterator[Said]:
    if facts.get("core.available") and facts.get("core.blas.available") is False:
        yield Said(error=facts.get("core.blas.error", ""))


def core_lowered(facts: Facts) -> Iterator[Said]:
    level, detected = facts.get("core.cpu.level"), facts.get("core.cpu.detected")
    if level and detected and level != detected:
        yield Said(level=level, detected=detected)


def hung_before(facts: Facts) -> Iterator[Said]:
    count = facts.number("knowledge.verdicts.hang")
    if count:
        yield Said(count=count, path=facts.get("knowledge.path"))


def knowledge_unreadable(facts: Facts) -> Iterator[Said]:
    error = facts.get("knowledge.error", "")
    if error and "no such table" not in error:
        yield Said(path=facts.get("knowledge.path"), error=error)


def tiers(facts: Facts) -> Iterator[Said]:
    """One finding for each back-end that was wrong, hung or failed."""
    is_amd = bool(facts.get("torch.hip"))
    for result in facts.rows("self_test.results"):
        tier, verdict = result.get("tier"), result.get("verdict")
        verdict = "wrong" if is_wrong(result) else verdict
        if verdict not in ("wrong", "hang", "error", "slow-find", "oom"):
            continue
        is_vendor = tier == "vendor" and verdict in ("wrong", "hang", "error")
        sayings = (
            str(verdict), f"{verdict} vendor" if is_vendor else "",
            "hang miopen" if is_vendor and is_amd and verdict == "hang" else "",
        )  # fmt: skip
        where = f"{result.get('shape')} on {result.get('device')}"
        left_out = "" if tier == "cpu" else "; protect() does without it"
        detail = str(result.get("detail") or "") or result.get("verdict")
        yield Said(
            *sayings, tier=tier, name=tier_name(str(tier), is_amd),
            where=f"{where}: {detail}{left_out}", first=result.get("first_seconds") or 0,
            later=result.get("seconds") or 0,
        )  # fmt: skip


def no_gpu_tier(facts: Facts) -> Iterator[Said]:
    on_gpu = [
        r for r in facts.rows("self_test.results")
        if str(r.get("device")).startswith("cuda") and r.get("tier") != "cpu"
        and r.get("verdict") != "refused"
    ]  # fmt: skip
    if on_gpu and all(r.get("verdict") not in ("ok", "slow-find") for r in on_gpu):
        is_amd = bool(facts.get("torch.hip"))
        yield Said(
            verdicts=", ".join(
                f"{tier_name(str(r.get('tier')), is_amd)}: {r.get('verdict')}" for r in on_gpu
            )
        )


def not_tested(facts: Facts) -> Iterator[Said]:
    why = facts.get("self_test.why", "")
    if facts.get("self_test") and not facts.get("self_test.ran") and why:
        yield Said(why=why)


def all_well(facts: Facts) -> Iterator[Said]:
    is_amd = bool(facts.get("torch.hip"))
    good = [r for r in facts.rows("self_test.results") if r.get("verdict") == "ok"]
    by_device: dict[str, list[str]] = {}
    for result in good:
        name = tier_name(str(result.get("tier")), is_amd)
        by_device.setdefault(str(result.get("device")), []).append(name)
    if by_device:
        devices = "; ".join(f"{device}: {', '.join(names)}" for device, names in by_device.items())
        yield Said(count=len(good), devices=devices)
