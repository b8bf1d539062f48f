"""Logs for the tests of `hy3d-rocm diagnose`: the public excerpts, and lines that no thread showed.

The latter are in the words of the source named beside them, or of the specification.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "data" / "log_excerpts.json"
FRAMEPACK_START = """\
Moving DynamicSwap_HunyuanVideoTransformer3DModelPacked to cuda:0 with preserved memory: 6 GB
100%|##########| 25/25 [26:46<00:00, 64.28s/it]
"""
OFFLOADED = (
    "Offloading DynamicSwap_HunyuanVideoTransformer3DModelPacked from cuda:0 to preserve memory:"
    " 22 GB\n"
)
VAE_LOADED = "Loaded AutoencoderKLHunyuanVideo to cuda:0 as complete.\n"
OURS = """\
[VAE Decode] Starting - latents shape (1, 16, 18, 90, 160), device cpu
[VAE Decode] VAE device cuda:0, VAE dtype torch.float16
[VAE Decode] Attempting GPU decode on cuda:0
"""
SUCCESS = (
    "[VAE Decode] GPU decode SUCCESS - result device cpu, shape (1, 3, 69, 720, 1280), 9.10 s\n"
)
BLOCKS = "HSA exception: MemoryRegion::BlockAllocator::alloc failed.\n"
COMFY_SAMPLED = """\
got prompt
Requested to load WAN21
100%|##########| 20/20 [00:30<00:00,  1.52s/it]
Requested to load WanVAE
loaded completely; 5311.51 MB usable, 159.56 MB loaded, full load: True
"""


@dataclass(frozen=True)
class Case:
    """`expected`: rule ids in order; `source`: where the wording is from."""

    text: str
    expected: tuple[str, ...]
    source: str


def excerpts() -> list[dict[str, Any]]:
    return list(json.loads(DATA.read_text(encoding="utf-8"))["excerpts"])


def _case(expected: str, text: str, source: str) -> Case:
    return Case(text, tuple(expected.split()), source)


TREE = (
    _case("framepack-partial-offload", FRAMEPACK_START + OFFLOADED + VAE_LOADED + OURS + BLOCKS * 9,
          "specification 003, problem 1"),
    _case("decode-stopped", FRAMEPACK_START + VAE_LOADED + OURS, "specification 002"),
    _case("decode-stopped", FRAMEPACK_START + VAE_LOADED, "specification 003, problem 2"),
    _case("decode-stopped", COMFY_SAMPLED, "comfy/model_management.py, comfy/sd.py"),
    _case("", COMFY_SAMPLED + "Prompt executed in 85.21 seconds\n", "execution.py of ComfyUI"),
    _case("", "got prompt\nRequested to load WanVAE\nloaded completely; 5311 MB usable\n",
          "an encode, before anything was sampled"),
    _case("", FRAMEPACK_START + VAE_LOADED + OURS + SUCCESS, "hy3d_rocm/decoding/executor.py"),
    _case("block-allocator", BLOCKS * 3, "specification 003, problem 4"),
    _case("block-allocator", BLOCKS + "RuntimeError: HIP out of memory\n", "the first causes"),
    _case("hip-out-of-memory", "RuntimeError: HIP out of memory\n" + BLOCKS, "and the other way"),
    _case("miopen-no-algorithm",
          "MIOpen Error: No suitable algorithm was found to execute the required convolution\n"
          "RuntimeError: miopenStatusUnknownError\n", "specification 003, problem 3"),
    _case("hip-out-of-memory miopen-no-algorithm",
          "RuntimeError: HIP out of memory\n" + "\n" * 900
          + "No suitable algorithm was found to execute the required convolution\n",
          "two causes, far apart"),
    _case("decode-recovered",
          OURS + "[VAE Decode] Out of memory in grain 3 of whole (HIP out of memory. Tried to"
          " allocate 8.54 GiB): starting again streamed\n" + SUCCESS, "decoding/execution.py"),
)  # fmt: skip

_HIP = "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html"
_PYTORCH = "https://github.com/pytorch/pytorch/blob/v2.9.0/c10/hip/HIPException.cpp"
_AMDGPU = "drivers/gpu/drm/amd in Linux"

LINES = (
    _case("miopen-compile", "hipModule: HIPRTC_ERROR_COMPILATION (6) naive_conv.cpp", "comgr.cpp"),
    _case(
        "miopen-no-algorithm",
        "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
        _PYTORCH,
    ),
    _case(
        "miopen-compile",
        "Can't execute cd /tmp/miopen-a.cl-62e7; /opt/rocm/bin/clang-ocl -mcpu=gfx803",
        "ROCm/MIOpen#87",
    ),
    _case(
        "miopen-database", "MIOpen(HIP): Error [Exec] database is locked", "MIOpen's sqlite_db.cpp"
    ),
    _case("miopen-setting", "MIOPEN_FIND_MODE=DYNAMIC", "specification 002"),
    _case("miopen-setting", "os.environ['MIOPEN_FIND_ENFORCE'] = 'DB_ONLY'", "specification 002"),
    _case("", "MIOPEN_FIND_MODE=DYNAMIC_HYBRID", "a mode that exists"),
    _case("", "hy3d_rocm: MIOPEN_FIND_MODE=DYNAMIC is left out", "our own line"),
    _case(
        "miopen-variable-unknown",
        "os.environ['MIOPEN_FIND_TIME_LIMIT'] = '30'",
        "specification 002",
    ),
    _case(
        "miopen-variable-unknown",
        "export MIOPEN_DEBUG_AMD_ROCM_PRECOMPILED_BINARIES=0",
        "ROCm/MIOpen#87",
    ),
    _case("miopen-failed", "RuntimeError: miopenStatusBadParm", "miopen.h"),
    _case("miopen-failed", "MIOpen Error: /src/convolution.cpp:12: something", "miopen.h"),
    _case(
        "cudnn-no-engine", "FIND was unable to find an engine to execute this computation", _PYTORCH
    ),
    _case("hip-out-of-memory", "RuntimeError: HIP error: out of memory", _PYTORCH),
    _case("hip-out-of-memory", "hipErrorOutOfMemory", _HIP),
    _case(
        "hip-out-of-memory",
        "RuntimeError: Triton Error [HIP]:  Code: 2, Messsage: out of memory",
        "triton's driver.c",
    ),
    _case("cuda-out-of-memory", "RuntimeError: CUDA error: out of memory", _PYTORCH),
    _case(
        "gpu-out-of-memory",
        "!!! Exception during processing !!! Allocation on device",
        "ComfyUI with cudaMallocAsync",
    ),
    _case("gpu-out-of-memory", "llama: failed to allocate ROCm0 buffer of size 13", "ggml-cuda.cu"),
    _case(
        "decode-retried-tiled",
        "Warning: Ran out of memory when regular VAE encoding, retrying with tiled VAE encoding.",
        "comfy/sd.py",
    ),
    _case("host-out-of-memory", "MemoryError", "Python"),
    _case("host-out-of-memory", "Fichier de pagination insuffisant. (os error 1455)", "Windows"),
    _case(
        "host-out-of-memory",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 3 GiB",
        "numpy",
    ),
    _case(
        "host-out-of-memory",
        "The paging file is too small for this operation to complete.",
        "Windows",
    ),
    _case("gpu-page-fault", "hipErrorIllegalAddress", _HIP),
    _case(
        "gpu-launch-failure",
        "UserWarning: HIP warning: unspecified launch failure (Triggered internally",
        "Comfy-Org/ComfyUI#12762",
    ),
    _case("gpu-launch-failure", "hipErrorLaunchFailure", _HIP),
    _case(
        "gpu-launch-failure",
        "RuntimeError: HIP error: the launch timed out and was terminated",
        _HIP,
    ),
    _case("gpu-assert", "RuntimeError: HIP error: device-side assert triggered", _PYTORCH),
    _case("gpu-launch-refused", "RuntimeError: HIP error: invalid configuration argument", _HIP),
    _case("gpu-launch-refused", "hipErrorInvalidConfiguration", _HIP),
    _case("gpu-reset", "amdgpu 0000:0d:00.0: amdgpu: GPU reset begin!", _AMDGPU),
    _case("", "amdgpu 0000:06:00.0: amdgpu: MODE2 reset", "Bumblebee#1078, an ordinary start"),
    _case("gpu-reset", "[drm] VRAM is lost due to GPU reset!", _AMDGPU),
    _case(
        "gpu-reset",
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* Process information: process a",
        _AMDGPU,
    ),
    _case("hsa-queue-error", "HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION", "hsa.h"),
    _case(
        "windows-gpu-crash",
        "Faulting module name: amdhip64_7.dll, version: 7.0.0.0",
        "Windows event 1000",
    ),
    _case("windows-gpu-crash", "Exception Code: 0xC0000005 in amdhip64_6.dll", "Windows"),
    _case("wrong-architecture", "hipErrorInvalidDeviceFunction", _HIP),
    _case(
        "wrong-architecture",
        "ROCm error: no kernel image is available for execution on the device",
        "ggml-cuda.cu",
    ),
    _case(
        "rocblas-architecture",
        "rocBLAS error: Could not initialize Tensile host: No devices found",
        "rocBLAS",
    ),
    _case(
        "rocm-library-mismatch",
        "ImportError: /opt/rocm/lib/libamdhip64.so.6: version `hip_6.2' not found",
        "glibc's loader",
    ),
    _case("no-gpu-found", "hipErrorNoDevice", _HIP),
    _case("no-gpu-found", "RuntimeError: HIP error: no ROCm-capable device is detected", _HIP),
    _case(
        "kfd-no-memory", "Unable to open /dev/kfd read-write: Cannot allocate memory", "rocminfo"
    ),
    _case("kfd-access", "/dev/kfd: Permission denied", "robertrosenbusch/gfx803_rocm#15"),
    _case(
        "kfd-unsupported-gpu",
        "kfd kfd: amdgpu: skipped device 1002:67df, PCI rejects atomics 730<0",
        _AMDGPU,
    ),
    _case(
        "zluda-failed",
        "ZLUDA device failed to pass basic operation test: index=0",
        "CS1o/Stable-Diffusion-Info#41",
    ),
    _case(
        "device-mismatch",
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be"
        " the same",
        "specification 001",
    ),
    _case(
        "dtype-mismatch",
        "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be"
        " the same",
        "dtypes, one device",
    ),
    _case(
        "custom-rasterizer",
        "ERROR: No matching distribution found for custom_rasterizer",
        "kijai/ComfyUI-Hunyuan3DWrapper#84",
    ),
    _case(
        "custom-rasterizer",
        "ImportError: DLL load failed while importing custom_rasterizer_kernel",
        "CPython",
    ),
    _case(
        "custom-rasterizer",
        "ImportError: /v/custom_rasterizer_kernel.cpython-312.so: undefined symbol: _ZN3c10",
        "glibc's loader",
    ),
    _case(
        "attention-package-missing",
        "ModuleNotFoundError: No module named 'sageattention'",
        "CPython",
    ),
    _case(
        "attention-package-missing",
        "ModuleNotFoundError: No module named 'flash_attn_interface'",
        "Dao-AILab/flash-attention#1653",
    ),
    _case("triton-missing", "torch._inductor.exc.TritonMissing: ...", "torch/_inductor/exc.py"),
    _case(
        "triton-mismatch",
        "ModuleNotFoundError: No module named 'triton.common'",
        "another version of Triton",
    ),
    _case(
        "nan-vae",
        "modules.devices.NansException: A tensor with NaNs was produced in VAE.",
        "AUTOMATIC1111's devices.py",
    ),
    _case("nan-vae", "A tensor with all NaNs was produced in VAE.", "AUTOMATIC1111's devices.py"),
)


def families() -> list[Case]:
    """The rows of tests/data/log_lines.txt."""
    rows = [
        row.split(": ", 1)
        for row in (DATA.parent / "log_lines.txt").read_text(encoding="utf-8").splitlines()
        if not row.startswith("#")
    ]
    return [_case(ids, text.replace("\\n", "\n"), text) for ids, text in rows]


def all_cases() -> list[Case]:
    public = [
        Case("\n".join(found["lines"]), tuple(found["expected"]), found["link"])
        for found in excerpts()
    ]
    return [*public, *TREE, *LINES, *families()]
