"""The doctor's facts on made-up machines; its children with real processes and fake tiers."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from doctor_machines import (
    GB,
    PCI,
    STRIX_HALO,
    amd_tree,
    miopen_home,
    process,
    torch_says,
    write,
)

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.probe import child
from hy3d_rocm.conv.probe.child import TIER_MODULE
from hy3d_rocm.conv.probe.parent import NoAnswerError, ask
from hy3d_rocm.diagnose.doctor import basic, examination, kernel, selftest
from hy3d_rocm.diagnose.env.machine import Machine

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's files are Linux'")


@linux
def test_a_card_is_read_from_the_kernel(tmp_path: Path) -> None:
    facts = kernel.collect(amd_tree(tmp_path))
    [card] = facts["cards"]
    assert (card["pci"], card["driver"], card["vram_total_bytes"]) == (PCI, "amdgpu", 24 * GB)
    assert card["mes_firmware"] == 0x80
    assert facts["boot_options"] == ["amdgpu.gttsize=1000", "ttm.pages_limit=7"]
    assert facts["loaded"] is True
    assert facts["driver"].startswith("kernel ")
    assert [d["path"] for d in facts["devices"]] == ["/dev/kfd", "/dev/dri/renderD128"]
    assert all(d["exists"] for d in facts["devices"])


@linux
def test_a_machine_without_any_of_it_is_read_too(tmp_path: Path) -> None:
    facts = kernel.collect(tmp_path)
    assert facts["cards"] == []
    assert facts["devices"][0]["exists"] is False
    assert kernel.memory(tmp_path)["holders"] == []
    assert kernel.memory(tmp_path)["host"]["total_bytes"] is None


@linux
def test_files_that_hold_nonsense_are_unknown(tmp_path: Path) -> None:
    root = amd_tree(tmp_path)
    device = root / "sys/bus/pci/devices" / PCI
    write(device / "mem_info_vram_total", "lots")
    (device / "fw_version/mes_fw_version").write_bytes(b"\xff\xfe")
    [card] = kernel.cards(root)
    assert card["vram_total_bytes"] is None
    assert card["mes_firmware"] is None


@linux
def test_who_may_use_the_devices_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = amd_tree(tmp_path)
    (root / "dev/kfd").chmod(0o660)
    monkeypatch.setattr(kernel.os, "access", lambda path, mode: "kfd" not in str(path))
    kfd, node = kernel.devices(root)
    assert (kfd["usable"], node["usable"]) == (False, True)
    assert kfd["mode"] == "-rw-rw----"


@linux
def test_memory_is_told_by_who_holds_it(tmp_path: Path) -> None:
    root = amd_tree(tmp_path)
    process(root, 10, "/usr/bin/python3 main.py", vram_kib=6 << 20, gtt_kib=1024)
    process(root, 10, "/usr/bin/python3 main.py", vram_kib=6 << 20, descriptor=6)  # the same client
    process(root, 11, "/usr/bin/gnome-shell", vram_kib=512 << 10, compute_bytes=9 * GB)
    process(root, 12, "/bin/idle")
    write(root / "sys/class/kfd/kfd/proc/99/vram_1234", GB)  # another user's
    found = kernel.holders(root, own=10)
    assert [(h["pid"], h["vram_bytes"], h["own"]) for h in found] == [
        (11, 9 * GB, False), (10, 6 * GB, True), (99, GB, False),
    ]  # fmt: skip
    assert [h["name"] for h in found] == ["gnome-shell", "python3 main.py", "?"]


@linux
def test_newer_kernels_say_it_in_other_words(tmp_path: Path) -> None:
    root = amd_tree(tmp_path)
    process(root, 10, "/bin/a", vram_kib=5)
    write(
        root / "proc/10/fdinfo/5",
        "drm-driver:\tamdgpu\ndrm-client-id:\t3\ndrm-resident-vram:\t2 MiB\n"
        "drm-memory-vram:\t7 KiB\ndrm-resident-gtt:\t0",
    )
    assert kernel.holders(root)[0]["vram_bytes"] == 2 << 20


def test_disks_are_told_once_each(tmp_path: Path) -> None:
    found = kernel.disks({"a": tmp_path / "not/there", "b": tmp_path, "c": Path("/nowhere")})
    assert any(set(disk["uses"]) >= {"a", "b"} for disk in found)
    assert all(disk["free_bytes"] <= disk["total_bytes"] for disk in found)


def test_what_is_known_of_convolutions_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "knowledge.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE records (verdict TEXT)")
        database.executemany("INSERT INTO records VALUES (?)", [("hang",), ("ok",), ("ok",)])
    database.close()
    assert kernel.knowledge(str(path))["verdicts"] == {"hang": 1, "ok": 2}
    path.write_text("no database")
    assert "not a database" in kernel.knowledge(str(path))["error"]
    assert kernel.knowledge(str(tmp_path / "none"))["exists"] is False


def test_reading_what_is_known_makes_no_files(tmp_path: Path) -> None:
    path = tmp_path / "knowledge.db"
    open_one = sqlite3.connect(path)
    open_one.execute("PRAGMA journal_mode=WAL")
    open_one.execute("CREATE TABLE records (verdict TEXT)")
    open_one.execute("INSERT INTO records VALUES ('hang')")
    open_one.commit()
    names = {"knowledge.db", "knowledge.db-wal", "knowledge.db-shm"}
    assert {p.name for p in tmp_path.iterdir()} == names
    assert kernel.knowledge(str(path))["verdicts"] == {"hang": 1}  # as beside ComfyUI
    assert {p.name for p in tmp_path.iterdir()} == names
    open_one.close()
    tmp_path.chmod(0o555)  # where mode=ro alone can't open a WAL database
    assert kernel.knowledge(str(path))["verdicts"] == {"hang": 1}
    tmp_path.chmod(0o755)
    assert [p.name for p in tmp_path.iterdir()] == ["knowledge.db"]
    (tmp_path / "knowledge.db-wal").write_bytes(b"")
    facts = kernel.knowledge(str(path))
    assert (facts["verdicts"], facts["error"]) == (None, "")
    assert "not counted" in facts["note"]
    assert {p.name for p in tmp_path.iterdir()} == {"knowledge.db", "knowledge.db-wal"}


@linux
def test_a_whole_machine_is_collected_and_judged(tmp_path: Path) -> None:
    root = amd_tree(tmp_path / "root", STRIX_HALO, release="6.14.0-37-generic")
    write(root / "sys/bus/pci/devices" / PCI / "fw_version/mes_fw_version", "0x83")
    process(root, 10, "/usr/bin/ollama serve", vram_kib=40 << 20)
    environ = {"HOME": str(miopen_home(tmp_path / "home")), "MIOPEN_FIND_MODE": "DYNAMIC"}
    machine = Machine(architectures=("gfx1151",), torch=(2, 8), torch_is_rocm=True, rocm=(7, 1))
    facts = examination.collect(
        environ, root=root, machine=machine,
        torch=torch_says(architectures=["gfx1100"], gpus=[]),
    )  # fmt: skip
    assert json.loads(json.dumps(facts)) == facts
    found = {finding.id for finding in examination.judge(facts)}
    assert found >= {
        "firmware-mes-0x83", "architecture-missing", "variable-find-mode-unknown", "memory-held",
        "rocm-register-count",
    }  # fmt: skip


def test_facts_that_fail_to_be_read_are_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    for module, name in (
        (kernel, "collect"), (kernel, "memory"), (kernel, "storage"),
        (examination.places, "collect"), (examination.basic, "collect"),
        (examination, "detect"), (basic, "ask_torch"), (selftest, "run"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, fail)
    found = examination.examine({}, seconds=5)
    assert found.facts["kernel"] == found.facts["torch"] == {"error": "RuntimeError: broken"}
    assert found.exit_code == 2
    assert "RuntimeError: broken" in found.text()
    assert found.html()


def test_this_machine_is_examined_and_torch_stays_in_the_children() -> None:
    code = (
        "import json, sys, hy3d_rocm.diagnose.doctor.examination as d; "
        "e = d.examine({}, seconds=100); "
        "assert 'torch' not in sys.modules; print(json.dumps(e.as_dict()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["facts"]["torch"]["version"] == torch.__version__
    results = found["facts"]["self_test"]["results"]
    verdicts = {r["tier"]: r["verdict"] for r in results if r["device"] == "cpu"}
    assert verdicts | {"cpu": "ok"} == dict.fromkeys(selftest.CPU_TIERS, "ok")


def test_attention_that_leaves_memory_as_it_was_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As AOTriton's of gfx1100 does for large heads: the result is nobody's."""
    functional = torch.nn.functional
    attend = functional.scaled_dot_product_attention

    def written_by_nobody(q: Any, k: Any, v: Any) -> Any:
        return torch.full_like(q, 1e30) if q.shape[-1] > 256 else attend(q, k, v)

    device = torch.device("cpu")
    for size in selftest.HEADS:
        assert selftest.attended(device, size)["verdict"] == "ok"
    monkeypatch.setattr(functional, "scaled_dot_product_attention", written_by_nobody)
    rows = [selftest.attended(device, size) for size in selftest.HEADS]
    assert [row["verdict"] for row in rows] == ["ok", "wrong", "wrong"]
    assert [row["is_large"] for row in rows] == [False, True, True]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 512.0])
def test_attention_of_one_wrong_number_is_found(
    monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention

    def wrong(*operands: Any) -> Any:
        made = attend(*operands)
        made[0, 0, 17, 3] = value
        return made

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", wrong)
    assert selftest.attended(torch.device("cpu"), 512)["verdict"] == "wrong"


def test_attention_that_raises_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: Any) -> Any:
        raise RuntimeError("HIP error: invalid argument\nmore")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", raises)
    row = selftest.attended(torch.device("cpu"), 512)
    assert (row["verdict"], row["detail"]) == ("error", "HIP error: invalid argument")


def test_attention_whose_child_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[Any] = []

    def ask(call: str, *, limit_s: float) -> Any:
        asked_for.append((call, limit_s))
        raise NoAnswerError("nothing came back in 5 s", is_hang=True)

    monkeypatch.setattr(selftest, "ask", ask)
    monkeypatch.setattr(selftest, "_result", lambda outcome: outcome)
    monkeypatch.setattr(selftest, "cases_for", lambda torch: [SimpleNamespace(
        spec=SimpleNamespace(device="cuda:0"))])  # fmt: skip
    monkeypatch.setattr(
        selftest, "probe", lambda cases, **_: [{"verdict": "ok", "detail": ""} for _ in cases]
    )
    facts = selftest.run(torch_says(), 20.0)
    late = {"device": "the GPU", "verdict": "hang", "detail": "nothing came back in 5 s"}
    assert facts["attention"] == [late | {"size": 0}]
    assert facts["decode_kernels"] == [late | {"kernels": 0}]
    assert asked_for == [
        ("hy3d_rocm.diagnose.doctor.selftest:attention_here", 5.0),
        ("hy3d_rocm.decoding.backends.triton.trial:kernels_here", 20 / 3),
    ]


# Children


def asked(monkeypatch: pytest.MonkeyPatch, call: str, seconds: float) -> dict[str, Any]:
    monkeypatch.setattr(basic, "_CALL", call)
    if basic.is_started():  # on a GPU
        monkeypatch.setattr(basic, "is_started", lambda: False)
    return basic.ask_torch(seconds)


def test_what_a_child_says_is_taken_if_it_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "stdlib" in asked(monkeypatch, "sysconfig:get_paths", 60.0)
    wrong = asked(monkeypatch, "sys:getrecursionlimit", 60.0)
    assert wrong == {"error": "the child's answer is no table"}


def test_a_torch_that_hangs_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.monotonic()
    facts = asked(monkeypatch, "signal:pause", 1.0)
    assert time.monotonic() - start < 30  # it would be for ever
    assert facts == {"error": "nothing came back in 1 s", "is_hang": True}


def test_a_torch_that_dies_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = asked(monkeypatch, "os:abort", 20.0)
    assert facts["is_hang"] is False
    assert "SIGABRT" in facts["error"] or "exit code" in facts["error"]


def test_a_torch_that_is_not_there_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = asked(monkeypatch, "no_such_module:here", 20.0)
    assert "No module named 'no_such_module'" in facts["error"]


def test_asking_says_why_nothing_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/blender")
    with pytest.raises(NoAnswerError, match="not named like a Python"):
        ask("platform:node", limit_s=5)


TIERS = """
import time
def run(tier, spec):
    if tier == "vendor":
        time.sleep(60)
    if tier == "native":
        raise RuntimeError("HIP out of memory")
    if tier == "conv2d":
        raise RuntimeError("miopenStatusUnknownError")

from probe_bench import bench
Bench = bench(run)
"""


@pytest.fixture
def made_up_tiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The children that try tiers have those of TIERS."""
    module = tmp_path / "tiers.py"
    module.write_text(TIERS)
    monkeypatch.setenv(TIER_MODULE, str(module))


@pytest.mark.usefixtures("made_up_tiers")
def test_tiers_that_hang_and_fail_are_told_from_those_that_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The child that is asked for attention imports torch: on a busy machine for longer than the two
    # seconds that are its share here.
    monkeypatch.setattr(selftest, "ask", lambda call, limit_s: ask(call, limit_s=40))
    start = time.monotonic()
    told: list[str] = []
    facts = selftest.run(torch_says(), 9.0, tell=told.append)
    assert time.monotonic() - start < 50  # less than the tier sleeps
    verdicts = {(r["device"], r["tier"]): r["verdict"] for r in facts["results"]}
    assert verdicts[("cuda:0", "vendor")] == "hang"
    assert verdicts[("cuda:0", "native")] == "oom"
    assert verdicts[("cuda:0", "conv2d")] == "error"
    assert verdicts[("cuda:0", "triton")] == verdicts[("cpu", "cpu")] == "ok"
    assert "trying vendor on cuda:0" in told
    assert told[-2:] == ["trying PyTorch's attention", "trying the kernels of decode()"]
    assert facts["attention"] == facts["decode_kernels"] == []  # the child has no GPU here


@pytest.mark.usefixtures("made_up_tiers")
def test_without_a_gpu_the_cpu_alone_is_tried() -> None:
    facts = selftest.run(torch_says(gpus=[]), 60.0)
    assert "attention" not in facts
    verdicts = {(r["device"], r["tier"]): r["verdict"] for r in facts["results"]}
    assert {device for device, _ in verdicts} == {"cpu"}
    assert verdicts[("cpu", "cpu")] == "ok"


def test_without_torch_nothing_is_tried() -> None:
    assert selftest.run({"error": "gone"}, 5.0)["why"] == "PyTorch does not work here"


class LyingTier:
    name = "gemm"

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def refusal(self, call: Any, limits: Any) -> None:
        return None

    def run(self, call: Any) -> torch.Tensor:
        x, weight, bias = call.operands()
        return torch.nn.functional.conv3d(x, weight, bias, padding=1) * self.scale


@pytest.mark.parametrize(("scale", "is_wrong"), [(1.0, False), (1.01, True)])
def test_a_wrong_result_is_found(
    monkeypatch: pytest.MonkeyPatch, scale: float, is_wrong: bool
) -> None:
    torch.manual_seed(1)
    random.seed(1)
    monkeypatch.setattr("hy3d_rocm.conv.tiers.make_tier", lambda name: LyingTier(scale))
    spec = selftest.Shape("cpu", "f32", 4, (3, 6, 6)).to_json()
    assert ConvSpec.from_json(spec).to_json() == spec
    run, _ = child.Bench(["cpu"], {}).prepare("gemm", spec, check=True)
    if is_wrong:
        with pytest.raises(child.WrongResultError, match="outputs are wrong"):
            run()
    else:
        run()


def test_the_shapes_are_a_convolutions_own() -> None:
    for case in selftest.cases_for(torch_says()):
        spec = case.spec.to_json()
        x = torch.empty(spec["x_size"], device="meta")
        out = torch.nn.functional.conv3d(
            x, torch.empty(spec["weight_size"], device="meta"), padding=1
        )  # fmt: skip
        assert list(out.shape) == spec["out_size"]


def test_one_gpu_of_each_kind_is_tried() -> None:
    gpus = [{"architecture": a} for a in ("gfx1100", "gfx1036", "gfx1100")]
    devices = {str(case.spec.device) for case in selftest.cases_for(torch_says(gpus=gpus))}
    assert devices == {"cpu", "cuda:0", "cuda:1"}


def test_a_cancel_goes_through() -> None:
    class CancelledError(Exception):
        pass

    def cancel() -> None:
        raise CancelledError

    with pytest.raises(CancelledError):
        selftest.run(torch_says(), 20.0, cancel=cancel)
