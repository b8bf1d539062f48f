"""All rules, in the order in which causes at the same line are told."""

from __future__ import annotations

from hy3d_rocm.diagnose import rules_gpu, rules_install, rules_memory, rules_miopen, rules_nodes
from hy3d_rocm.diagnose.rule import Rule

RULES: tuple[Rule, ...] = (
    *rules_install.RULES,
    *rules_memory.RULES,
    *rules_miopen.RULES,
    *rules_gpu.RULES,
    *rules_nodes.RULES,
)
BY_ID = {rule.id: rule for rule in RULES}
