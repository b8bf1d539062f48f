"""Each finding of the doctor's: where it appears, and where it nearly does and must not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from doctor_machines import (
    GB,
    Change,
    Facts,
    changed,
    healthy,
    is_architecture,
    put,
    result,
    set_variable,
)
from places import ROOT
from windows_machines import (
    CUSTOM,
    FAMILY,
    HALO,
    RAPHAEL,
    RX6800,
    RX9070,
    XTX,
    Windows,
    Wsl,
    becomes,
    split,
)

from hy3d_rocm.diagnose.doctor import examination
from hy3d_rocm.diagnose.doctor.examination import (
    FOLDER,
    Examination,
    judge,
    rules_of_file,
    table,
)
from hy3d_rocm.diagnose.doctor.finding import Finding, Rule, Severity
from hy3d_rocm.diagnose.env.rules import public_value

E, W, A = Severity.ERROR, Severity.WARNING, Severity.ADVICE
Row = tuple[str, Severity, list[Change], list[Change]]


def judged(rule: str, verdict: str) -> Change:
    row = {
        "name": "X", "value": "1", "verdict": verdict, "rule": rule, "effect": "does", "remedy": "",
        "source": "https://example.org",
    }  # fmt: skip
    return put("judged", [row])


def holder(vram: int, *, own: bool = False) -> Change:
    return put("memory.holders", [
        {"pid": 7, "name": "python main.py", "own": own, "vram_bytes": vram, "gtt_bytes": 0},
    ])  # fmt: skip


def file(
    holds: str, entries: int | None, version: str = "3.4.0", size: int = 1000,
    in_use: tuple[str, ...] = (),
) -> Change:  # fmt: skip
    one = {
        "path": f"a.{holds}", "holds": holds, "version": version, "architecture": "gfx1100",
        "bytes": size, "modified": 1.0, "entries": entries, "in_use": list(in_use),
    }  # fmt: skip
    return put("miopen.places.0.files", [one])


def more(*changes: Change) -> Change:
    def change(facts: Facts) -> None:
        for one in changes:
            one(facts)

    return change


def no_gpus(facts: Facts) -> None:
    facts["torch"]["gpus"] = []


def cuda_build(facts: Facts) -> None:
    facts["torch"].update(version="2.9.0+cu128", hip=None, cuda="12.8", gpus=[])
    facts["machine"].update(torch_is_rocm=False, runs_on_amd=False)


NVIDIA = [{"name": "NVIDIA H200", "architecture": "", "memory_bytes": 140 * GB}]


def cpu_build(facts: Facts) -> None:
    cuda_build(facts)
    facts["torch"].update(version="2.13.0+cpu", cuda=None)


def no_amd(facts: Facts) -> None:
    """A ROCm build where no AMD card can be seen."""
    no_gpus(facts)
    facts["kernel"]["cards"], facts["driver"]["gpus"] = [], []
    facts["machine"].update(architectures=[], runs_on_amd=False)


def two_gpus(facts: Facts) -> None:
    """A card, and the processor's own GPU, for which no PyTorch is built."""
    facts["machine"]["architectures"] = ["gfx1036", "gfx1100"]
    card = facts["torch"]["gpus"][0]
    facts["torch"]["gpus"] = [{**card, "architecture": "gfx1036"}, card]


def nvidia_beside_amd(facts: Facts) -> None:
    """An NVIDIA card is computed on; the processor's own GPU is AMD's and not usable."""
    facts["torch"].update(version="2.9.0+cu128", hip=None, cuda="12.8", architectures=["sm_90"])
    facts["torch"]["gpus"][0].update(name="RTX", architecture="")
    facts["machine"].update(torch_is_rocm=False, runs_on_amd=False, architectures=["gfx1036"])
    unusable(facts)
    facts["kernel"]["cards"][0].update(driver="", mes_firmware=0x83)


def unusable(facts: Facts) -> None:
    facts["kernel"]["devices"][0].update(usable=False, mode="crw-rw----", group="render")


def apu(carve_out: int, gtt: int, host: int) -> Change:
    return more(
        is_architecture("gfx1151"),
        put("machine.rocm", [7, 2]),
        put("kernel.cards.0.vram_total_bytes", carve_out),
        put("kernel.cards.0.gtt_total_bytes", gtt),
        put("memory.host.total_bytes", host),
    )


def strix(facts: Facts) -> None:
    apu(32 * GB, 90 * GB, 96 * GB)(facts)


def torch_gone(error: str, **more_facts: Any) -> Change:
    return put("torch", {"error": error, **more_facts})


def tiers(*results: dict[str, Any]) -> Change:
    return put("self_test.results", list(results))


def heads(*sizes: int, verdict: str = "wrong") -> Change:
    """What came of attention for heads of so many elements, 0 where the child gave nothing."""
    return put("self_test.attention", [
        {"device": "cuda:0", "size": size, "is_large": size > 256, "verdict": verdict,
         "detail": "1e+33 times as far off as rounding explains"} for size in sizes
    ])  # fmt: skip


def kernels(verdict: str) -> Change:
    return put("self_test.decode_kernels", [
        {"device": "cuda:0", "kernels": 3, "verdict": verdict, "detail": "2 outputs are wrong"}
    ])  # fmt: skip


def nightly(version: str, *, system: str = "linux") -> Change:
    return more(put("torch.version", version), put("machine.system", system))


SDK = {
    "HIP_PATH": "C:\\Program Files\\AMD\\ROCm\\6.4\\",
    "PATH": "C:\\Windows;C:\\Program Files\\AMD\\ROCm\\6.4\\bin",
}
HIP_PATH = {"HIP_PATH": SDK["HIP_PATH"], "PATH": "C:\\Windows"}
OWN_SDK = {  # as ROCm's wheels have it
    "HIP_PATH": "C:\\AMD\\ROCm\\7\\site-packages\\_rocm_sdk_devel",
    "PATH": "C:\\AMD\\ROCm\\7\\site-packages\\_rocm_sdk_devel\\bin",
}
HANGS = result("vendor", verdict="hang")
ON = {"HSA_ENABLE_DXG_DETECTION": "1"}

DIED = {"error": "the process died (exit code 3221225477)", "is_hang": False}


def rdna2(torch: str) -> Windows:
    return Windows(cards=(RX6800,), wheels=CUSTOM, torch=torch)


def fixed(gib: int) -> str:
    return f"C:\\pagefile.sys {gib * 1024} {gib * 1024}"


OUT_OF_ORDER = "WrongResultError: 64 of 64 outputs are wrong"

ROWS: list[Row] = [
    # PyTorch, driver, devices
    ("torch-hangs", E, [torch_gone("nothing came back in 24 s", is_hang=True)],
     [torch_gone("died", is_hang=False)]),
    ("torch-not-installed", E, [torch_gone("ModuleNotFoundError: No module named 'torch'")],
     [torch_gone("OSError: libamdhip64.so.6")]),
    ("torch-broken", E, [torch_gone("OSError: libamdhip64.so.6")],
     [torch_gone("ModuleNotFoundError: No module named 'torch'")]),
    ("gpu-does-not-start", E, [put("torch.error", "RuntimeError: HIP error")], [no_gpus]),
    ("torch-not-for-amd", E, [cuda_build], [cuda_build, put("machine.zluda", True)]),
    ("no-amd-gpu", A, [no_amd, cpu_build], [no_amd, cuda_build, put("torch.gpus", NVIDIA)]),
    ("no-amd-gpu", W, [no_amd], [no_amd, put("torch.error", "RuntimeError: no HIP GPUs")]),
    ("architecture-missing", E, [put("torch.architectures", ["gfx1030"])],
     [put("torch.architectures", ["gfx11-generic"])]),
    ("architecture-partly", A, [two_gpus], [put("torch.architectures", ["gfx1030"])]),
    ("device-not-usable", E, [unusable], [put("kernel.devices.0.usable", True)]),
    ("kfd-missing", E, [put("kernel.devices.0.exists", False)],
     [put("kernel.devices.0.exists", False), put("kernel.cards.0.driver", "vfio-pci")]),
    ("card-without-driver", E, [put("kernel.cards.0.driver", "")], [put("kernel.cards", [])]),
    ("torch-sees-no-gpu", E, [no_gpus], [no_gpus, unusable]),
    ("triton-missing", A, [put("torch.triton.error", "No module named 'triton'")],
     [put("torch.hip", None), put("torch.triton.error", "No module named 'triton'")]),
    ("triton-broken", W, [put("torch.triton.error", "ImportError: libtriton")],
     [put("torch.triton.error", "")]),
    ("miopen-off", A, [put("comfyui", {"version": "1"}),
                       put("torch.miopen_or_cudnn_enabled", False)],
     [put("torch.miopen_or_cudnn_enabled", False)]),
    # Windows and WSL
    ("torch-replaced", E, [becomes(Windows(torch="2.9.0+cu128"))],
     [becomes(Windows(torch="2.9.0+cu128", zluda=True))]),
    ("torch-replaced", E, [becomes(Windows(torch="2.10.0", torch_says={"error": "OSError: c10"})),
                           put("torch.version", None)],
     [becomes(Windows(torch="2.10.0", wheels=()))]),
    ("torch-replaced", E, [becomes(Wsl(torch="2.13.0", wheels=split("gfx1100")))],
     [becomes(Wsl(torch="2.13.0", wheels=split("gfx1100"), device=False))]),
    ("wheels-for-other-gpus", E, [becomes(Windows(cards=(HALO,), wheels=split("gfx1100")))],
     [becomes(Windows(cards=(HALO,), wheels=split("gfx1100", "gfx1151")))]),
    ("wheels-for-other-gpus", E, [becomes(Windows(cards=(RX9070,), wheels=FAMILY, kernels=()))],
     [becomes(Windows(wheels=FAMILY, kernels=()))]),
    ("wheels-for-other-gpus", E, [becomes(Windows(wheels=split()))],
     [becomes(Windows(wheels=CUSTOM))]),
    ("wheels-for-other-gpus", E, [becomes(Windows(cards=(HALO,)))],
     [becomes(Windows(cards=(HALO,), torch="2.9.0+cu128"))]),
    ("driver-older-than-rocm", W,
     [becomes(Windows(torch="2.9.1+rocm7.2.2", software="24.12.1"))],
     [becomes(Windows(software="24.12.1"))]),
    ("driver-older-than-rocm", W,
     [becomes(Windows(torch="2.9.1+rocm7.2.1", software="26.1.1"))],
     [becomes(Windows(torch="2.9.0+cu128", software="26.1.1"), put("machine.rocm", [7, 2, 1]))]),
    ("driver-older-than-rocm", W,
     [becomes(Windows(wheels=CUSTOM, torch="2.9.1+rocm7.2.1", software="26.1.1"))],
     [becomes(Windows(wheels=CUSTOM, torch="2.9.1+rocm7.2.1", software="26.2.2"))]),
    ("wheels-for-other-gpus", E, [becomes(Windows(cards=(HALO,)))],
     [becomes(Windows(cards=(HALO,), torch="2.9.0+cu128"))]),
    ("driver-older-than-rocm", W,
     [becomes(Windows(torch="2.9.1+rocm7.2.2", software="24.12.1"))],
     [becomes(Windows(software="24.12.1"))]),
    ("driver-older-than-rocm", W,
     [becomes(Windows(torch="2.9.1+rocm7.2.1", software="26.1.1"))],
     [becomes(Windows(torch="2.9.0+cu128", software="26.1.1"), put("machine.rocm", [7, 2, 1]))]),
    ("driver-older-than-rocm", W,
     [becomes(Windows(wheels=CUSTOM, torch="2.9.1+rocm7.2.1", software="25.20.01.17"))],
     [becomes(Windows(wheels=CUSTOM, torch="2.9.1+rocm7.2.1", software="25.Q4"))]),
    ("hip-sdk-beside", W, [becomes(Windows(environ=SDK))],
     [becomes(Windows(environ=SDK, torch="2.7.0+cu118", zluda=True))]),
    ("hip-sdk-beside", A, [becomes(Windows(environ=HIP_PATH))],
     [becomes(Windows(environ={"PATH": "C:\\tools\\bin"}))]),
    ("hip-sdk-beside", A, [becomes(Windows(environ=HIP_PATH))],
     [becomes(Windows(environ=HIP_PATH, wheels=()))]),
    ("hip-sdk-beside", A, [becomes(Windows(environ=HIP_PATH))],
     [becomes(Windows(environ=HIP_PATH, torch="2.9.0+cu128"))]),
    ("zluda-without-sdk", W, [becomes(Windows(torch="2.7.0+cu118", zluda=True, wheels=()))],
     [becomes(Windows(torch="2.7.0+cu118", zluda=True, wheels=(), environ=HIP_PATH))]),
    ("hip-sdk-beside", A, [becomes(Windows(environ=HIP_PATH))],
     [becomes(Windows(environ=OWN_SDK))]),
    ("hip-sdk-beside", W, [becomes(Windows(environ={**SDK, "HIP_PATH": OWN_SDK["HIP_PATH"]}))],
     [becomes(Windows(environ={**OWN_SDK, "HIP_PATH": ""}))]),
    ("zluda-without-sdk", W, [becomes(Windows(torch="2.7.0+cu118", zluda=True, wheels=()))],
     [put("machine.zluda", True)]),
    ("zluda-without-sdk", W, [becomes(Windows(torch="2.7.0+cu118", zluda=True, wheels=()))],
     [becomes(Windows(torch="2.7.0+cu118", zluda=True, environ=OWN_SDK))]),
    ("architecture-missing", E, [becomes(Windows(cards=(RAPHAEL, XTX), kernels=("gfx1036",)))],
     [becomes(Windows(cards=(RAPHAEL, XTX)))]),
    ("integrated-gpu-first", E, [becomes(Windows(cards=(RAPHAEL, XTX)))],
     [becomes(Windows(cards=(RAPHAEL, XTX), listed=(XTX,)))]),
    ("integrated-gpu-first", W, [becomes(Windows(cards=(RAPHAEL, XTX), kernels=("gfx1036",)))],
     [becomes(Windows(cards=(XTX, RAPHAEL)))]),
    ("rdna2-not-listed", E,
     [becomes(Windows(cards=(RX6800,), wheels=CUSTOM, torch="2.9.1+rocm7.2.0", listed=()))],
     [becomes(Windows(wheels=CUSTOM, torch="2.9.1+rocm7.2.0", listed=()))]),
    ("rdna2-not-listed", E,
     [becomes(Windows(cards=(RX6800,), torch="2.10.0+rocm7.12.0a20260218", listed=()))],
     [becomes(Windows(cards=(RX6800,), torch="2.10.0+rocm7.13.0a20260318", listed=()))]),
    ("rdna2-crashes", E, [becomes(rdna2("2.9.1+rocm7.2.1"), put("torch", DIED))],
     [becomes(rdna2("2.13.0+rocm10.0.0"), put("torch", DIED))]),
    ("torch-sees-no-gpu", E, [becomes(Windows(listed=()))],
     [becomes(Windows(cards=(), listed=()))]),
    ("card-without-driver", E, [becomes(Windows(undriven=(XTX,)))], [becomes(Windows())]),
    ("commit-limit", W, [becomes(Windows(commit=(64 * GB, 3 * GB)))],
     [becomes(Windows(commit=(30 * GB, 3 * GB)))]),
    ("commit-limit", W, [becomes(Windows(commit=(64 * GB, 3 * GB)))],
     [becomes(Windows(commit=(64 * GB, 5 * GB)))]),
    ("page-file-off", W, [becomes(Windows(page_files=("",)))], [becomes(Windows(page_files=None))]),
    ("page-file-fixed", A, [becomes(Windows(page_files=("C:\\pagefile.sys 8192 98303",)))],
     [becomes(Windows(page_files=("C:\\pagefile.sys 16384 98304",)))]),
    ("page-file-fixed", A, [becomes(Windows(page_files=("D:\\pagefile.sys 800 800",) * 2))],
     [becomes(Windows(page_files=("C:\\pagefile.sys 0 0", "D:\\pagefile.sys 800 800")))]),
    ("page-file-fixed", A,
     [becomes(Windows(memory=128 * GB, page_files=(fixed(16),), commit=(144 * GB, 90 * GB)))],
     [becomes(Windows(memory=128 * GB, page_files=(fixed(64),), commit=(192 * GB, 150 * GB)))]),
    ("page-file-fixed", A, [becomes(Windows(page_files=(fixed(64),), commit=None))],
     [becomes(Windows(page_files=(fixed(64),), commit=None, memory=32 * GB))]),
    ("time-out-off", W, [becomes(Windows(time_out={"TdrLevel": 0}))],
     [becomes(Windows(time_out={"TdrLevel": 3, "TdrDelay": 60}))]),
    ("time-out-lowered", W, [becomes(Windows(time_out={"TdrDelay": 1}))],
     [becomes(Windows(time_out={"TdrDelay": 2}))]),
    ("time-out-lowered", W, [becomes(Windows(time_out={"TdrDelay": 0}))],
     [becomes(Windows(time_out={"TdrDelay": 1, "TdrLevel": 0}))]),
    ("time-out-short", A, [becomes(Windows(), put("self_test", {"results": [HANGS]}))],
     [becomes(Windows(cards=(), torch="2.9.0+cu128", torch_says={"gpus": NVIDIA}),
              put("self_test", {"results": [HANGS]}))]),
    ("time-out-short", A, [becomes(Windows(), put("self_test", {"results": [HANGS]}))],
     [becomes(Windows(time_out={"TdrDelay": 10}), put("self_test", {"results": [HANGS]}))]),
    ("time-out-short", A, [becomes(Windows(), put("knowledge", {"verdicts": {"hang": 2}}))],
     [becomes(Windows(time_out=None), put("knowledge", {"verdicts": {"hang": 2}}))]),
    ("wsl-no-device", E, [becomes(Wsl(device=False, listed=()))],
     [becomes(Wsl(device=False, listed=(), torch="2.13.0"))]),
    ("wsl-no-bridge", E, [becomes(Wsl(bridge="", listed=()))],
     [becomes(Wsl(bridge="", older_bridge=True, listed=()))]),
    ("wsl-detection-off", E, [becomes(Wsl(listed=()))], [becomes(Wsl(listed=(), environ=ON))]),
    ("wsl-detection-off", E, [becomes(Wsl(listed=(), torch="2.10.0+rocm7.12.0"))],
     [becomes(Wsl(listed=(), torch="2.11.0+rocm7.13.0"))]),
    ("wsl-bundled-runtime", E,
     [becomes(Wsl(bridge="", older_bridge=True, bundled=True, listed=()))],
     [becomes(Wsl(bridge="", older_bridge=True, bundled=True))]),
    ("wsl-bundled-runtime", E,
     [becomes(Wsl(older_bridge=True, bundled=True, listed=(), environ=ON))],
     [becomes(Wsl(bundled=True, listed=(), environ=ON))]),
    ("wsl-bundled-runtime", E,
     [becomes(Wsl(bridge="", older_bridge=True, bundled=True, listed=(),
                  environ={"HIP_VISIBLE_DEVICES": "0"}))],
     [becomes(Wsl(bridge="", older_bridge=True, bundled=True, listed=(),
                  environ={"HIP_VISIBLE_DEVICES": "-1"}))]),
    ("wsl-sees-no-gpu", E, [becomes(Wsl(listed=(), environ=ON))], [becomes(Wsl(environ=ON))]),
    ("wsl-no-bridge", E, [becomes(Wsl(bridge="", listed=()))],
     [becomes(Wsl(bridge="", torch="2.13.0"))]),
    ("wsl-memory", A, [becomes(Wsl(memory=16 * GB))], [becomes(Wsl(memory=24 * GB))]),
    ("wsl-windows-disk", A, [becomes(Wsl(environ={"MIOPEN_USER_DB_PATH": "/mnt/c/Users/x/db"}))],
     [becomes(Wsl(environ={"MIOPEN_USER_DB_PATH": "/mnt/data/db"}))]),
    ("wsl-windows-disk", A, [becomes(Wsl(environ={"MIOPEN_CUSTOM_CACHE_DIR": "/mnt/c/x"}))],
     [becomes(Wsl(environ={"MIOPEN_CUSTOM_CACHE_DIR": "/mnt/c/x"}, torch="2.13.0"))]),
    # Known-bad versions
    ("firmware-mes-0x83", E, [strix, put("kernel.cards.0.mes_firmware", 0x83)],
     [put("kernel.cards.0.mes_firmware", 0x83)]),
    ("kernel-hides-memory", W, [strix, put("kernel.release", "6.14.0"),
                                put("kernel.driver", "kernel 6.14.0")],
     [strix, put("kernel.release", "6.16.9-1"), put("kernel.driver", "kernel 6.16.9-1")]),
    ("rocm-register-count", W, [strix, put("machine.rocm", [7, 1, 1])],
     [strix, put("machine.rocm", [7, 2])]),
    ("nightly-slow-decode", W, [nightly("2.10.0a0+rocm7.11.0a20251201", system="windows")],
     [nightly("2.10.0a0+rocm7.10.0a20251010", system="windows")]),
    ("windows-wrong-convolutions", E, [nightly("2.10.0a0+rocm7.10.0a20251106", system="windows")],
     [nightly("2.10.0a0+rocm7.10.0a20251106")]),
    ("rocm-slow-gfx1010", W, [is_architecture("gfx1010"), put("machine.rocm", [7, 1, 1])],
     [is_architecture("gfx1010")]),
    ("find-times-out", W, [is_architecture("gfx1201"), put("machine.rocm", [6, 3]),
                           set_variable("MIOPEN_FIND_MODE", "")],
     [is_architecture("gfx1201"), put("machine.rocm", [6, 3])]),
    # Variables, this pack, the self-test
    ("variable-r1", E, [judged("r1", "throws")], [judged("r1", "fine")]),
    ("variable-r2", W, [judged("r2", "harmful")], [judged("r2", "helpful")]),
    ("variable-r3", A, [judged("r3", "does nothing")], [judged("r3", "")]),
    ("switched-off", A, [set_variable("HY3D_ROCM_PATCH", "off")],
     [set_variable("HY3D_ROCM_PATCH", "on")]),
    ("switched-off", A, [set_variable("HY3D_ROCM_PATCH", public_value("on,-delihgt"))],
     [set_variable("HY3D_ROCM_PATCH", public_value("on,-vae-decode,-framepack-memory"))]),
    ("core-missing", A, [put("core", {"available": False, "missing": "no module"})],
     [put("core", {"error": "?"})]),
    ("blas-missing", W, [put("core.blas", {"available": False, "error": "no OpenBLAS"})],
     [put("core.blas.available", True)]),
    ("core-lowered", A, [put("core.cpu", {"level": "ref", "detected": "avx2"})],
     [put("core.cpu", {"level": "avx2", "detected": "avx2"})]),
    ("hung-before", A, [put("knowledge", {"path": "k", "verdicts": {"hang": 2}})],
     [put("knowledge", {"path": "k", "verdicts": {"error": 2}})]),
    ("knowledge-unreadable", W, [put("knowledge", {"path": "k", "error": "disk image"})],
     [put("knowledge", {"path": "k", "error": "no such table: records"})]),
    ("tier-wrong-gemm", E, [tiers(result("gemm", verdict="error", detail=OUT_OF_ORDER))],
     [tiers(result("gemm", verdict="error", detail="RuntimeError: no"))]),
    ("tier-error-native", W, [tiers(result("native", verdict="error", detail="RuntimeError: no"))],
     [tiers(result("native", verdict="refused", detail="is not for this"))]),
    ("tier-hang-vendor", W, [tiers(result("vendor", verdict="hang"), result("gemm"))],
     [tiers(result("vendor", verdict="slow-find"))]),
    ("tier-hang-gemm", E, [tiers(result("gemm", verdict="hang"), result("vendor"))],
     [tiers(result("gemm"))]),
    ("tier-slow-vendor", A, [tiers(result("vendor", verdict="slow-find"))],
     [tiers(result("vendor"))]),
    ("tier-memory-native", A, [tiers(result("native", verdict="oom"), result("gemm"))],
     [tiers(result("native"))]),
    ("no-gpu-tier", E, [tiers(result("gemm", verdict="error"), result("cpu"))],
     [tiers(result("gemm", verdict="error"), result("vendor"))]),
    ("attention-wrong", W, [heads(384, 512)], [heads(384, 512, verdict="ok")]),
    ("attention-fails", W, [heads(512, verdict="error")], [heads(512)]),
    ("attention-hangs", W, [heads(0, verdict="hang")], [heads(512)]),
    ("attention-broken", E, [heads(64, 512)], [heads(512)]),
    ("decode-kernels-wrong", W, [kernels("wrong")], [kernels("ok")]),
    ("decode-kernels-fail", W, [kernels("hang")], [kernels("refused")]),
    ("not-tested", A, [put("self_test", {"ran": False, "why": "no Python", "results": []})],
     [put("self_test", {})]),
    # Memory and disks
    ("memory-held", W, [holder(8 * GB)], [holder(8 * GB, own=True)]),
    ("memory-unseen", W, [put("kernel.cards.0.vram_used_bytes", 12 * GB)],
     [put("kernel.cards.0.vram_used_bytes", 12 * GB), holder(11 * GB, own=True)]),
    ("memory-full", W, [put("torch.gpus.0.free_bytes", GB)],
     [put("torch.gpus.0.free_bytes", 3 * GB)]),
    ("memory-idle", A, [put("torch.gpus.0.reserved_bytes", 8 * GB)],
     [put("torch.gpus.0.reserved_bytes", 8 * GB), put("torch.gpus.0.allocated_bytes", 7 * GB)]),
    ("apu-share", A, [apu(4 * GB, 62 * GB, 124 * GB)], [apu(4 * GB, 96 * GB, 124 * GB)]),
    ("apu-carve-out", A, [apu(96 * GB, 16 * GB, 32 * GB)], [apu(64 * GB, 32 * GB, 64 * GB)]),
    ("host-memory", W, [put("memory.host.available_bytes", 2 * GB)],
     [put("memory.host.available_bytes", 4 * GB)]),
    ("disk-full", E, [put("disks.0.free_bytes", 100 << 20)], [put("disks.0.free_bytes", 6 * GB)]),
    ("disk-full", W, [put("disks.0.free_bytes", 2 * GB)], [put("disks.0.free_bytes", None)]),
    # MIOpen
    ("miopen-not-writable", W, [put("miopen.places.1.writable", False)],
     [put("miopen.places.1.exists", False)]),
    ("miopen-damaged", W, [file("compiled", None), set_variable("MIOPEN_FIND_MODE", "FAST")],
     [file("compiled", 0)]),
    ("miopen-damaged", W, [file("compiled", None)], [file("compiled", None, in_use=("-wal",))]),
    ("miopen-network-disk", W, [put("miopen.places.0.chosen_by", "network")],
     [put("miopen.places.0.chosen_by", "MIOPEN_USER_DB_PATH")]),
    ("miopen-empty", A, [file("find", 0), set_variable("MIOPEN_FIND_MODE", "")], [file("find", 0)]),
    ("miopen-empty", A, [file("find", 99, "3.3.0"), set_variable("MIOPEN_FIND_MODE", "5")],
     [file("find", 99), set_variable("MIOPEN_FIND_MODE", "5")]),
    ("miopen-filled", A, [file("find", 200)], [file("find", 200, "3.3.0")]),
    ("miopen-old-versions", A, [put("miopen.places.1.versions", {"3.3.0": 2 * GB, "3.4.0": 1})],
     [put("miopen.places.1.versions", {"": 9 * GB, "3.4.0": 2 * GB})]),
]  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Outside of ComfyUI, whatever a test before has started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examination, "host_facts", {})
        return healthy(tmp_path_factory.mktemp("healthy"))


def ids(findings: Iterable[Finding]) -> set[str]:
    return {finding.id for finding in findings}


def test_of_a_healthy_machine_nothing_is_said(base: Facts) -> None:
    assert [(f.id, f.severity) for f in judge(base)] == [("self-test", Severity.FINE)]
    assert Examination(base, tuple(judge(base))).exit_code == 0
    assert "self-test" not in ids(judge(changed(base, put("self_test", {}))))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ([], "nothing wrong was found"),
        ([no_amd, cpu_build], "1 piece of advice; no AMD GPU was found"),
        ([no_amd, cuda_build, put("torch.gpus", NVIDIA)], "no AMD GPU was found"),
        ([no_amd], "1 warning; no AMD GPU was found"),
        ([cpu_build], "1 error"),  # the card is there, and this PyTorch can't use it
    ],
)
def test_the_headline_never_calls_a_machine_fine_where_no_amd_gpu_was_seen(
    base: Facts, changes: list[Change], line: str
) -> None:
    facts = changed(base, *changes)
    found = Examination(facts, tuple(judge(facts)))
    assert found.as_dict()["headline"] == line
    assert found.text().startswith(f"hy3d-rocm doctor: {line}\n")
    assert f"<h1>{line[0].upper()}{line[1:]}</h1>" in found.html()


def test_an_amd_gpu_beside_an_nvidia_card_is_of_no_concern(base: Facts) -> None:
    assert ids(judge(changed(base, nvidia_beside_amd, holder(8 * GB)))) == {"self-test"}


def test_of_two_gpus_the_one_with_kernels_is_chosen(base: Facts) -> None:
    [found] = [f for f in judge(changed(base, two_gpus)) if f.id == "architecture-partly"]
    assert "HIP_VISIBLE_DEVICES=1" in found.remedy


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_finding_appears(base: Facts, row: Row) -> None:
    name, severity, changes, _ = row
    [found] = [f for f in judge(changed(base, *changes)) if f.id == name]
    assert found.severity is severity
    assert found.title
    assert found.evidence
    assert found.remedy
    assert "None" not in f"{found.title} {found.evidence} {found.remedy}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_finding_does_not_appear_where_it_nearly_does(base: Facts, row: Row) -> None:
    name, _, _, near = row
    assert name not in ids(judge(changed(base, *near)))


def test_every_rule_has_a_row() -> None:
    tried = {row[0] for row in ROWS} | {"self-test"}
    missing = [
        rule.id for rule in table()
        if rule.id not in tried and not any(name.startswith(f"{rule.id}-") for name in tried)
    ]  # fmt: skip
    assert missing == []


def test_known_bad_versions_have_a_public_source() -> None:
    for row in rules_of_file(FOLDER / "versions.toml"):
        for address in row.source.split():
            assert address.startswith("https://github.com/"), row.id
        assert row.source


def test_findings_come_worst_first_and_decide_the_exit_code(base: Facts) -> None:
    many = judge(changed(
        base, put("disks.0.free_bytes", 2 * GB), put("torch.architectures", ["gfx1030"]),
        put("torch.triton.error", "No module named 'triton'"),
    ))  # fmt: skip
    assert [f.severity for f in many] == [E, W, A, Severity.FINE]
    assert Examination(base, tuple(many)).exit_code == 2
    assert Examination(base, tuple(many[1:])).exit_code == 1
    assert Examination(base, tuple(many[2:])).exit_code == 0


@pytest.mark.parametrize(
    ("own", "built", "remedy"),
    [
        ("gfx1031", ["gfx1030"], "HSA_OVERRIDE_GFX_VERSION=10.3.0"),
        ("gfx1103", ["gfx1100"], "HSA_OVERRIDE_GFX_VERSION=11.0.0"),
        ("gfx1151", ["gfx1100"], "built for gfx1151"),
        ("gfx1031", ["gfx90a"], "built for gfx1031"),
    ],
)
def test_a_sibling_is_only_proposed_where_its_kernels_are_there(
    base: Facts, own: str, built: list[str], remedy: str
) -> None:
    facts = changed(base, is_architecture(own), put("torch.architectures", built))
    [found] = [f for f in judge(facts) if f.id == "architecture-missing"]
    assert remedy in found.remedy
    # Where torch lists no GPU, what the variable makes of the driver's is what counts.
    told = changed(facts, no_gpus, set_variable("HSA_OVERRIDE_GFX_VERSION", "10.3.0"))
    is_told = own == "gfx1031" and built == ["gfx1030"]
    assert ("architecture-missing" in ids(judge(told))) is not is_told


def test_a_rule_that_fails_is_said_and_the_others_go_on(
    base: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(facts: Any) -> Any:
        raise KeyError("x")

    from hy3d_rocm.diagnose.doctor import examination

    real = table()
    monkeypatch.setattr(examination, "table", lambda: (Rule("broken", E, broken), *real))
    found = judge(changed(base, put("disks.0.free_bytes", 2 * GB)))
    assert {"rule-failed", "disk-full"} <= ids(found)


@pytest.mark.parametrize("section", ["torch", "machine", "kernel", "memory", "miopen", "disks",
                                     "knowledge", "core", "judged", "variables", "driver",
                                     "self_test"])  # fmt: skip
@pytest.mark.parametrize("value", [None, {"error": "broken"}, [], "text", 7])
def test_facts_of_a_wrong_kind_are_no_crash(base: Facts, section: str, value: Any) -> None:
    facts = changed(base, put(section, value))
    found = judge(facts)
    assert "rule-failed" not in ids(found)
    examination = Examination(facts, tuple(found))
    json.dumps(examination.as_dict())
    assert examination.text()
    assert examination.html()


def test_container_and_bare_machine_get_different_remedies(base: Facts, tmp_path: Path) -> None:
    [bare] = [f for f in judge(changed(base, unusable)) if f.id == "device-not-usable"]
    assert "usermod -aG render" in bare.remedy
    inside = changed(base, unusable, put("kernel.container", True))
    [contained] = [f for f in judge(inside) if f.id == "device-not-usable"]
    assert "--group-add render" in contained.remedy


def test_the_page_of_the_docs_lists_every_finding() -> None:
    page = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
    for name in {row[0] for row in ROWS} | {rule.id for rule in table()} - {"tier", "variable"}:
        general = name.rsplit("-", 1)[0] + "-*"
        assert f"`{name}`" in page or f"`{general}`" in page, name
