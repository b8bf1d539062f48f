"""Memory: the card's, the host's, and who holds it."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_THEROCK = "https://github.com/ROCm/TheRock/issues/"
_ROCM = "https://github.com/ROCm/legacy-rocm-build/issues/"
_NODE = 'Take the node "VAE Decode (ROCm, bounded memory)" in place of "VAE Decode".'
_BOUNDED = (
    'The node "VAE Decode (ROCm, bounded memory)" plans a decode within what is free, and takes'
    " less where that was not enough."
)
_FIGURES = (
    "memory-refused",
    "memory-held-elsewhere",
    "attention-out-of-memory",
    "memory-one-request",
    "memory-unseen",
    "memory-first-request",
)
_GPU_CAUSES = ("framepack-partial-offload", "apu-memory", *_FIGURES)
_VARIABLE = "In the Adrenalin program (Performance, Tuning) raise the Variable Graphics Memory."
_NOT_COMFY = (
    (
        "no comfy",
        "Let parts of the model wait in the computer's memory: pipe.enable_model_cpu_offload() in"
        " diffusers, --medvram in a web UI; for a decode pipe.vae.enable_tiling().",
    ),
)
_SIZES = (r"Tried to allocate \d.{0,80}total capac.{0,60}is free",)
_OUT = ("hip-out-of-memory", "cuda-out-of-memory", "gpu-out-of-memory")

RULES: tuple[Rule, ...] = (
    Rule(
        id="framepack-partial-offload",
        symptom="The decode fails beside a transformer that was only partly unloaded.",
        cause="'Offloading DynamicSwap_... to preserve memory' moves only as much of the"
        " transformer off the card as that number asks for; the rest stays there during the"
        " decode, which then lacks it.",
        do="unload_complete_models(transformer) before the VAE is loaded",
        here="This pack unloads the transformer completely before the decode: in ComfyUI by the"
        " correction framepack-unload, in the stand-alone FramePack by"
        " examples/framepack_rocm.py.",
        otherwise="A shorter video or a smaller one.",
        source="https://github.com/lllyasviel/FramePack/issues/263",
        confidence="likely",
    ),
    Rule(
        id="apu-memory",
        symptom="The GPU has next to no memory of its own.",
        cause="This is a GPU in the processor, and the program sees only what the BIOS sets aside"
        " for it (512 MiB or so); no model fits there.",
        do="In the BIOS set 'UMA frame buffer size' (or 'dedicated graphics memory') to its most.",
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
        id="memory-refused",
        symptom="An allocation failed although the card had enough room.",
        cause="More was free than was asked for, so the card's size is not the limit: pinned host"
        " memory, the system's commit limit (Windows: memory and page file) or the driver had none"
        " left. A smaller picture does not help.",
        do="Start ComfyUI with --disable-pinned-memory",
        instead=(("no comfy", "Update the card's driver and PyTorch: {wheels}"),),
        otherwise="--disable-dynamic-vram; on Windows let the system manage the page file; a"
        " current driver and ROCm.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/13112",
        words=("tried to allocate", "total capac", "is free"),
        patterns=_SIZES,
        figures="free but refused",
        confidence="likely",
    ),
    Rule(
        id="memory-held-elsewhere",
        symptom="Other programs hold most of the card's memory.",
        cause="This process has only a part of what is taken: another one (an older Python, a"
        " second program, the desktop), or memory that was lost in a crash.",
        do="sudo fuser -v /dev/kfd",
        windows="Get-Process python*",
        wsl="ps aux | grep python",
        here="`hy3d-rocm doctor` shows who holds the memory.",
        otherwise="End what it lists and is not needed; else restart the machine.",
        source=_ROCM + "4358",
        words=("tried to allocate", "total capac", "is free"),
        patterns=(
            r"Tried to allocate \d.{0,80}total capac.{0,60}is free.{0,80}allocated by PyTorch",
        ),
        figures="held elsewhere",
        confidence="likely",
    ),
    Rule(
        id="attention-out-of-memory",
        symptom="Attention ran out of GPU memory.",
        cause="Attention without tiles builds a matrix of every token with every other: its memory"
        " grows with the square of the picture and the number of frames. The traceback names"
        " attention beside the error. It is no fragmentation.",
        do="Start ComfyUI with --use-split-cross-attention",
        instead=_NOT_COMFY,
        decode=_NODE,
        here=_BOUNDED + " Attention of the sampler stays ComfyUI's.",
        otherwise="--use-quad-cross-attention; TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1 where"
        " PyTorch brings AMD's attention for the card; a smaller picture or fewer frames.",
        source=_ROCM + "5519",
        words=("attention", "attn"),
        patterns=(
            r"\w*attention\w*\.py\"?, line \d",
            r"\bscaled_dot_product_attention\(",
            r"\boptimized_attention\w*\(",
        ),
        needs=_OUT,
        within=8,
        confidence="likely",
    ),
    Rule(
        id="memory-one-request",
        symptom="One operation asked for most of the card's memory.",
        cause="It is one tensor and not the sum of the models: attention without tiles, or a"
        " video VAE's convolution (PyTorch's own conv3d takes 27 times its input). It is no"
        " fragmentation.",
        do="Start ComfyUI with --use-split-cross-attention",
        instead=_NOT_COMFY,
        decode=_NODE,
        here=_BOUNDED,
        otherwise="TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1 where PyTorch brings AMD's attention"
        ' for the card; if it was the decode, the node "VAE Decode (ROCm, bounded memory)"; a'
        " smaller picture or fewer frames.",
        source="https://github.com/modelscope/DiffSynth-Studio/issues/730",
        words=("tried to allocate", "total capac", "is free"),
        patterns=_SIZES,
        figures="most of the card",
        follows=("attention-out-of-memory", "apu-memory"),
        excused=("memory-unseen", "memory-first-request"),
        confidence="likely",
    ),
    Rule(
        id="memory-unseen",
        symptom="The driver has more GPU memory than the program sees.",
        cause="The driver set aside at least twice of what PyTorch or ROCm counts. On a GPU in the"
        " processor (Strix Halo) older kernels give ROCm only what the system may lend, not the"
        " part that the BIOS set aside. It is no fault of the model or of the program.",
        do="Install kernel 6.16.9 or newer and reboot.",
        here="`hy3d-rocm doctor` shows what PyTorch sees.",
        otherwise="Or set aside little in the BIOS and let the kernel lend more: ttm.pages_limit="
        " (pages of 4 KiB) on its command line.",
        source=_ROCM + "5444",
        words=("total capac", "size: ", "vram"),
        patterns=(
            r"total capac\w+ of \d{1,3}\.\d+ GiB",
            r"^Size: \d{7,10}\(0x[\da-f]+\) ?KB",
            r"\bTotal VRAM \d{3,7} MB",
            r"amdgpu\b.{0,30}VRAM: \d{3,7}M",
            r"Detected VRAM RAM=\d{3,7}M",
            r"amdgpu: \d{3,7}M of VRAM memory ready",
            r"\bmem_info_vram_total\b",
        ),
        when=("memory unseen",),
        confidence="likely",
    ),
    Rule(
        id="memory-first-request",
        symptom="The first request is larger than all the memory that PyTorch sees.",
        cause="PyTorch held next to nothing, nothing else held much, and one request did not fit"
        " into the whole. If the card has more than the capacity in the line, the system gives the"
        " program only a part of it: on a GPU in the processor what the BIOS and the kernel share"
        " out.",
        do="sudo dmesg | grep -i -e vram -e gtt",
        windows=_VARIABLE,
        wsl=_VARIABLE,
        gfx1151="Install kernel 6.16.9 or newer and reboot.",
        here="`hy3d-rocm doctor` shows what PyTorch sees.",
        otherwise="Where that is all the card has: a smaller request (attention in parts, fewer"
        " frames).",
        source=_THEROCK + "1054",
        words=("tried to allocate", "total capac", "is free"),
        patterns=(
            r"Tried to allocate \d.{0,80}total capac.{0,60}is free.{0,80}allocated by PyTorch",
        ),
        figures="first request",
        excused=("memory-unseen",),
        follows=("apu-memory",),
        confidence="possible",
    ),
    Rule(
        id="block-allocator",
        symptom="The HSA runtime has no GPU memory left (BlockAllocator).",
        cause="The memory is really gone, or another process holds it: this is not fragmentation."
        " Mostly a large model is still on the card.",
        do="sudo fuser -v /dev/kfd",
        wsl="ps aux | grep python",
        decode=_NODE,
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
        cause="What was asked for is more than was free. If it is a video VAE with MIOpen off,"
        " PyTorch's own conv3d takes 27 times its input for one 3x3x3 convolution; with MIOpen on,"
        " its find step may take room to try solvers.",
        do="Start ComfyUI with --lowvram",
        instead=_NOT_COMFY,
        decode=_NODE,
        here=_BOUNDED,
        otherwise="Smaller tiles or fewer frames, other models unloaded, no --gpu-only or"
        " --highvram. Restart after it if all that follows is slow.",
        source=_THEROCK + "2844",
        words=("hip", "rocm"),
        patterns=(
            r"\bHIP out of memory\b",
            r"\b(?:HIP|ROCm) error: out of memory\b",
            r"\bhipErrorOutOfMemory\b",
            r"CUDA error: out of memory.{0,250}\bhipMalloc",  # ggml names both
            r"Triton Error \[HIP\]:.{0,40}out of memory",
        ),
        follows=(*_GPU_CAUSES, "block-allocator"),
    ),
    Rule(
        id="cuda-out-of-memory",
        symptom="The card is out of memory; the program says CUDA.",
        cause="What was asked for is more than was free. The words are those of an NVIDIA card,"
        " or of an AMD card under ZLUDA.",
        do="Start ComfyUI with --lowvram",
        instead=_NOT_COMFY,
        decode=_NODE,
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
        do="{wheels}",
        here="This package works with ROCm and ZLUDA; DirectML gets PyTorch's plain operators.",
        otherwise="That is PyTorch for ROCm in place of DirectML; else smaller pictures.",
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
        do="Start ComfyUI with --lowvram",
        instead=_NOT_COMFY,
        decode=_NODE,
        here=_BOUNDED,
        otherwise="Smaller tiles or fewer frames, and other models unloaded.",
        source="https://github.com/BoyuanJiang/FitDiT-ComfyUI/issues/2",
        words=(
            "got an oom",
            "exceed allowed",
            "outofmemory",
            "allocation on device",
            "cudamalloc failed",
            "of which",
            "failed to allocate rocm",
        ),
        patterns=(
            r"Got an OOM, unloading",
            r"\bOutOfMemoryError\b",
            r"would exceed allowed memory",
            r"!!! Exception during processing ?!!! Allocation on device",
            r"cudaMalloc failed: out of memory",
            r"failed to allocate ROCm\d+ buffer",
            r"Tried to allocate \S+ [KMG]iB\. GPU \d+ has a total capac",
        ),
        unless=(r"\b(?:HIP|CUDA) out of memory\b",),
        follows=(*_GPU_CAUSES, "hip-out-of-memory", "cuda-out-of-memory", "block-allocator"),
    ),
    Rule(
        id="decode-retried-tiled",
        symptom="The VAE ran out of GPU memory, and ComfyUI went on in tiles.",
        cause="The whole decode or encode did not fit. ComfyUI's tiles fit, with seams that may"
        " show.",
        do=_NODE,
        here=_BOUNDED,
        source="https://github.com/ROCm/legacy-rocm-build/issues/5405",
        words=("ran out of memory when",),
        patterns=(r"Ran out of memory when regular VAE (?:de|en)coding",),
        follows=_OUT,
        rank=2,
    ),
    Rule(
        id="host-out-of-memory",
        symptom="The computer's own memory is full.",
        cause="An allocation in host memory failed: models that were moved off the card live"
        " there, and on Windows memory and page file together are the limit. The card's memory is"
        " another matter.",
        do="sudo fallocate -l 32G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile"
        " && sudo swapon /swapfile",
        windows="SystemPropertiesPerformance.exe (Advanced, Virtual memory: let Windows manage the"
        " size)",
        here="The decode has a budget for the host as well and keeps the result of a long video"
        " on disk if asked to (`hy3d-rocm decode`).",
        otherwise="Close programs; models in fp8 or GGUF; in WSL a larger memory= and swap= in"
        " .wslconfig.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/8065",
        words=(
            "defaultcpuallocator",
            "paging file",
            "os error 1455",
            "memoryerror",
            "mmap",
            "cannot allocate memory",
            "winerror 1455",
        ),
        patterns=(
            r"DefaultCPUAllocator: (?:not enough memory|can't allocate memory)",
            r"(?:os error|WinError) 1455",
            r"paging file is too small",
            r"^MemoryError\b",
            r"numpy\S*MemoryError: Unable to allocate",
            r"unable to mmap \d+ bytes",
            r"Errno 12\] Cannot allocate memory",
            r"Cannot allocate memory \((?:os error )?12\)",
        ),
        unless=(r"/dev/kfd",),
    ),
    Rule(
        id="process-killed",
        symptom="The system ended the process: the computer's own memory was full.",
        cause="The kernel's out-of-memory killer, earlyoom or systemd-oomd ends the largest process"
        " when memory and swap run out; a bare 'Killed' is its mark. The card's memory is another"
        " matter.",
        do="sudo fallocate -l 32G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile"
        " && sudo swapon /swapfile",
        windows="SystemPropertiesPerformance.exe (Advanced, Virtual memory: let Windows manage the"
        " size)",
        otherwise="Start ComfyUI with --cache-none; models in fp8 or GGUF; in a container a larger"
        " memory limit; in WSL memory= and swap= in .wslconfig. `sudo dmesg | grep -i oom` shows"
        " whether it was that.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/5177",
        words=("killed", "oom", "signal 9", "137", "sigkill", "-9"),
        patterns=(
            r"^(?:.{0,80}line \d+: +\d+ )?Killed\b(?! by user)",
            r"Out of memory: Kill(?:ed)? process",
            r"\boom-kill(?:er)?\b",
            r"earlyoom\S* .{0,80}(?:sending SIG|low memory)",
            r"systemd-oomd\S* Killed",
            r"(?:\bexit(?:ed)?(?: with)? code:?|\bError) ?137\b",
            r"status=9/KILL|Failed with result 'oom-kill'",
            r"(?:killed by|received|signal) (?:signal 9|SIGKILL|9 \(SIGKILL\))",
            r"exit(?:ed with)?(?: code)?:? -9\b",
        ),
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="expandable-segments",
        symptom="expandable_segments is set and has no effect.",
        cause="PyTorch advises it in every out-of-memory text, but this build for this system has"
        " not got it.",
        do="Nothing has to be done.",
        otherwise="Remove it from PYTORCH_ALLOC_CONF, PYTORCH_HIP_ALLOC_CONF or"
        " PYTORCH_CUDA_ALLOC_CONF.",
        source=_THEROCK + "2844",
        words=("expandable_segments not supported",),
        patterns=(r"expandable_segments not supported on this platform",),
        severity="notice",
    ),
)
