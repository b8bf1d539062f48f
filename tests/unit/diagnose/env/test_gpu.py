"""AMD GPUs as a made-up kernel driver lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hy3d_rocm.diagnose.env import gpu


def write_node(topology: Path, number: int, target: int, name: str, memory: int) -> None:
    bank = topology / str(number) / "mem_banks" / "0"
    bank.mkdir(parents=True)
    node = bank.parent.parent
    (node / "name").write_text(f"{name}\n")
    (node / "properties").write_text(f"simd_count 64\ngfx_target_version {target}\nunique_id -1\n")
    (bank / "properties").write_text(f"heap_type 1\nsize_in_bytes {memory}\n")


def test_gpus_are_read_from_the_kernel_driver(tmp_path: Path) -> None:
    write_node(tmp_path, 0, 0, "", 64 << 30)  # the CPU
    write_node(tmp_path, 10, 110000, "navi31", 24 << 30)
    write_node(tmp_path, 2, 110501, "strix halo", 1 << 30)
    assert gpu.amd_gpus(tmp_path) == [
        {"name": "strix halo", "architecture": "gfx1151", "memory_bytes": 1 << 30},
        {"name": "navi31", "architecture": "gfx1100", "memory_bytes": 24 << 30},
    ]
    assert gpu.amd_gpus(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("target", "name"),
    [(90010, "gfx90a"), (90402, "gfx942"), (100300, "gfx1030"), (120001, "gfx1201")],
)
def test_architectures_have_llvms_names(target: int, name: str) -> None:
    assert gpu.architecture(target) == name
