"""HIP's error texts, and crashes that no error text explains."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import ANY, Rule

_THEROCK = "https://github.com/ROCm/TheRock/issues/"
_LOST = ("gpu-page-fault", "gpu-launch-failure", "gpu-reset", "hsa-queue-error", "gpu-hang")
_LONG_KERNELS = (
    "Under protect() no convolution of MIOpen is started that was not proven for its shape, and the"
    " decode of this package goes in parts: both avoid kernels that run for seconds."
)
_COMPARES = "`hy3d-rocm doctor` compares the card with what PyTorch was built for."
_ERROR = r"(?:HIP|CUDA|ROCm) error: "
# The text of every HIP error that a rule of its own tells.
_TOLD = (
    r"invalid device function|no kernel image|out of memory|an illegal memory|unspecified launch"
    r"|the launch timed out|device-side assert|invalid configuration|no ROCm-capable"
    r"|device kernel image is invalid|invalid device ordinal|invalid argument"
    r"|operation not supported|named symbol not found"
)

RULES: tuple[Rule, ...] = (
    Rule(
        id="gpu-launch-failure",
        symptom="A kernel on the GPU crashed or was ended.",
        cause="The run time only says that a kernel did not end well. On Windows the driver ends"
        " kernels that run longer than about two seconds (TDR); on Linux it is mostly the driver"
        " or its firmware.",
        do="On Linux install the newest kernel and your distribution's firmware, then: {wheels}",
        wsl="{wheels}",
        windows="Install the current Adrenalin driver, then: {wheels}",
        here=_LONG_KERNELS,
        otherwise="Restart the program after it. On Linux look for 'amdgpu' in `dmesg`.",
        source=_THEROCK + "2846",
        words=("launch failure", "launchfailure", "launchtimeout", "launch timed out"),
        patterns=(
            r"(?:HIP|CUDA|ROCm) (?:error|warning): unspecified launch failure",
            r"\bhipErrorLaunch(?:Failure|TimeOut)\b",
            _ERROR + r"the launch timed out",
        ),
        follows=tuple(name for name in _LOST if name != "gpu-launch-failure"),
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="gpu-assert",
        symptom="An assertion failed in a kernel on the GPU.",
        cause="A kernel was given an index or value out of range: mostly a text encoder with"
        " tokens that its table has not got, or data that do not fit the model.",
        do="Run once with AMD_SERIALIZE_KERNEL=3: the traceback then names the operation.",
        here="This package does not cause or mend it.",
        source=""
        "https://github.com/pytorch/pytorch/blob/v2.9.0/c10/cuda/CUDADeviceAssertionHost.cpp",
        words=("device-side assert",),
        patterns=(
            _ERROR + r"device-side assert triggered",
            r"\.hip:\d+: .{0,100}Device-side assertion .{0,200}failed",
        ),
    ),
    Rule(
        id="gpu-launch-refused",
        symptom="The run time refused the size of a kernel's grid.",
        cause="A tensor is too large for one launch, as seen beyond 2^31 elements. The device is"
        " as it was.",
        do="Fewer frames or smaller pictures at a time.",
        decode='Take the node "VAE Decode (ROCm, bounded memory)" in place of "VAE Decode".',
        here="The decode in parts stays far below that size; protect() takes another tier.",
        source="https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html",
        words=("invalid configuration argument", "hiperrorinvalidconfiguration"),
        patterns=(
            _ERROR + r"invalid configuration argument",
            r"\bhipErrorInvalidConfiguration\b",
        ),
        confidence="likely",
    ),
    Rule(
        id="hip-invalid-image",
        symptom="The code for the GPU that was loaded is not valid for it.",
        cause="The kernels in a library do not fit the card or the installed run time: wheels for"
        " another architecture, or parts of several ROCm versions side by side.",
        do="{wheels}",
        beside="Hide the processor's GPU: set HIP_VISIBLE_DEVICES to the number of the card",
        here=_COMPARES,
        otherwise="A virtual environment of its own for it; no LD_LIBRARY_PATH or PATH entries to"
        " another ROCm or HIP SDK; a current driver.",
        source=_THEROCK + "6241",
        words=(
            "image is invalid",
            "invalidimage",
            "error: file not found",
            "invalidkernelfile",
            "addfatbinary",
            "hip::devicefunc",
        ),
        patterns=(
            r"device kernel image is invalid",
            r"\bhipErrorInvalid(?:Image|KernelFile)\b",
            r"(?:HIP|CUDA) error: file not found",
            r"hip_code_object\.cpp:\d+: .{0,120}addFatBinary",
            r"\b_Tp = hip::DeviceFunc\b",
        ),
        follows=("integrated-gpu",),
        confidence="likely",
    ),
    Rule(
        id="kernel-not-in-library",
        symptom="A kernel is not in the library that was loaded (named symbol not found).",
        cause="The package that called it has no code for this card in what it loaded: mostly a"
        " CUDA build of xformers or another extension, also under ZLUDA, whose kernels ZLUDA could"
        " not translate. PyTorch's own part ran before.",
        do="python -m pip uninstall -y xformers",
        here=_COMPARES,
        otherwise="Without xformers: the package in the traceback, in its ROCm build or left out.",
        source="https://github.com/patientx/ComfyUI-Zluda/issues/14",
        words=("named symbol",),
        patterns=(_ERROR + r"named symbol not found",),
        confidence="likely",
    ),
    Rule(
        id="hip-invalid-device",
        symptom="A GPU was asked for that is not there.",
        cause="The number of a device is one that HIP has not got here: HIP_VISIBLE_DEVICES,"
        " ROCR_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES hides it, or a program counts more cards"
        " than there are.",
        do="unset HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES",
        windows="set HIP_VISIBLE_DEVICES=",
        here="`hy3d-rocm doctor` shows which cards PyTorch sees.",
        source="https://github.com/vllm-project/vllm/issues/12572",
        words=("invaliddevice", "device ordinal"),
        patterns=(r"\bhipErrorInvalidDevice\b", r"invalid device ordinal"),
        unless=(r"hipGetDeviceCount",),
        confidence="likely",
    ),
    Rule(
        id="hip-invalid-value",
        symptom="HIP refused a copy or a launch: invalid argument.",
        cause="In ComfyUI on AMD cards it is mostly a copy of weights between the computer's pinned"
        " memory and the card; HIP may report it in a later call than the one that failed.",
        do="Start ComfyUI with --disable-pinned-memory",
        otherwise="--disable-async-offload, then --disable-dynamic-vram; newer ROCm wheels and"
        " driver.",
        source=_THEROCK + "2707",
        words=("invalid argument", "hiperrorinvalidvalue"),
        patterns=(_ERROR + r"invalid argument", r"\bhipErrorInvalidValue\b"),
        follows=(*_LOST, "dynamic-vram-crash"),
        confidence="likely",
    ),
    Rule(
        id="windows-driver-reset",
        symptom="Windows reset the display driver.",
        cause="The card did not answer within the time that Windows gives it (TDR, about two"
        " seconds): a kernel ran too long, or the driver failed.",
        do="reg add HKLM\\SYSTEM\\CurrentControlSet\\Control\\GraphicsDrivers /v TdrDelay /t"
        " REG_DWORD /d 60 /f",
        decode="set MIOPEN_FIND_MODE=FAST",
        here=_LONG_KERNELS,
        otherwise="Run it as administrator and restart. The current Adrenalin driver.",
        source="https://learn.microsoft.com/windows-hardware/drivers/display/tdr-registry-keys",
        words=("video_tdr", "amdkmdag", "amduw23g", "stopped responding", "livekernelevent"),
        patterns=(
            r"VIDEO_TDR_(?:FAILURE|TIMEOUT_DETECTED)",
            r"(?:amdkmdag|amduw23g|amdwddmg).{0,40}stopped responding",
            r"LiveKernelEvent.{0,20}\b1(?:41|17)\b",
        ),
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="windows-gpu-crash",
        symptom="The process crashed inside AMD's run time or libraries (Windows).",
        cause="An access violation inside the DLL that is named: the program ended at once, so no"
        " error reaches Python. Mostly the ROCm wheels do not fit the card or its driver; where the"
        " stack names an operation (at::...), that one has a fault in this build.",
        do="{wheels}",
        here="Where that happens in the first call of a convolution's shape, this package remembers"
        " it and does not try it in that way again.",
        otherwise="The current Adrenalin driver; no folder of another HIP SDK on PATH.",
        source=_THEROCK + "7691",
        words=(
            "faulting module",
            "amdhip64",
            ".dll+0x",
            ".dll(0x",
        ),
        patterns=(
            r"0xC0000005.{0,200}amdhip64",
            r"\b0x[0-9a-f]{16}, \S.{0,200}[\\/](?:amdhip64|torch_hip|c10_hip)\w*\.dll\(0x",
            r"#\d+ (?:0x[0-9a-f]+ )?.{0,200}\(\S*(?:amdhip64|torch_hip|c10_hip|MIOpen|amd_comgr"
            r"|(?:lib)?(?:hip|roc)blas)\w*\.dll",
            r"Faulting module name: (?:amd(?:hip|ocl|_comgr)\w*|torch_hip|c10_hip|MIOpen"
            r"|(?:lib)?(?:hip|roc)blas\w*)",
        ),
        follows=("integrated-gpu", "int8-matmul", "fp8-matmul"),
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="windows-init-crash",
        symptom="The process crashed when PyTorch first asked for the GPU (Windows).",
        cause="HIP could not start on this machine: the wheels have nothing for the card (AMD's own"
        " Windows wheels leave out the RX 6000 series), the driver does not fit them, or a second"
        " GPU (the processor's) is tried as well. No node and no model is to blame.",
        do="{wheels}",
        otherwise="The current Adrenalin driver; `set HIP_VISIBLE_DEVICES=0` hides the processor's"
        " GPU.",
        source="https://github.com/Comfy-Org/ComfyUI-Manager/issues/2724",
        words=("is_available", "_cuda_init", "_lazy_init", "_cuda_getdevicecount"),
        patterns=(
            r"torch[\\/]cuda[\\/]__init__\.py.{0,40}is_available",
            r"torch\.cuda\.is_available\(\)",
            r"\b_cuda_(?:init|getDeviceCount)\b",
            r"\bin _lazy_init\b",
        ),
        needs=("windows-access-violation",),
        within=15,
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="crash-in-convolution",
        symptom="The process crashed in a convolution.",
        cause="The stack's first line is PyTorch's convolution, behind which MIOpen stands: it, or"
        " one of its kernels for this card, crashed. The node and the model are not at fault.",
        do="torch.backends.cudnn.enabled = False",
        here="Under protect() no convolution of MIOpen is started that was not proven for its"
        " shape.",
        otherwise="In ComfyUI on AMD that is the default of newer versions. Else: {wheels}",
        source="https://github.com/patientx-cfz/comfyui-rocm/issues/108",
        words=("conv",),
        patterns=(r"torch[\\/]nn[\\/]modules[\\/]conv\.py\", line \d+",),
        needs=("windows-access-violation", "native-crash"),
        within=4,
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="crash-in-attention",
        symptom="The process crashed in attention.",
        cause="The stack's first line, or the kernel's name, is attention (PyTorch's,"
        " SageAttention's or FlashAttention's): its kernel for this card crashed. The"
        " node and the model are not at fault.",
        do="Start ComfyUI with --use-split-cross-attention and without --use-sage-attention and"
        " --use-flash-attention",
        instead=(
            (
                "no comfy",
                "Choose PyTorch's plain attention (math, or sdpa without flash) in place of flash"
                " or sage attention in the program's settings.",
            ),
        ),
        otherwise="TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL unset; another PyTorch for ROCm.",
        source="https://docs.python.org/3/library/faulthandler.html",
        words=("attention", "attn"),
        patterns=(
            r"File \"\S[^\"]{0,300}(?:attention|attn)\w*(?:[\\/][\w\\/]+)?\.py\", line \d+"
            r"|\", line \d+,? in scaled_dot_product_attention",
            r"\bKernel Name: \w{0,60}(?:attn|attention|fmha)",
        ),
        needs=("windows-access-violation", "native-crash", "hsa-queue-error"),
        within=4,
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="crash-in-matmul",
        symptom="The process crashed in a matrix product.",
        cause="The stack's first line is PyTorch's linear layer, behind which hipBLASLt or rocBLAS"
        " stands: it crashed on this product. The node and the model are not at fault.",
        do="export TORCH_BLAS_PREFER_HIPBLASLT=0",
        windows="set TORCH_BLAS_PREFER_HIPBLASLT=0",
        otherwise="Weights in bf16 or fp16 in place of int8 or fp8. Else: {wheels}",
        source="https://github.com/ROCm/rocm-libraries/issues/5205",
        words=("linear.py", "in linear", "in addmm", "in matmul"),
        patterns=(
            r"torch[\\/]nn[\\/]modules[\\/]linear\.py\", line \d+"
            r"|\", line \d+,? in (?:linear|addmm|matmul|bmm)$",
        ),
        needs=("windows-access-violation", "native-crash"),
        within=4,
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="dynamic-vram-crash",
        symptom="The process crashed with ComfyUI's DynamicVRAM switched on.",
        cause="DynamicVRAM (comfy-aimdo) hooks the allocator and stages weights in pinned memory;"
        " on AMD cards that is behind a class of crashes. It is on by default, so that it was on"
        " proves nothing: the switch is only the first thing to try.",
        do="Start ComfyUI with --disable-dynamic-vram",
        otherwise="--disable-pinned-memory with DynamicVRAM left on; a newer comfy-aimdo.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/16102",
        words=("dynamic vram", "dynamicvram", "vbar_", "hostbuffer", "aimdo"),
        patterns=(
            r"prepared for dynamic VRAM loading",
            r"DynamicVRAM support detected and enabled",
            r"\bvbar_(?:allocate|fault)",
            r"HostBuffer\.\w+",
        ),
        needs=("windows-access-violation", "hip-invalid-value", "native-crash"),
        follows=(
            "crash-in-convolution",
            "crash-in-attention",
            "crash-in-matmul",
            "int8-matmul",
            "fp8-matmul",
        ),
        confidence="possible",
        rank=0,
    ),
    Rule(
        id="crash-in-package",
        symptom="The process crashed inside a Python package that has nothing to do with the card.",
        cause="The stack's first line lies in that package, and nothing in the log is AMD's or"
        " PyTorch's: its compiled part does not fit this Python, or another package beside it. The"
        " card, its driver and PyTorch have no part in it.",
        do="python -m pip install --upgrade --force-reinstall PACKAGE (behind site-packages in the"
        " stack's first line)",
        otherwise="Or leave out the node pack below it in the stack that imports it.",
        source="https://github.com/zhangp365/ComfyUI-utils-nodes/issues/27",
        words=("site-packages",),
        patterns=(
            r"\(most recent call first\):? {0,3}File \"[^\"]{1,250}site-packages[\\/]"
            r"(?!torch|triton|xformers|flash|sage|bitsandbytes|onnxruntime|comfy|_?rocm|amd)\w",
        ),
        needs=("windows-access-violation", "native-crash"),
        when=("stranger",),
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="windows-access-violation",
        symptom="The process crashed in native code (Windows: 0xC0000005 and the like).",
        cause="A DLL below Python accessed memory that it has not got, or stopped at a check of its"
        " own (0x80000003); on AMD cards mostly ROCm's, of a build that does not fit the card or"
        " the driver. The log does not say more. It is no lack of memory, and mostly not the node's"
        " fault.",
        do="Install the current Adrenalin driver, then: {wheels}",
        instead=(("stranger", "python -X faulthandler main.py"),),
        otherwise="`set HIP_VISIBLE_DEVICES=0` where the processor has a GPU, too;"
        " --disable-dynamic-vram; no folder of another HIP SDK on PATH.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/11931",
        words=(
            "0xc0000",
            "code 0x80000003",
            "322122",
            "-107374",
            "access violation",
            "0xc0000005",
            "3221225477",
            "1073741819",
            "access_violation",
        ),
        patterns=(
            r"(?:Windows fatal )?exception:? access violation",
            r"Windows fatal exception: code 0x80000003",
            r"\b0xC0000(?:005|374|409|01D|0FD)\b",
            r"\b322122(?:5477|6356|6505|5501)\b",
            r"-107374(?:1819|0940|0791|1795)\b",
        ),
        follows=(ANY,),
        confidence="possible",
        rank=0,
    ),
    Rule(
        id="rocm-segfault",
        symptom="The process crashed inside a library of ROCm.",
        cause="A segmentation fault in ROCm's run time: its version does not fit the kernel's"
        " driver or the card, or a bug of that version.",
        do="{wheels}",
        here=_COMPARES,
        otherwise="On Linux another kernel; in a container the ROCm that the host's driver knows.",
        source="https://github.com/ROCm/ROCR-Runtime/issues/68",
        words=(
            "libhsa",
            "libamdhip",
            "librocblas",
            "libhipblas",
            "libmiopen",
            "libtorch_hip",
            "libamdocl",
            "amd_comgr",
        ),
        patterns=(
            r"(?:\berror \d+ in |(?:segfault at .|SIGSEGV|Segmentation fault).{0,160})"
            r"\S*lib(?:hsa-runtime64|amdhip64|rocblas|hipblas\w*|MIOpen|torch_hip|amdocl64"
            r"|amd_comgr)",
        ),
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="native-crash",
        symptom="The process crashed in native code (segmentation fault, damaged heap).",
        cause="Code below Python crashed. The log does not say whose: on AMD cards mostly a PyTorch"
        " that does not fit the card, the system's libraries or this Python, or"
        " HSA_OVERRIDE_GFX_VERSION with a card of another generation.",
        do="python -X faulthandler main.py",
        windows="python -X faulthandler main.py",
        otherwise="It names the place at the next crash. Without HSA_OVERRIDE_GFX_VERSION, and with"
        " current wheels, see whether it stays.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/5387",
        words=(
            "illegal instruction",
            "free()",
            "double free",
            "corrupt",
            "malloc()",
            "munmap_chunk",
            "code 139",
            "code: 139",
            "code -11",
            "stack smashing",
            "segmentation fault",
            "segfault",
            "sigsegv",
            "status=11/segv",
            "aborthandler",
        ),
        patterns=(
            r"^(?:.{0,80}line \d+: +\d+ )?Illegal instruction\b",
            r"\bfree\(\): (?:invalid|double)",
            r"double free or corruption|corrupted size vs\. prev_size",
            r"\bmalloc\(\): |munmap_chunk\(\): |stack smashing detected",
            r"\bexit(?:ed)?(?: with)?(?: code| status)?:? (?:code:? )?(?:139|-11)\b",
            r"Segmentation fault",
            r"\bSIGSEGV\b",
            r"status=11/SEGV",
            r": segfault at ",
            r"Unhandled exception caught in c10/util/AbortHandler",
        ),
        follows=(ANY,),
        confidence="possible",
        rank=0,
    ),
    Rule(
        id="error-before-crash",
        symptom="An error that no rule knows stands right above the crash, and came first.",
        cause="The crash below only shows how the process ended. What failed is in the line of that"
        " error; its cause is not known here.",
        do="python -X faulthandler main.py",
        windows="python -X faulthandler main.py",
        otherwise="Look first for the words of that error together with the package in which the"
        " traceback above it ends.",
        source="hy3d_rocm/diagnose/examine.py",
        confidence="possible",
        rank=0,
    ),
    Rule(
        id="native-allocation",
        symptom="Native code could not allocate what it asked for (bad_alloc).",
        cause="Either the computer's memory was full, or a library of another version asked for"
        " nonsense, as torchaudio does beside a PyTorch that it was not made for. The log does not"
        " tell which.",
        do="python -X faulthandler main.py",
        otherwise="It names the place at the next crash. Where it happens at the start, with memory"
        " free, it is the library in the place that is named.",
        source="https://github.com/ostris/ai-toolkit/pull/563",
        words=("bad_alloc", "bad allocation"),
        patterns=(r"\bstd::bad_alloc\b|\bbad allocation\b",),
        follows=("host-out-of-memory", "process-killed"),
        confidence="possible",
        rank=0,
    ),
    Rule(
        id="ended-silently",
        symptom="The program ended without a word.",
        cause="The window says that the program is over, and no error stands before it: it was"
        " ended from below, by a crash of native code or since the computer's memory was full."
        " The log can't say which.",
        do="python_embeded\\python.exe -s -X faulthandler ComfyUI\\main.py"
        " --windows-standalone-build",
        otherwise="It names the place at the next crash. See in Windows' event viewer (Application)"
        " for 'Faulting module name'; let Windows manage the page file.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/10140",
        words=("press any key to continue", ">pause", "appuyez sur une touche"),
        patterns=(r"Press any key to continue", r"^[A-Z]:\\.{0,200}>pause$"),
        follows=(ANY,),
        unfinished=True,
        confidence="possible",
        rank=0,
    ),
    Rule(
        id="operation-not-supported",
        symptom="The run time has no such operation.",
        cause="Under ZLUDA: its DLLs are not those of the program's fork, or cuDNN is switched on"
        " without its files. With ROCm: a feature that this card, driver or system lacks (virtual"
        " memory of expandable_segments, access between cards).",
        do="unset PYTORCH_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF",
        windows="set PYTORCH_ALLOC_CONF=& set PYTORCH_HIP_ALLOC_CONF=&"
        " set PYTORCH_CUDA_ALLOC_CONF=",
        instead=(
            ("zluda", "Run ZLUDA's patch script again (patchzluda.bat of ComfyUI-Zluda)."),
            ("no amd", "Start ComfyUI with --disable-cuda-malloc"),
        ),
        here=_COMPARES,
        otherwise="On an NVIDIA card it is mostly the asynchronous allocator (cudaMallocAsync),"
        " which an old card or driver has not got: --disable-cuda-malloc of ComfyUI.",
        source="https://github.com/vladmandic/sdnext/issues/4647",
        words=("operation not supported", "hiperrornotsupported"),
        patterns=(_ERROR + r"operation not supported", r"\bhipErrorNotSupported\b"),
        follows=("zluda-failed",),
        confidence="possible",
    ),
    Rule(
        id="hip-error",
        symptom="A call of the HIP run time failed.",
        cause="HIP reports some errors in a later call than the one that failed, so the text and"
        " the place may mislead.",
        do="Run once with AMD_SERIALIZE_KERNEL=3: the traceback then names the operation.",
        here=_COMPARES,
        otherwise="Restart the program after it: the device may be lost.",
        source="https://github.com/invoke-ai/InvokeAI/issues/5738",
        words=("hip error", "hiperror"),
        patterns=(
            rf"\bHIP error: (?!{_TOLD})\w",
            r"Search for .hipError(?!InvalidValue|OutOfMemory|IllegalAddress|Launch|InvalidImage"
            r"|NoBinaryForGpu|InvalidDevice|InvalidConfiguration|NoDevice|InvalidKernelFile"
            r"|Assert|NotSupported)\w+",
        ),
        follows=(ANY,),
        confidence="possible",
    ),
)
