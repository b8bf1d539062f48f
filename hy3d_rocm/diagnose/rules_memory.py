"""Memory: the card's, the host's, and who holds it."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_THEROCK = "https://github.com/ROCm/TheRock/issues/"
_ROCM = "https://github.com/ROCm/legacy-rocm-build/issues/"
_BOUNDED = (
    'The node "VAE Decode (ROCm, bounded memory)" plans a decode within what is free, and takes'
    " less where that was not enough."
)
_GPU_CAUSES = ("framepack-partial-offload", "apu-memory")

RULES: tuple[Rule, ...] = (
    Rule(
        id="framepack-partial-offload",
        symptom="The decode fails beside a transformer that was only partly unloaded.",
        cause="'Offloading DynamicSwap_... to preserve memory' moves only as much of the"
        " transformer off the card as that number asks for; the rest stays there during the"
        " decode, which then lacks it.",
        here="This pack unloads the transformer completely before the decode: in ComfyUI by the"
        " correction framepack-unload, in the stand-alone FramePack by"
        " examples/framepack_rocm.py.",
        otherwise="unload_complete_models(transformer) before the VAE is loaded, and a shorter"
        " video or a smaller one.",
        source="https://github.com/lllyasviel/FramePack/issues/263",
        confidence="likely",
    ),
    Rule(
        id="apu-memory",
        symptom="The GPU has next to no memory of its own.",
        cause="This is a GPU in the processor, and the program sees only what the BIOS sets aside"
        " for it (512 MiB or so); no model fits there.",
        here="`hy3d-rocm doctor` shows what this GPU has, and whether it is the one you mean.",
        otherwise="If there is another card, choose it with HIP_VISIBLE_DEVICES; else set aside"
        " more in the BIOS, or use a ROCm and a kernel that let this GPU take the shared memory"
        " (GTT).",
        source="https://github.com/YanWenKun/ComfyUI-Docker/issues/54",
        words=("capacity", "capacty"),
        patterns=(r"HIP out of memory.{0,60}total capac\w+ of (?:\d{2,3}\.\d+ MiB|[12]\.\d+ GiB)",),
        confidence="likely",
    ),
    Rule(
        id="block-allocator",
        symptom="The HSA runtime has no GPU memory left (BlockAllocator).",
        cause="The memory is really gone, or another process holds it: this is not fragmentation."
        " Mostly a large model is still on the card.",
        here=_BOUNDED + " `hy3d-rocm doctor` shows who holds the memory.",
        otherwise="Unload the other models before the decode, close other programs that use the"
        " card, look for old Python processes.",
        source="https://github.com/ROCm/ROCR-Runtime/blob/master/src/core/runtime/"
        "amd_memory_region.cpp",
        words=("blockallocator",),
        patterns=(r"BlockAllocator::alloc failed",),
        follows=(*_GPU_CAUSES, "hip-out-of-memory"),
    ),
    Rule(
        id="hip-out-of-memory",
        symptom="The AMD card is out of memory.",
        cause="What was asked for is more than was free. In a video VAE with MIOpen switched off,"
        " PyTorch's own conv3d takes 27 times its input for one 3x3x3 convolution; with MIOpen on,"
        " its find step may take room to try solvers.",
        here=_BOUNDED,
        otherwise="Smaller tiles or fewer frames, other models unloaded, no --gpu-only or"
        " --highvram. Restart after it if all that follows is slow.",
        source=_THEROCK + "2844",
        words=("hip", "rocm"),
        patterns=(
            r"\bHIP out of memory\b",
            r"\bHIP error: out of memory\b",
            r"\bhipErrorOutOfMemory\b",
            r"CUDA error: out of memory.{0,250}\bhipMalloc",  # ggml names both
            r"Triton Error \[HIP\]:.{0,40}out of memory",
        ),
        follows=(*_GPU_CAUSES, "block-allocator"),
    ),
    Rule(
        id="hsa-out-of-resources",
        symptom="The HSA runtime could not allocate what it needs.",
        cause="At start: the driver refuses this user or is in a bad state. In the middle of"
        " work: GPU memory, queues or signals are used up.",
        here="`hy3d-rocm doctor` shows whether the card answers and who holds its memory.",
        otherwise="See whether `rocminfo` works for your user. If it did before, end the programs"
        " that use the card or restart the machine.",
        source=_ROCM + "4382",
        words=("hsa_status_error_out_of_resources",),
        patterns=(r"HSA_STATUS_ERROR_OUT_OF_RESOURCES",),
        follows=("kfd-access", "kfd-unsupported-gpu", "block-allocator", "hip-out-of-memory"),
        confidence="likely",
    ),
    Rule(
        id="cuda-out-of-memory",
        symptom="The card is out of memory; the program says CUDA.",
        cause="What was asked for is more than was free. The words are those of an NVIDIA card,"
        " or of an AMD card under ZLUDA.",
        here=_BOUNDED,
        otherwise="Smaller tiles or fewer frames, and other models unloaded.",
        source="https://github.com/lllyasviel/FramePack/issues/271",
        words=("cuda",),
        patterns=(r"\bCUDA out of memory\b", r"\bCUDA error: out of memory\b"),
        follows=(*_GPU_CAUSES, "hip-out-of-memory"),
    ),
    Rule(
        id="directml-out-of-memory",
        symptom="The card is out of memory under DirectML.",
        cause="What was asked for is more than DirectML had left. DirectML can't say how much is"
        " free, so nothing plans with it.",
        here="This package works with ROCm and ZLUDA; DirectML gets PyTorch's plain operators.",
        otherwise="PyTorch for ROCm on Windows, where AMD has it for your card; else smaller"
        " pictures.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/3967",
        words=("could not allocate tensor",),
        patterns=(
            r"Could not allocate tensor with \w+ bytes\. There is not enough GPU video memory",
        ),
    ),
    Rule(
        id="gpu-out-of-memory",
        symptom="The card is out of memory.",
        cause="What was asked for is more than was free; the text does not say whose card it is.",
        here=_BOUNDED,
        otherwise="Smaller tiles or fewer frames, and other models unloaded.",
        source="https://github.com/BoyuanJiang/FitDiT-ComfyUI/issues/2",
        words=(
            "outofmemory",
            "allocation on device",
            "cudamalloc failed",
            "of which",
            "ran out of memory",
            "failed to allocate rocm",
        ),
        patterns=(
            r"OutOfMemoryError: Allocation on device",
            r"!!! Exception during processing ?!!! Allocation on device",
            r"cudaMalloc failed: out of memory",
            r"failed to allocate ROCm\d+ buffer",
            r"Ran out of memory when regular VAE (?:de|en)coding",
            r"Tried to allocate \S+ [KMG]iB\. GPU \d+ has a total capac",
        ),
        unless=(r"\b(?:HIP|CUDA) out of memory\b",),
        follows=(*_GPU_CAUSES, "hip-out-of-memory", "cuda-out-of-memory", "block-allocator"),
    ),
    Rule(
        id="host-out-of-memory",
        symptom="The computer's own memory is full.",
        cause="An allocation in host memory failed: models that were moved off the card live"
        " there, and on Windows memory and page file together are the limit.",
        here="The decode has a budget for the host as well and keeps the result of a long video"
        " on disk if asked to (`hy3d-rocm decode`).",
        otherwise="Close programs, let Windows manage the page file on a disk with room, or use"
        " models in fp8.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/8065",
        words=("defaultcpuallocator", "paging file", "os error 1455", "memoryerror"),
        patterns=(
            r"DefaultCPUAllocator: (?:not enough memory|can't allocate memory)",
            r"os error 1455",
            r"paging file is too small",
            r"^MemoryError\b",
            r"numpy\S*MemoryError: Unable to allocate",
        ),
    ),
    Rule(
        id="expandable-segments",
        symptom="expandable_segments is set and has no effect.",
        cause="PyTorch advises it in every out-of-memory text, but this build for this system has"
        " not got it.",
        here="Nothing has to be done.",
        otherwise="Remove it from PYTORCH_ALLOC_CONF, PYTORCH_HIP_ALLOC_CONF or"
        " PYTORCH_CUDA_ALLOC_CONF.",
        source=_THEROCK + "2844",
        words=("expandable_segments not supported",),
        patterns=(r"expandable_segments not supported on this platform",),
        severity="notice",
    ),
)
