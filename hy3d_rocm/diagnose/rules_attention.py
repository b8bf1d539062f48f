"""Attention packages, Triton and other optional packages with kernels of their own."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_OPTIONAL = "This package does not need it."
_PYTORCH = "Start ComfyUI with --use-pytorch-cross-attention"
_LEAVES = "This package leaves attention alone."

RULES: tuple[Rule, ...] = (
    Rule(
        id="xformers-operator",
        symptom="xformers has no attention for this card or type.",
        cause="xformers was built without the kernels that this call needs (on AMD: composable"
        " kernels, for some cards, in 16 bits), or for another PyTorch.",
        do="python -m pip uninstall -y xformers",
        here=_OPTIONAL,
        otherwise=_PYTORCH + ".",
        source="https://github.com/utensils/comfyui-nix/issues/57",
        words=("memory_efficient_", "xformers"),
        patterns=(
            r"No operator found for `?memory_efficient_",
            r"Could not run 'xformers::\w+' with arguments",
            r"xformers[\\/].{0,80}(?:undefined symbol|cannot open shared object)",
        ),
    ),
    Rule(
        id="attention-package-missing",
        symptom="An optional attention package is not there or not usable.",
        cause="SageAttention or FlashAttention was asked for and is not installed for this"
        " Python, or its CUDA part is missing, which does not exist for AMD.",
        do=_PYTORCH + " and without --use-sage-attention and --use-flash-attention",
        here=_OPTIONAL,
        otherwise="On AMD SageAttention 1 (`pip install sageattention==1.0.6`) and FlashAttention's"
        " Triton back end can work where Triton does.",
        source="https://github.com/thu-ml/SageAttention/issues/126",
        words=("sageatt", "flash_attn", "sage-attention", "flash-attn"),
        patterns=(
            r"No module named '?(?:sageattention|flash_attn)\b",
            r"No module named '?flash_attn_(?:2_cuda|interface)",
            r"name 'sageattn\w*' is not defined",
            r"the `?(?:sageattention|flash-attn)`? package must be installed",
        ),
        rank=2,
        optional=True,
    ),
    Rule(
        id="sage-unsupported",
        symptom="SageAttention does not run on this card.",
        cause="SageAttention 2 and its wheels are CUDA kernels; on AMD only the Triton version"
        " (1.0.6) can run. ComfyUI goes on with PyTorch's attention where it says so.",
        do="python -m pip install --force-reinstall --no-deps sageattention==1.0.6",
        here=_OPTIONAL,
        otherwise=_PYTORCH + " and without --use-sage-attention.",
        source="https://github.com/woct0rdho/SageAttention/issues/105",
        words=("sage",),
        patterns=(
            r"sageattention is not new enough version or could not determine CUDA",
            r"Error running sage attention: (?!name 'sageattn|PassManager)",
            r"sageattention.{0,120}(?:Unsupported CUDA architecture|no kernel image)",
            r"sageattention.{0,60}_qattn_sm\d+.{0,60}(?:No module|cannot import|DLL load failed)",
        ),
        follows=("triton-compile", "triton-no-compiler", "gpu-page-fault"),
        confidence="likely",
        rank=2,
    ),
    Rule(
        id="flash-unsupported",
        symptom="FlashAttention does not run on this card.",
        cause="The build of flash_attn has no kernels for this card (its composable-kernel part is"
        " for CDNA and some RDNA cards).",
        do=_PYTORCH + " and without --use-flash-attention",
        here=_OPTIONAL,
        otherwise="FlashAttention's Triton back end: FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE, also"
        " when it is installed.",
        source="https://github.com/pccr10001/comfyui-gfx1151-fa/issues/3",
        words=("flash", "hip function failed", "fmha_"),
        patterns=(
            r"Flash ?Attention (?:currently )?only supports",
            r"Flash Attention failed, using default SDPA",
            r"HIP Function Failed",
            r"invalid argument for fmha_(?:fwd|bwd)",
        ),
        follows=("wrong-architecture", "triton-compile", "gpu-page-fault"),
        confidence="likely",
        rank=2,
    ),
    Rule(
        id="flash-build",
        symptom="FlashAttention can't be built for this card.",
        cause="Its composable-kernel part does not compile for this architecture; compiler and"
        " ROCm are not at fault.",
        do="FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE python -m pip install --no-build-isolation"
        " flash-attn",
        windows=_PYTORCH,
        here=_OPTIONAL,
        source="https://github.com/Dao-AILab/flash-attention/issues/1215",
        words=("composable_kernel", "ck_tile", "flash-attn", "flash_attn"),
        patterns=(
            r"(?:composable_kernel|ck_tile)[\\/].{0,300}\berror: ",
            r"(?:Failed building wheel|Failed to build).{0,20} flash[-_]attn",
        ),
    ),
    Rule(
        id="attention-no-kernel",
        symptom="PyTorch has no kernel for the attention that was asked for.",
        cause="Flash or memory-efficient attention was demanded, and this PyTorch has none for the"
        " card: AMD's (AOTriton) is left out or switched off for it.",
        do="export TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1",
        windows="set TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1",
        here=_LEAVES,
        otherwise="A PyTorch that brings AOTriton for the card; --use-split-cross-attention or"
        " --use-quad-cross-attention do without.",
        source="https://github.com/ROCm/TheRock/issues/1364",
        words=("no available kernel",),
        patterns=(r"No available kernel\. Aborting execution",),
        confidence="likely",
    ),
    Rule(
        id="triton-no-compiler",
        symptom="No C compiler was found, or not its headers.",
        cause="Triton builds a small part in C when it first meets the card, and pip builds"
        " packages that have no wheel for this Python. A compiler, the headers of Python or of the"
        " system are missing; on Windows Triton's own small compiler (tcc) failed.",
        do="sudo apt install build-essential python3-dev",
        windows="winget install Microsoft.VisualStudio.2022.BuildTools --override"
        ' "--add Microsoft.VisualStudio.Workload.VCTools --includeRecommended --passive"',
        here=_OPTIONAL + " With Triton, convolutions on the GPU are faster.",
        otherwise="On Windows a short path without blanks or letters beyond ASCII, and for"
        " hip_utils.c ROCm's headers: pip install rocm[devel], then `rocm-sdk init`; or no"
        " torch.compile and " + _PYTORCH[14:] + ".",
        source="https://github.com/unslothai/unsloth/pull/7704",
        words=(
            "cl is not found",
            "cl.exe",
            "visual c++",
            "gcc' failed",
            "vcvarsall",
            "c compiler",
            "tcc",
            "msvc",
            "python.h",
            "_utils.c",
            "launcher.c",
            "python libs",
            "lnk1104",
            "stdlib.h",
            "hip_utils",
            "triton test failed",
        ),
        patterns=(
            r"Compiler: (?:cl|g\+\+|gcc|clang\S*) is not found",
            r"command '\S*(?:cl(?:\.exe)?|gcc|g\+\+)' failed(?!:? with exit)",
            r"Microsoft Visual C\+\+ 14\.\d+ (?:or greater )?is required",
            r"Unable to find vcvarsall",
            r"Failed to find (?:a )?C compiler",
            r"\btcc(?:\.exe)?\W{1,3}(?:error|.{0,200}returned non-zero)",
            r"Failed to find (?:MSVC|Windows SDK|Python libs)",
            r"fatal error: '?(?:Python|stdlib|stdio|math)\.h'?:? (?:No such file|file not found)",
            r"LNK1104: cannot open file .{0,60}python\w*\.lib",
            r"hip_utils\S*\.(?:pyd|so|c)\b.{0,120}(?:error|failed|returned non-zero)",
            r"CalledProcessError: Command .{0,300}(?:(?:hip|cuda)_utils|_launcher|main)\.c\b",
            r"Triton test failed: \[WinError 2\]",
        ),
        follows=("cxx-headers",),
        confidence="likely",
        optional=True,
    ),
    Rule(
        id="triton-compile",
        symptom="Triton could not compile a kernel for this card.",
        cause="Triton's AMD part failed in one of its steps, or does not know the architecture;"
        " seen with SageAttention's and FlashAttention's kernels on RDNA (their num_stages). ROCm"
        " and the model are not at fault.",
        do=_PYTORCH + " and without --use-sage-attention and --use-flash-attention",
        here=_OPTIONAL,
        otherwise="A newer Triton; no torch.compile.",
        source="https://github.com/triton-lang/triton-windows/issues/24",
        words=(
            "outofresources",
            "out of resource",
            "passmanager",
            "tritonamdgpu",
            "destroyed but still",
            "unsupported target",
            "compilationerror",
            "tritonamd",
        ),
        patterns=(
            r"OutOfResources: out of resource: shared memory",
            r"PassManager::run failed",
            r"TritonAMDGPU\w*(?:Pipeline|Pass|AccelerateMatmul)|tritonamdgpu-schedule-loops\{",
            r"operation destroyed but still has uses",
            r"unsupported target: 'gfx",
            r"\bCompilationError: at \d+:\d+:|triton\.compiler\.errors\.CompilationError",
        ),
        follows=("triton-no-compiler", "triton-link", "fp8-matmul"),
        confidence="likely",
    ),
    Rule(
        id="inline-assembly",
        symptom="A kernel holds assembly that was written for another maker's cards.",
        cause="The compiler for the card refuses a constraint of inline assembly: a Triton kernel,"
        " or one that torch.compile made with a Triton of another version than PyTorch's, was"
        " written for NVIDIA cards. The card and its driver are not at fault.",
        do="export TORCHDYNAMO_DISABLE=1",
        windows="set TORCHDYNAMO_DISABLE=1",
        here=_OPTIONAL,
        otherwise="The Triton that belongs to your PyTorch; without the node or package whose"
        " kernel it is.",
        source="https://github.com/pytorch/pytorch/issues/98510",
        words=("couldn't allocate",),
        patterns=(r"couldn't allocate (?:input|output) reg(?:ister)? for constraint",),
        confidence="likely",
    ),
    Rule(
        id="triton-no-driver",
        symptom="Triton found no driver of a GPU that it could use.",
        cause="Triton asks PyTorch for the card before it compiles anything, and builds a small"
        " module for it. PyTorch sees no GPU, is not the ROCm build (as under ZLUDA, where"
        " torch.version.hip is None), or two Tritons (triton, triton-windows, pytorch-triton-rocm)"
        " lie over each other. The log does not tell which.",
        do='python -c "import torch, triton; print(torch.__version__, torch.version.hip,'
        ' torch.cuda.is_available(), triton.__version__)"',
        here=_OPTIONAL,
        otherwise="Two Tritons (`python -m pip list`): uninstall all of them, install the one that"
        " your PyTorch wants. Under ZLUDA: the Triton that its installer brings. Or no"
        " torch.compile and no SageAttention.",
        source="https://github.com/triton-lang/triton/pull/6579",
        words=("active drivers", "active driver(s)", "_initialize_obj", "_create_driver"),
        patterns=(
            r"\b[02-9] active drivers \(",
            r"\b[02-9] active driver\(s\) found",
            r"triton[\\/]runtime[\\/]driver\.py\", line \d+, in (?:_initialize_obj|_create_driver)",
        ),
        follows=("triton-no-compiler", "no-gpu-found", "torch-without-gpu", "torch-cuda-build"),
        confidence="possible",
        optional=True,
    ),
    Rule(
        id="triton-architecture",
        symptom="Triton built a kernel for another card than this one.",
        cause="HIP has no binary for the card in what Triton made (error 209 or 98): it took the"
        " architecture of another one, from TRITON_OVERRIDE_ARCH, HSA_OVERRIDE_GFX_VERSION or a"
        " guess.",
        do="export TRITON_OVERRIDE_ARCH={card}",
        windows="set TRITON_OVERRIDE_ARCH={card}",
        here=_OPTIONAL,
        otherwise="Without it ComfyUI runs, only without Triton's kernels.",
        source="https://github.com/patientx/ComfyUI-Zluda/issues/263",
        words=("triton error",),
        patterns=(r"Triton Error \[HIP\]: *Code: (?:209|98|200)\b",),
        confidence="likely",
    ),
    Rule(
        id="triton-mismatch",
        symptom="Triton does not fit this PyTorch.",
        cause="Each PyTorch goes with one version of Triton; here a part that is asked for has"
        " another name or is not there: another version, or files of two packages (triton,"
        " triton-rocm, pytorch-triton-rocm, triton-windows) in one folder.",
        do="python -m pip uninstall -y triton triton-rocm pytorch-triton-rocm && {wheels}",
        windows="python -m pip uninstall -y triton triton-windows pytorch-triton-rocm & python -m"
        " pip install triton-windows",
        here=_OPTIONAL,
        otherwise="On Windows in the version for your PyTorch (its page has the table). Or no"
        " torch.compile.",
        source="https://github.com/woct0rdho/triton-windows/issues/120",
        words=("triton", "_unsafe_update_src"),
        patterns=(
            r"No module named 'triton\.\w",
            r"cannot import name '\w+' from (?:partially initialized module )?'triton[.']",
            r"module 'triton[\w.]*' has no attribute",
            r"_unsafe_update_src",
        ),
        unless=(r"'triton\.ops",),
        confidence="likely",
        optional=True,
    ),
    Rule(
        id="triton-link",
        symptom="torch.compile could not build a kernel for this card.",
        cause="Inductor's kernels are built by Triton, whose build or link step failed here; on"
        " Windows this needs a Triton made for AMD.",
        do="export TORCHDYNAMO_DISABLE=1",
        windows="set TORCHDYNAMO_DISABLE=1",
        here=_OPTIONAL,
        otherwise="Leave the torch.compile node out; a newer Triton (Windows: triton-windows).",
        source="https://github.com/ROCm/TheRock/issues/1278",
        words=("backendcompilerfailed", "hsaco", "inductor"),
        patterns=(
            r"LLD failed to link hsaco",
            r"_inductor\.exc\.InductorError",
            r"\bBackendCompilerFailed\b",
            r"^backend='inductor' raised",
        ),
        follows=("triton-no-compiler", "triton-missing"),
        confidence="likely",
    ),
    Rule(
        id="triton-missing",
        symptom="Triton is missing.",
        cause="torch.compile, or a node, needs Triton, and there is none for this PyTorch, or not"
        " the one that fits it.",
        do="Switch torch.compile off in that node.",
        windows="python -m pip install triton-windows",
        here=_OPTIONAL + " With it, convolutions on the GPU are faster.",
        otherwise="Linux: the Triton that comes with the ROCm wheels of torch.",
        source="https://github.com/kijai/ComfyUI-WanVideoWrapper/issues/92",
        words=("triton",),
        patterns=(
            r"Cannot find a working triton installation",
            r"No module named '?triton'?(?![\w.])",
            r"\bTritonMissing\b",
        ),
        unless=(r"Error caught was:|some optimizations will not be enabled",),
        optional=True,
    ),
    Rule(
        id="bitsandbytes",
        symptom="bitsandbytes has no library for this ROCm.",
        cause="The installed bitsandbytes is a CUDA build, or was built for another ROCm than"
        " PyTorch's. It needs no CUDA, whatever its messages advise.",
        do="python -m pip install --upgrade --force-reinstall --no-deps bitsandbytes",
        here=_OPTIONAL,
        otherwise="From 0.49 on its wheels have ROCm parts; older ones have to be built with its"
        " HIP back end. BNB_ROCM_VERSION chooses one that is there.",
        source="https://github.com/ROCm/bitsandbytes/issues/82",
        words=("cextension", "setup failed despite", "bitsandbytes", "libcudart", "bnb_"),
        patterns=(
            r"libbitsandbytes_\w+\S*.{0,80}(?:not found|No such file|cannot open|undefined symbol)",
            r"libbitsandbytes_cpu\.so",
            r"Configured \w+ binary not found at \S*bitsandbytes",
            r"Could not find the bitsandbytes \w+ binary",
            r"No libcudart\.so found",
            r"did not contain .{0,40}libcudart\.so",
            r"bitsandbytes.{0,80}(?:compiled without GPU support|library load error)",
            r"Could not load bitsandbytes native library",
            r"Setup failed despite (?:CUDA|GPU) being available",
            r"No package metadata was found for bitsandbytes",
        ),
        confidence="likely",
        rank=2,
        optional=True,
    ),
    Rule(
        id="bitsandbytes-missing",
        symptom="bitsandbytes is not installed.",
        cause="An 8-bit optimizer or 4-bit weights were asked for, and the package for them is not"
        " in this environment. It needs no CUDA.",
        do='python -m pip install --no-deps "bitsandbytes>=0.49"',
        here=_OPTIONAL,
        otherwise="From 0.49 on its wheels have ROCm parts. Or an optimizer without 8bit in its"
        " name (AdamW, Adafactor), and weights that are not nf4.",
        source="https://github.com/lshqqytiger/OneTrainer/issues/11",
        words=("bitsandbytes",),
        patterns=(
            r"No module named '?bitsandbytes'?(?![\w.])",
            r"ImportError: No bitsandbytes\b",
            r"(?:install|requires?) .{0,40}\bbitsandbytes\b.{0,80}pip install",
        ),
        optional=True,
    ),
    Rule(
        id="xformers-extensions-warning",
        symptom="xformers has no kernels or no Triton here.",
        cause="It was built for another PyTorch; programs go on with PyTorch's attention.",
        do="Nothing has to be done.",
        otherwise="`python -m pip uninstall -y xformers` keeps it quiet.",
        source="https://github.com/ROCm/xformers/issues/57",
        words=("xformers can't load", "triton is not available", "error caught was"),
        patterns=(
            r"xFormers can't load C\+\+/CUDA extensions",
            r"Triton is not available, some optimizations",
            r"Error caught was: No module named '?triton",
        ),
        severity="notice",
    ),
    Rule(
        id="attention-left-out-warning",
        symptom="This PyTorch has no flash or memory-efficient attention.",
        cause="A warning: attention takes the plain way, with right results, more memory and less"
        " speed.",
        do="Nothing has to be done.",
        otherwise="TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1 where the build brings AOTriton.",
        source="https://github.com/pytorch/pytorch/issues/112997",
        words=("torch was not compiled with",),
        patterns=(r"Torch was not compiled with (?:flash|memory efficient|cuDNN) attention",),
        severity="notice",
    ),
)
