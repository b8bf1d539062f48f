"""All rules, in the order in which causes at the same line are told."""

from __future__ import annotations

from hy3d_rocm.diagnose import (
    rules_access,
    rules_attention,
    rules_blas,
    rules_comfy,
    rules_driver,
    rules_gpu,
    rules_install,
    rules_memory,
    rules_miopen,
    rules_nodes,
    rules_zluda,
)
from hy3d_rocm.diagnose.rule import Rule

RULES: tuple[Rule, ...] = (
    *rules_install.RULES,
    *rules_access.RULES,
    *rules_zluda.RULES,
    *rules_memory.RULES,
    *rules_miopen.RULES,
    *rules_driver.RULES,
    *rules_blas.RULES,
    *rules_attention.RULES,
    *rules_gpu.RULES,
    *rules_nodes.RULES,
    *rules_comfy.RULES,
)
BY_ID = {rule.id: rule for rule in RULES}
ORDER = {rule.id: place for place, rule in enumerate(RULES)}
