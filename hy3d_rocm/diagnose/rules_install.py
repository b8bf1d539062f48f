"""What is installed: PyTorch, ROCm's libraries, and whether they fit each other and the card."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_DOCTOR = (
    "`hy3d-rocm doctor` shows which PyTorch this is, what it was built for and which card it sees."
)
_NEVER = "This package never installs or replaces torch. " + _DOCTOR
_ROCM_LIBRARY = (
    r"lib(?:MIOpen|torch_hip|c10_hip|amd_smi|amd_comgr|rocm\w*|roc(?:blas|solver|rand|fft|sparse"
    r"|profiler[\w-]*|tracer64|tx64|thrust)|hip(?:blas(?:lt)?|blaslt|sparse(?:lt)?|fft|solver|rand"
    r"|rtc|file|_hcc)|hsa-[\w-]+|hsakmt|hc_am|mcwamp\w*|amdhip64|amdocl64|aotriton\w*|rccl)"
)
_SHARED = _ROCM_LIBRARY + r"(?:[.-][\w-]+)?\.so[.\d]*"
_MISSING = _SHARED + r"\W{1,4}(?:.{0,20}: )?cannot open shared object file"

RULES: tuple[Rule, ...] = (
    Rule(
        id="wrong-architecture",
        symptom="The program has no code for this AMD card.",
        cause="PyTorch, or a library in it, was built for other architectures than the card's, or"
        " HSA_OVERRIDE_GFX_VERSION names one that it does not have.",
        do="{wheels}",
        beside="Hide the processor's GPU: set HIP_VISIBLE_DEVICES to the number of the card",
        here=_DOCTOR,
        otherwise="With a second GPU (the processor's) hide it: HIP_VISIBLE_DEVICES=0.",
        linux="{override}",
        source="https://github.com/pytorch/pytorch/issues/164346",
        words=(
            "invalid device function",
            "no kernel image",
            "nobinaryforgpu",
            "invaliddevicefunction",
        ),
        patterns=(
            r"(?:HIP|ROCm) error: invalid device function",
            r"(?:HIP|ROCm) error: no kernel image is available",
            r"\bhipErrorNoBinaryForGpu\b",
            r"\bhipErrorInvalidDeviceFunction\b",
        ),
        follows=("integrated-gpu",),
    ),
    Rule(
        id="cuda-wrong-architecture",
        symptom="A CUDA wheel has no code for this card.",
        cause="The wheel of PyTorch, or of the extension that ran here (custom_rasterizer,"
        " SageAttention, bitsandbytes), was built for other compute capabilities than the card's."
        " Where other work of PyTorch ran on the card before, it is the extension.",
        do="Build the extension that ran here from its source for this card, or install the"
        " PyTorch wheel of a CUDA version that knows the card.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/7677",
        words=("no kernel image",),
        patterns=(r"CUDA error: no kernel image is available",),
        follows=("wrong-architecture",),
        confidence="likely",
    ),
    Rule(
        id="executable-stack",
        symptom="The system refuses a library of ROCm that asks for an executable stack.",
        cause="glibc 2.41 and newer no longer make the stack executable for a library that is"
        " loaded later; old PyTorch wheels' libraries are marked as wanting it, without need. The"
        " driver is not at fault.",
        do='find "$(python -c "import sysconfig as s; print(s.get_path(\'purelib\'))")/torch/lib"'
        " -name '*.so*' -exec patchelf --clear-execstack {} +",
        here=_DOCTOR,
        otherwise="A newer PyTorch for ROCm, whose libraries are not marked so. A library outside"
        " PyTorch: the same patchelf on that file.",
        source="https://github.com/easydiffusion/easydiffusion/issues/1921",
        words=("executable stack",),
        patterns=(r"cannot enable executable stack",),
    ),
    Rule(
        id="torchvision-mismatch",
        symptom="torchvision or torchaudio does not fit the installed torch.",
        cause="They are not there or were built for another torch, so their operators are missing:"
        " they came from another index, or one of them was updated alone. Neither the card nor"
        " xformers is at fault.",
        do="{wheels}",
        here=_NEVER,
        source="https://github.com/utensils/comfyui-nix/issues/46",
        words=("torchvision", "torchaudio"),
        patterns=(
            r"operator torchvision::\w+ does not exist",
            r"Couldn't load custom C\+\+ ops",
            r"torch(?:vision|audio)[\\/].{0,120}(?:undefined symbol|not load this library)",
            r"partially initialized module 'torchvision' has no attribute 'extension'",
            r"No module named '?torch(?:vision|audio)(?![\w.])",
            r"Could not run 'torchvision::\w+' with arguments from the 'CUDA'",
        ),
    ),
    Rule(
        id="rocm-library-missing",
        symptom="A library of ROCm is not found.",
        cause="PyTorch is linked to a ROCm library that is not installed (another version, or a"
        " wheel that leaves it out), or lies where the loader does not look. No package of the"
        " system with a like name helps.",
        do="{wheels}",
        here=_DOCTOR,
        otherwise="Or add the folder that has the file to LD_LIBRARY_PATH (wheels:"
        " site-packages/_rocm_sdk_core/lib and its lib/rocm_sysdeps/lib); a nightly of another day"
        " where one leaves a file out.",
        source="https://github.com/ROCm/TheRock/issues/4150",
        words=("cannot open shared object", "could not load dynamic library"),
        patterns=(_MISSING,),
        unless=(r"libtorch_hip|libc10_hip",),
        excused=("extension-rocm-version",),
    ),
    Rule(
        id="extension-rocm-version",
        symptom="A package beside PyTorch was built for another ROCm.",
        cause="PyTorch works here and sees the card; the package that the line is about asks for a"
        " library of another ROCm version (the number behind .so). PyTorch is to be left as it is.",
        do="python -m pip install --force-reinstall --no-deps PACKAGE (its build for this PyTorch's"
        " ROCm; where there is none, from source: --no-binary :all:)",
        here=_DOCTOR,
        otherwise="Or without that package, where the program goes on without it.",
        source="https://github.com/Looong01/pyg-rocm-build/issues/16",
        words=("cannot open shared object",),
        patterns=(_MISSING,),
        unless=(r"libtorch_hip|libc10_hip",),
        when=("torch works",),
        confidence="likely",
        rank=2,
    ),
    Rule(
        id="rocm-library-mismatch",
        symptom="Libraries of ROCm do not fit each other.",
        cause="A symbol that one library expects is not in the other: they come from different"
        " versions or builds.",
        do="unset LD_LIBRARY_PATH",
        here=_DOCTOR,
        otherwise="If it stays, all parts from one place: {wheels}",
        source="https://github.com/ROCm/pytorch/issues/2893",
        words=("undefined symbol", "version `"),
        patterns=(
            _SHARED + r": (?:undefined symbol|version `)",
            r"undefined symbol: _?(?:hip|roc|hsa|miopen|rsmi|amdsmi|amd_|__hip)\w+",
        ),
        unless=(r"librocdxg",),
    ),
    Rule(
        id="rocm-sdk-incomplete",
        symptom="ROCm's Python packages are incomplete or of several versions.",
        cause="rocm, rocm-sdk-core, rocm-sdk-libraries and torch have to be of one build; here one"
        " is missing, or does not know a library that another one asks for.",
        do="{wheels}",
        here=_DOCTOR,
        otherwise='For tools as rocm-sdk also: the same command with "rocm[libraries,devel]",'
        " then `rocm-sdk init`.",
        source="https://github.com/pytorch/pytorch/pull/188724",
        words=("rocm_sdk", "rocm-sdk", "keyerror: 'lib", "rocm_kpack"),
        patterns=(
            r"rocm-sdk init failed",
            r"'rocm-sdk' is not recognized",
            r"rocm-sdk: (?:command )?not found",
            r"No module named '?_?rocm_sdk\w*",
            r"KeyError: 'lib[\w-]+\.so[.\d]*'",
            r"Could not find module '[^']{0,250}_rocm_sdk",
            r"\brocm_kpack\.dll\b.{0,60}(?:missing|not found)",
        ),
    ),
    Rule(
        id="hip-runtime-missing",
        symptom="AMD's HIP run time can't be loaded (Windows).",
        cause="amdhip64 comes with the card's driver or with the ROCm wheels; here neither has it,"
        " or it does not start.",
        do="Install the current Adrenalin driver.",
        here=_DOCTOR,
        otherwise="Then: {wheels}",
        source="https://github.com/ROCm/TheRock/issues/1552",
        words=("amdhip64",),
        patterns=(
            r"Failed to load amdhip64",
            r"amdhip64\w*\.dll.{0,60}(?:not found|could not be found|Can't open|was not found)",
        ),
        confidence="likely",
    ),
    Rule(
        id="system-library-too-old",
        symptom="The system's C or C++ library is too old for a wheel.",
        cause="A wheel was built on a newer system than this one, or an environment (conda) brings"
        " an older libstdc++ than the system's.",
        do="conda install -c conda-forge libstdcxx-ng",
        otherwise="That is for conda. Else a newer release of the distribution, or a container with"
        " one.",
        source="https://github.com/Tencent-Hunyuan/Hunyuan3D-2/issues/59",
        words=("glibc", "cxxabi"),
        patterns=(r"version `(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found",),
    ),
    Rule(
        id="torch-no-wheel",
        symptom="There is no PyTorch wheel for this Python or system at that address.",
        cause="Wheels are made for some versions of Python each, and those of pytorch.org with ROCm"
        " for Linux only.",
        do="Make the environment anew with Python 3.12, and there: {wheels}",
        here=_NEVER,
        otherwise="`python --version` tells which Python it is; all of them are made for 3.12.",
        source="https://github.com/Nerogar/OneTrainer/issues/1381",
        words=(
            "distribution found for torch",
            "requirement torch",
            "no wheels with a matching",
            "supported wheel",
        ),
        patterns=(
            r"No matching distribution found for torch(?:vision|audio)?(?![\w.-])",
            r"satisfies the requirement torch(?:vision|audio)?(?![\w.-])",
            r"torch\S* has no wheels with a matching (?!platform)",
            r"torch\S*\.whl is not a supported wheel",
        ),
        follows=("pip-version-missing",),
    ),
    Rule(
        id="torch-no-wheel-system",
        symptom="That version of PyTorch lies at that address for another system only.",
        cause="It was built for Windows and not for Linux (or the other way round), or for a newer"
        " glibc than this system's. Python's version is not at fault.",
        do="{wheels}",
        here=_NEVER,
        otherwise="Or an older version that the address has for this system.",
        source="https://github.com/ROCm/TheRock/issues/5358",
        words=("matching platform",),
        patterns=(r"torch\S* has no wheels with a matching platform",),
    ),
    Rule(
        id="torch-distributed-missing",
        symptom="This PyTorch has no torch.distributed.",
        cause="ROCm's wheels for Windows leave it out (RCCL and gloo do not exist there), and a"
        " package calls it without asking whether it is there. The installation is whole and the"
        " card is not at fault; installing again does not help.",
        do="python -m pip install --upgrade PACKAGE (the one in the traceback)",
        here="This package does not need it.",
        otherwise="Newer versions of many packages ask torch.distributed.is_available() first. Else"
        " leave that package or node out, or take Linux.",
        source="https://github.com/ROCm/TheRock/issues/1179",
        words=("torch.distributed", "_c10d", "distributed package"),
        patterns=(
            r"module 'torch\.distributed[\w.]*' has no attribute",
            r"cannot import name '\w+' from 'torch\.distributed[.']",
            r"No module named '?torch\._C\._distributed_c10d",
            r"module 'torch\._C' has no attribute '_c10d",
            r"torch\.distributed (?:package )?is not available",
        ),
        unless=(r"'torch\.distributed' has no attribute 'deprecated'",),
        confidence="likely",
    ),
    Rule(
        id="torch-operation-missing",
        symptom="This build of PyTorch, or a package, has that operation not for AMD cards.",
        cause="The line itself says so. It is a part that ROCm's build leaves out or that asks for"
        " an NVIDIA card's generation; neither a driver nor an installation is missing.",
        do="Switch the option off that asks for it, or choose another mode, in the node or program"
        " in the traceback.",
        here="This package does not need it.",
        otherwise="A newer PyTorch for ROCm, if its release notes name the operation.",
        source="https://github.com/pytorch/torchtitan/issues/1523",
        words=("grouped", "supported", "aten::"),
        patterns=(
            r"_grouped_mm\b.{0,60}(?:not|only) (?:currently )?supported",
            r"\b(?:not|isn't|only) (?:yet |currently )?(?:supported|implemented|available)"
            r" (?:yet )?(?:on|for|with|in|by|under) (?:the )?(?:AMD|ROCm|HIP)\b",
            r"Could not run 'aten::\w+' with arguments from the 'CUDA' backend",
        ),
        unless=(
            r"only (?:\w+ )?\w+ (?:on|for|with|in|by|under) (?:the )?(?:AMD|ROCm|HIP)\b",
            r"fall(?:s|ing)? ?back|skipp|disabl|ignor|instead",
            r"_scaled_mm\b|PyTorch extensions",
        ),
        follows=("torchvision-mismatch", "cuda-extension-build", "fp8-matmul"),
        confidence="likely",
        optional=True,
    ),
    Rule(
        id="cuda-version-none",
        symptom="A package reads PyTorch's CUDA version, which is None in a build for AMD.",
        cause="torch.version.cuda is None with ROCm (torch.version.hip has the number), and the"
        " code in the traceback takes it for text. PyTorch and the card are not at fault.",
        do="python -m pip install --upgrade PACKAGE (the one in the traceback)",
        here="This package does not need it.",
        otherwise="For a node pack: update it, or report it to its author; where the part is for"
        " NVIDIA cards only, leave it out. The CPU build of PyTorch has None as well: {wheels}",
        source="https://github.com/kijai/ComfyUI-KJNodes/issues/519",
        words=("nonetype",),
        patterns=(
            r"torch\.version\.cuda\b.{0,250}(?:Type|Attribute|Value)Error: .{0,100}NoneType",
            r"\bin \w*cuda_?(?:version|ver)\w*\b.{0,250}Error: .{0,100}NoneType",
        ),
        follows=("torch-without-gpu", "torch-cuda-build"),
        confidence="likely",
    ),
    Rule(
        id="torch-broken",
        symptom="PyTorch is older than the code that uses it, or installed in part.",
        cause="A module or name inside torch is missing: code for a newer PyTorch, an installation"
        " that was interrupted or overwritten, or a folder of the name torch in the way. The log"
        " does not tell which.",
        do="{wheels}",
        here=_NEVER,
        source="https://github.com/ROCm/legacy-rocm-build/issues/4161",
        words=("no module named 'torch.", "from 'torch", "module 'torch"),
        patterns=(
            r"No module named 'torch\.\w+",
            r"cannot import name '\w+' from (?:partially initialized module )?'torch[.']",
            r"(?:partially initialized )?module 'torch(?:\._?\w+)*' has no attribute",
        ),
        unless=(
            r"'?torch\._six|torch\.distributed|_distributed_c10d|torch\.version'? has no",
            r"'torch\._C' has no attribute '_c(?:uda|10d|udnn)|'_CudaDeviceProperties'",
        ),
        follows=("mixed-torch-builds", "rocm-library-missing"),
        confidence="possible",
    ),
    Rule(
        id="mixed-torch-builds",
        symptom="A package was built for another build of PyTorch (CUDA or ROCm).",
        cause="A CUDA PyTorch has libtorch_cuda.so, a ROCm PyTorch libtorch_hip.so: torchvision,"
        " torchaudio or an extension came from another index than torch. Installing CUDA does not"
        " help.",
        do="{wheels}",
        here=_NEVER,
        otherwise="If it is another package that the traceback ends in: its version for ROCm, or"
        " without it.",
        source="https://github.com/pytorch/pytorch/issues/139410",
        words=("libtorch_cuda", "libc10_cuda", "libtorch_hip", "libc10_hip"),
        patterns=(r"lib(?:torch|c10)_(?:cuda|hip)\.so: cannot open shared object file",),
    ),
    Rule(
        id="torch-without-gpu",
        symptom="This PyTorch was built without GPU support.",
        cause="The CPU wheel is installed, mostly because a later `pip install` replaced the one"
        " that was there; or a node asks for CUDA on a machine that has none, as on a Mac.",
        do="{wheels}",
        here=_NEVER,
        otherwise="With DirectML start ComfyUI with --directml.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/2807",
        words=("torch not compiled with cuda", "cpu-only torch", "'torch._c' has no"),
        patterns=(
            r"Torch not compiled with CUDA enabled",
            r"Using CPU-only torch",
            r"'torch\._C' has no attribute '(?:_cuda_\w+|_CudaDeviceProperties)'",
        ),
        follows=("zluda-failed",),
    ),
    Rule(
        id="torch-cuda-build",
        symptom="This PyTorch is the one for NVIDIA cards.",
        cause="It looks for NVIDIA's driver. On an AMD machine a later `pip install` has replaced"
        " the ROCm build by PyPI's.",
        do="{wheels}",
        here=_NEVER,
        source="https://github.com/Comfy-Org/ComfyUI/issues/5122",
        words=(
            "nvidia driver on your",
            "no nvidia driver",
        ),
        patterns=(
            r"The NVIDIA driver on your system is too old",
            r"Found no NVIDIA driver on your system",
        ),
    ),
    Rule(
        id="torch-not-rocm",
        symptom="The installed PyTorch is not the one for ROCm.",
        cause="Its version has +cu or no +rocm, or its number for HIP is None: PyPI's build, for"
        " NVIDIA cards or the processor. It has nothing for an AMD card, whatever is installed"
        " beside it. Containers and `pip install -r requirements.txt` bring it.",
        do="{wheels}",
        here=_NEVER,
        otherwise="In the program's own environment. A distribution's own package may lack +rocm"
        " in its version; then torch.version.hip tells.",
        source="https://github.com/invoke-ai/InvokeAI/issues/7977",
        words=("torch", "version:"),
        patterns=(
            r"torch\.version\.hip\W{1,5}None\b",
            r"torch(?:\.__version__| version)\W{1,5}\d[\d.]+\+cu\d+",
            r"\bName: torch \W?Version: \d[\d.]+(?![\w.+])",
            r"(?:^|\bINFO )Torch \d[\d.]+\+cu\d+$",
        ),
        when=("amd", "no nvidia", "no zluda", "no by choice", "no torch works"),
        confidence="possible",
    ),
    Rule(
        id="extension-mismatch",
        symptom="A package's native part does not fit this PyTorch.",
        cause="It was compiled for another PyTorch, Python or ROCm than the installed one, so a"
        " function or a DLL that it asks for is not there. PyTorch itself is not at fault.",
        do="python -m pip install --force-reinstall --no-deps --no-binary :all: PACKAGE",
        windows="Install the package's wheel for exactly this PyTorch, ROCm and Python, or leave it"
        " out.",
        here=_DOCTOR,
        otherwise="That builds it here; or a wheel of it for exactly this PyTorch and ROCm; or"
        " without that package.",
        source="https://github.com/pytorch/pytorch/issues/136664",
        words=("dll load failed", "undefined symbol"),
        patterns=(
            r"DLL load failed while importing (?!_C\b|custom_raster|mesh_proc)"
            r"\w*(?:cuda|kernel|ops|_C\b|sage|flash|torch|spconv|nvdiff|cumesh|_ext\b)\w*",
            r"\.(?:so|pyd)[.\d]*: undefined symbol: _ZN?K?\w*(?:c10|at|torch)",
        ),
        unless=(r"custom_rasterizer|torchvision|torchaudio|xformers",),
        follows=("rocm-library-mismatch", "zluda-dll", "windows-hip-dll", "windows-blocked"),
        confidence="likely",
    ),
    Rule(
        id="windows-package-dll",
        symptom="The compiled part of a Python package does not load (Windows).",
        cause="The file of the package is there; a DLL that it needs is missing or has another"
        " version: mostly the Visual C++ run time, else a package for another Python or, where it"
        " is built on PyTorch, for another PyTorch. The log does not tell which.",
        do="winget install Microsoft.VCRedist.2015+.x64",
        otherwise="Then: python -m pip install --force-reinstall --no-deps PACKAGE.",
        source="https://github.com/pythongosssss/ComfyUI-WD14-Tagger/issues/74",
        words=("dll load failed",),
        patterns=(r"DLL load failed while importing (?!_C\b)\w+",),
        unless=(r"custom_raster|mesh_proc|WinError 4551|Application Control|hip_utils",),
        follows=(
            "extension-mismatch",
            "windows-torch-dll",
            "windows-hip-dll",
            "zluda-dll",
            "attention-package-missing",
            "sage-unsupported",
            "triton-no-driver",
        ),
        confidence="possible",
    ),
    Rule(
        id="library-mismatch",
        symptom="Two libraries do not fit each other (undefined symbol).",
        cause="The file in the line asks another library for a function that it has not got: they"
        " were built for different versions. The line names the file and the function, not which"
        " of the two is the wrong one.",
        do="python -m pip install --force-reinstall --no-deps PACKAGE (whose file is named)",
        here=_DOCTOR,
        otherwise="Without LD_LIBRARY_PATH, and with the package's version for exactly this"
        " PyTorch.",
        source="https://github.com/pytorch/pytorch/issues/136664",
        words=("undefined symbol",),
        patterns=(r"undefined symbol: \w",),
        follows=(
            "rocm-library-mismatch",
            "extension-mismatch",
            "torchvision-mismatch",
            "xformers-operator",
            "custom-rasterizer",
            "wsl-rocdxg",
            "bitsandbytes",
        ),
        confidence="likely",
    ),
    Rule(
        id="windows-hip-dll",
        symptom="PyTorch's ROCm part can't be loaded (Windows).",
        cause="A library of ROCm that torch_hip.dll or c10_hip.dll needs is missing or does not"
        " start: wheels of several builds, a wheel that leaves one out, or an old driver.",
        do="{wheels}",
        here="This package works above PyTorch and can't mend it.",
        otherwise="The current Adrenalin driver; no folder of another HIP SDK on PATH.",
        source="https://github.com/ROCm/TheRock/issues/1155",
        words=("error loading",),
        patterns=(
            r'Error loading "?\S.{0,200}[\\/](?:torch_hip|c10_hip|caffe2_hip\w*|\w*amdhip\w*)\.dll',
            r'Error loading "?\S.{0,200}[\\/]_rocm_sdk\w*[\\/](?!.*amdhip)',
        ),
        follows=("windows-blocked",),
        confidence="likely",
    ),
    Rule(
        id="windows-dll-mismatch",
        symptom="DLLs of PyTorch are of several versions (WinError 127).",
        cause="A DLL was found and lacks a function that another one asks for: torch was changed"
        " while files of another version (also ZLUDA's) lie in its folder.",
        do="Delete the program's folder venv and let it install itself again.",
        here="This package works above PyTorch and can't mend it.",
        source="https://github.com/dmMaze/BallonsTranslator/issues/14",
        words=("winerror 127",),
        patterns=(r"WinError 127\b.{0,200}torch[\\/]lib",),
        follows=("zluda-dll",),
        confidence="likely",
    ),
    Rule(
        id="windows-torch-dll",
        symptom="PyTorch can't load one of its own DLLs (Windows).",
        cause="The file that is named is there; one that it needs is missing, mostly the Visual C++"
        " run time with its OpenMP library (libomp140).",
        do="winget install Microsoft.VCRedist.2015+.x64",
        here="This package works above PyTorch and can't mend it.",
        otherwise="For fbgemm.dll and shm.dll also Visual Studio's C++ tools"
        " (libomp140.x86_64.dll); then torch anew.",
        source="https://github.com/ROCm/TheRock/issues/1167",
        words=(
            "importing _c",
            "error loading",
            "winerror 126",
        ),
        patterns=(
            r"DLL load failed while importing _C\b",
            r'Error loading "?\S.{0,200}[\\/]torch[\\/]lib[\\/][\w.-]+\.dll',
            r"WinError 126\b(?!.{0,40}Error loading).{0,200}\btorch[\\/]lib[\\/][\w.-]+\.dll",
        ),
        unless=(
            r"[\\/](?:cublas\w*|cusparse\w*|caffe2_nvrtc|nvrtc\w*|cudnn\w*|nvcuda)\.dll",
            r"[\\/](?:torch_hip|c10_hip|caffe2_hip\w*|\w*amdhip\w*)\.dll",
            r"WinError 127\b",
        ),
        follows=("windows-blocked",),
        confidence="likely",
    ),
    Rule(
        id="amdgpu-ids",
        symptom="amdgpu.ids is not found.",
        cause="A list with the names of cards; without it the card has a general name and all"
        " else works.",
        do="Nothing has to be done.",
        otherwise="The package libdrm-amdgpu-common has the file.",
        source="https://github.com/ROCm/pytorch/issues/984",
        words=("amdgpu.ids",),
        patterns=(r"amdgpu\.ids: No such file",),
        severity="notice",
    ),
)
