"""What can still be had of the host's memory and of a GPU's, read off made-up systems."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from places import ROOT

from hy3d_rocm import memory

KIB = 1024
CARD = torch.device("cuda:0")
V2_MOUNT = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw"


def files(folder: Path, **contents: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (folder / name.replace("__", ".")).write_text(text)


def system(root: Path, groups: str, mounts: str = "") -> Path:
    """4000 kB, half of it available; the folder where control groups are."""
    files(root / "proc", meminfo="MemTotal: 4000 kB\nMemAvailable:    2000 kB\n")
    files(root / "proc/self", cgroup=groups)
    if mounts:
        files(root / "proc/self", mountinfo=mounts)
    return root / "sys/fs/cgroup"


def group2(folder: Path, limit: object, used: int, cache: int = 0) -> None:
    stat = f"anon 7\nactive_file 11\ninactive_file {cache}\n"
    files(folder, memory__max=f"{limit}\n", memory__current=f"{used}\n", memory__stat=stat)


def group1(folder: Path, limit: int, used: int, cache: int = 0) -> None:
    stat = f"inactive_file 5\ntotal_inactive_file {cache}\n"
    names = {"memory__limit_in_bytes": f"{limit}\n", "memory__usage_in_bytes": f"{used}\n"}
    files(folder, **names, memory__stat=stat)


@pytest.fixture(autouse=True)
def _each_call_reads_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_limits", memory._limits.__wrapped__)


@pytest.mark.parametrize("mounts", ["", V2_MOUNT])
def test_the_tightest_group_above_counts_with_its_cache(tmp_path: Path, mounts: str) -> None:
    top = system(tmp_path, "0::/a/b\n", mounts)
    assert memory.host_free_bytes(tmp_path) == 2000 * KIB
    assert memory.host_total_bytes(tmp_path) == 4000 * KIB
    group2(top / "a/b", "max", 5000)
    assert memory.host_free_bytes(tmp_path) == 2000 * KIB
    group2(top / "a", 9000, 8000, 300)
    assert memory.host_free_bytes(tmp_path) == 1300
    assert memory.host_total_bytes(tmp_path) == 9000
    group2(top / "a/b", 1000, 900, 50)
    assert memory.host_free_bytes(tmp_path) == 150
    assert memory.host_total_bytes(tmp_path) == 1000
    group2(top, 20000, 19999)  # the uppermost
    assert memory.host_free_bytes(tmp_path) == 1
    group2(top, 20000, 30000)  # lowered below what is used
    assert memory.host_free_bytes(tmp_path) == 0


@pytest.mark.parametrize(
    "mounts", ["", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"]
)
def test_groups_of_the_first_version_count_too(tmp_path: Path, mounts: str) -> None:
    top = system(tmp_path, "4:cpu:/x\n3:memory:/gone/from/view\n0::/\n", mounts) / "memory"
    group1(top, 9223372036854771712, 77)
    assert memory.host_free_bytes(tmp_path) == 2000 * KIB
    assert memory.host_total_bytes(tmp_path) == 4000 * KIB
    group1(top, 1000, 900, 50)
    assert memory.host_free_bytes(tmp_path) == 150
    group1(top / "gone", 500, 480)
    assert memory.host_free_bytes(tmp_path) == 20
    group1(top, 1000, 5000, 50)
    assert memory.host_free_bytes(tmp_path) == 0


def test_both_versions_at_once_count_both(tmp_path: Path) -> None:
    mounts = (
        "35 31 0:32 / /sys/fs/cgroup/memory,cpu rw - cgroup cgroup rw,memory,cpu\n"
        "36 31 0:33 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
        "41 31 0:38 / /sys/fs/cgroup/unified\\040two rw - cgroup2 cgroup2 rw\n"
    )
    top = system(tmp_path, "5:memory,cpu:/one\n0::/two\n", mounts)
    group1(top / "memory,cpu/one", 700, 100)
    group2(top / "unified two/two", 900, 700)
    assert memory.host_free_bytes(tmp_path) == 200
    group2(top / "unified two/two", 900, 100)
    assert memory.host_free_bytes(tmp_path) == 600


def test_a_mount_that_shows_part_of_the_tree_is_read_from_there(tmp_path: Path) -> None:
    """As in a container without a namespace of its own: paths are the host's, the mount is ours."""
    mounts = "35 31 0:32 /docker/c0 /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
    top = system(tmp_path, "0::/docker/c0/job\n", mounts)
    group2(top / "job", 5000, 4000)
    group2(top, 8000, 7500)
    assert memory.host_free_bytes(tmp_path) == 500
    group2(top / "job", 5000, 4900)
    assert memory.host_free_bytes(tmp_path) == 100
    # Entered from outside of the namespace: the path leads out of what is mounted.
    top = system(tmp_path / "two", "0::/../elsewhere\n", V2_MOUNT)
    group2(top, 8000, 7500)
    assert memory.host_free_bytes(tmp_path / "two") == 500


@pytest.mark.parametrize("damage", ["", "a word\n", "-\n"])
def test_files_that_make_no_sense_bound_nothing(tmp_path: Path, damage: str) -> None:
    top = system(tmp_path, "0::/a\n", damage + V2_MOUNT)
    group2(top / "a", 100, 50)
    assert memory.host_free_bytes(tmp_path) == 50
    files(top / "a", memory__stat=damage)
    assert memory.host_free_bytes(tmp_path) == 50
    files(top / "a", memory__current=damage)
    assert memory.host_free_bytes(tmp_path) == 2000 * KIB
    files(top / "a", memory__max=damage)
    assert memory.host_total_bytes(tmp_path) == 4000 * KIB
    files(tmp_path / "proc/self", cgroup=damage)
    assert memory.host_free_bytes(tmp_path) == 2000 * KIB
    files(tmp_path / "proc", meminfo=damage)
    assert memory.host_free_bytes(tmp_path) is None
    assert memory.host_total_bytes(tmp_path) is None


def test_a_limit_counts_where_the_kernel_tells_nothing_else(tmp_path: Path) -> None:
    top = system(tmp_path, "0::/a\n")
    (tmp_path / "proc/meminfo").unlink()
    group2(top / "a", 100, 50)
    assert memory.host_free_bytes(tmp_path) == 50
    assert memory.host_total_bytes(tmp_path) == 100


def test_psutil_answers_where_there_is_no_meminfo(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_proc(self: Path, *args: object, **kwargs: object) -> str:
        if str(self).startswith(("/proc", "/sys")):
            raise FileNotFoundError(str(self))
        with self.open() as file:
            return file.read()

    monkeypatch.setattr(Path, "read_text", no_proc)
    answer = SimpleNamespace(available=5000, total=7000)
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(virtual_memory=lambda: answer))
    assert (memory.host_free_bytes(), memory.host_total_bytes()) == (5000, 7000)
    monkeypatch.setitem(sys.modules, "psutil", None)  # not installed
    assert (memory.host_free_bytes(), memory.host_total_bytes()) == (None, None)
    assert memory.free_bytes(torch.device("cpu")) is None
    from hy3d_rocm import meter

    with pytest.raises(RuntimeError, match="install psutil"):
        meter.machine_of(torch.device("cpu"))


@pytest.mark.parametrize(("driver", "free"), [(20, 23), (1 << 34, 3), (0, 3)])
def test_a_gpu_has_what_the_driver_and_the_allocator_have(
    monkeypatch: pytest.MonkeyPatch, driver: int, free: int
) -> None:
    """More free than there is, as drivers have reported for APUs, is nothing."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (driver, 24))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 7)
    assert memory.gpu_bytes(CARD) == (free, 24)
    monkeypatch.setattr(memory, "gpu_in_use", lambda: True)
    assert memory.free_bytes(CARD) == free
    # Of these 24 the process may have 18, and holds 10.
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.75, False)
    assert memory.gpu_bytes(CARD) == (min(free, 18 - 10 + 3), 24)


def test_a_gpu_is_never_started_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def trap(*args: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", trap)
    assert memory.free_bytes(CARD) is None
    assert memory.free_bytes(torch.device("meta")) is None


def test_nobody_else_reads_what_is_free() -> None:
    """One reader: the driver's and the kernel's figures are asked for in one module."""
    asked = re.compile(r"mem_get_info|virtual_memory|MemAvailable|fs/cgroup")
    readers: set[str] = set()
    for path in (ROOT / "hy3d_rocm").rglob("*.py"):
        if "_vendor" in path.parts or not asked.search(path.read_text()):
            continue
        for node in ast.walk(ast.parse(path.read_text())):  # what it does, not what it says
            word = node.attr if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.Constant) and len(str(node.value)) < 40:
                word = str(node.value)
            if asked.search(word):
                readers.add(path.relative_to(ROOT).as_posix())
    # The patch only looks whether upstream's query still uses this name.
    assert readers <= {"hy3d_rocm/memory.py", "hy3d_rocm/comfy/patches/framepack.py"}
