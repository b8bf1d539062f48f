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
    rules_packages,
    rules_zluda,
)
from hy3d_rocm.diagnose.rule import Rule

# Heading on the page of causes -> its rules.
FAMILIES: dict[str, tuple[Rule, ...]] = {
    "Installation": rules_install.RULES,
    "Reaching the card": rules_access.RULES,
    "ZLUDA and DirectML": rules_zluda.RULES,
    "Memory": rules_memory.RULES,
    "MIOpen and cuDNN": rules_miopen.RULES,
    "Driver and firmware": rules_driver.RULES,
    "Matrix products and number types": rules_blas.RULES,
    "Attention, Triton, optional packages": rules_attention.RULES,
    "HIP's errors and crashes": rules_gpu.RULES,
    "Nodes and pictures": rules_nodes.RULES,
    "ComfyUI": rules_comfy.RULES,
    "Other packages, files, the network": rules_packages.RULES,
}
RULES = tuple(rule for family in FAMILIES.values() for rule in family)
BY_ID = {rule.id: rule for rule in RULES}
ORDER = {rule.id: place for place, rule in enumerate(RULES)}
