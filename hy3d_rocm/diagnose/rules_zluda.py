"""ZLUDA and DirectML: the other ways to an AMD card on Windows."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_ZLUDA = "https://github.com/patientx/ComfyUI-Zluda/issues/"
_ABOVE = "This package works above PyTorch and can't mend it."
_SDK = "https://www.amd.com/en/developer/resources/rocm-hub/hip-sdk.html"

RULES: tuple[Rule, ...] = (
    Rule(
        id="zluda-dll",
        symptom="PyTorch can't load a DLL behind which ZLUDA stands.",
        cause="cublas, cusparse, nvrtc and cudnn are ZLUDA's there; they need the HIP SDK and its"
        " PATH, and the files in torch\\lib have to be ZLUDA's. The file that is named is there: it"
        " is one of those that it needs, or (WinError 127) one of another version.",
        do="Install the HIP SDK that your ZLUDA asks for from " + _SDK + " and add %HIP_PATH%bin to"
        " PATH.",
        here=_ABOVE,
        otherwise="Run the patching script again, remove an old NVIDIA driver. A second Python that"
        " a node starts has to be started through ZLUDA, too.",
        source=_ZLUDA + "224",
        words=("cublas", "cusparse", "caffe2_nvrtc", "nvrtc", "cudnn64", "nvcuda", "zluda"),
        patterns=(
            r"Error loading \S.{0,200}\b(?:cublas\w*|cusparse\w*|caffe2_nvrtc|nvrtc\w*|cudnn\w*"
            r"|nvcuda)\.dll",
        ),
        follows=("hip-sdk-path", "hip-sdk-elsewhere", "card-too-old", "windows-blocked"),
        confidence="likely",
    ),
    Rule(
        id="zluda-failed",
        symptom="ZLUDA could not start.",
        cause="ZLUDA stands on AMD's HIP SDK and driver: the SDK is missing or of another version"
        " than this ZLUDA was made for, there are two of them, or it lists no card.",
        do="Leave exactly one HIP SDK installed, the one that your ZLUDA asks for (" + _SDK + "),"
        " and delete the folder .zluda.",
        here=_ABOVE,
        otherwise="Its bin folder on PATH; see whether hipInfo lists the card; the current"
        " Adrenalin driver.",
        source="https://github.com/CS1o/Stable-Diffusion-Info/issues/5",
        words=("zluda",),
        follows=(
            "hip-sdk-path",
            "hip-sdk-elsewhere",
            "hip-sdk-no-device",
            "card-too-old",
            "zluda-old",
        ),
        patterns=(
            r"Failed to load ZLUDA",
            r"ZLUDA failed to initialize",
            r"ERROR\W{1,20}Load ZLUDA: ",
            r"ZLUDA device failed to pass basic operation test",
        ),
    ),
    Rule(
        id="zluda-blocked",
        symptom="Files of ZLUDA are gone: mostly the virus scanner took them.",
        cause="zluda.exe or nccl.dll is not in ZLUDA's folder. Scanners take both for harmful,"
        " since they stand in for other files, and put them away right after they were unpacked."
        " The card and the HIP SDK are not at fault.",
        do='Add-MpPreference -ExclusionPath "C:\\PATH\\OF\\ComfyUI-Zluda" (PowerShell as'
        " administrator), then run the installer (install-n.bat) again.",
        here=_ABOVE,
        otherwise="Windows Security, Protection history, lists what was taken and gives it back.",
        source=_ZLUDA + "360",
        words=("zluda.exe", "nccl.dll"),
        patterns=(
            r"Can't detect zluda\.exe",
            r"\bnccl\.dll is missing",
            r"zluda\.exe['\"]? (?:is not recognized|was not found|could not be found)",
        ),
    ),
    Rule(
        id="zluda-old",
        symptom="The program is newer than the ZLUDA in its folder.",
        cause="It asks that ZLUDA for a function that came later: the program was updated, the"
        " ZLUDA was not.",
        do="Delete the folder .zluda (ComfyUI-Zluda: zluda) and start again, so that the ZLUDA that"
        " belongs to it is fetched.",
        here=_ABOVE,
        otherwise="ComfyUI-Zluda: run install-n.bat again. A virus scanner may have put the new"
        " files away.",
        source="https://github.com/lshqqytiger/stable-diffusion-webui-amdgpu-forge/issues/81",
        words=("zluda_get",),
        patterns=(r"function\W{1,6}zluda_get\w+\W{1,6}not found",),
        follows=("zluda-blocked",),
    ),
    Rule(
        id="zluda-no-device",
        symptom="ZLUDA was loaded and shows PyTorch no card.",
        cause="The HIP SDK below ZLUDA could not start on this card: driver, HIP SDK and ZLUDA are"
        " of versions that do not fit each other, or a variable hides the card. PyTorch is the"
        " right one.",
        do="Leave exactly one HIP SDK installed, the one that your ZLUDA asks for (" + _SDK + "),"
        " and delete the folder .zluda.",
        here=_ABOVE,
        otherwise="The current Adrenalin driver; unset HIP_VISIBLE_DEVICES and"
        " CUDA_VISIBLE_DEVICES; see whether hipInfo lists the card.",
        source="https://github.com/lshqqytiger/stable-diffusion-webui-amdgpu-forge/issues/97",
        words=("gpus are available", "no cuda-capable", "cudagetdevicecount", "cuda unknown"),
        patterns=(
            r"No CUDA GPUs are available",
            r"no CUDA-capable device is detected",
            r"Unexpected error from cudaGetDeviceCount",
            r"CUDA initialization: CUDA unknown error",
        ),
        when=("zluda loaded",),
        follows=("zluda-failed", "hip-sdk-no-device", "card-too-old"),
        confidence="likely",
    ),
    Rule(
        id="hip-sdk-path",
        symptom="HIP_PATH names the HIP SDK's bin folder in place of the SDK's.",
        cause="Programs put \\bin behind HIP_PATH, so they look in ...\\bin\\bin, which is not"
        " there.",
        do='setx HIP_PATH "C:\\Program Files\\AMD\\ROCm\\VERSION" (VERSION: the line\'s number)',
        here=_ABOVE,
        otherwise="Then open a new window.",
        source=_ZLUDA + "27",
        words=("bin\\bin", "bin\\\\bin"),
        patterns=(r"ROCm\\{1,2}[\d.]+\\{1,2}bin\\{1,2}bin\b",),
    ),
    Rule(
        id="hip-sdk-elsewhere",
        symptom="The HIP SDK is looked for in Python's folder.",
        cause="A folder of Python is taken for the HIP SDK's, since the SDK's own is not on PATH or"
        " stands behind it: its libraries (rocblas.dll) are not there.",
        do="set PATH=%HIP_PATH%bin;%PATH%",
        here=_ABOVE,
        otherwise="With the HIP SDK installed, and HIP_PATH its folder. Copying DLLs into Python's"
        " folder does not help.",
        source="https://github.com/lshqqytiger/stable-diffusion-webui-amdgpu/issues/656",
        words=("version=python", "find module"),
        patterns=(
            r"ROCm: version=Python\d+",
            r"Could not find module '[^']{1,200}\\Python\d*\\bin\\(?:roc|hip|amd)\w+\.dll",
        ),
    ),
    Rule(
        id="hip-sdk-no-device",
        symptom="ROCm or the HIP SDK lists no card.",
        cause="The HIP SDK (on Linux ROCm) started and found no card that it may use: the driver"
        " and the SDK are no pair, or this SDK does not know the card (7.1 did not list RX 6000"
        " cards that 6.4 does).",
        do="See whether `rocminfo` lists the card for your user.",
        instead=(("container", "{access}"),),
        windows="Install the current Adrenalin driver and a HIP SDK whose hipInfo lists the card"
        " (6.4"
        " where 7.1 does not): " + _SDK,
        here=_ABOVE,
        otherwise="Unset HIP_VISIBLE_DEVICES, if it is set.",
        source="https://github.com/ROCm/hip/issues/3899",
        words=("no agent was", "hip api error", "no amd gpus"),
        patterns=(
            r"ROCm: no agent was found",
            r"WARNING: No AMD GPUs specified",
            r"checkHipErrors\(\) HIP API error = 0100",
        ),
        confidence="likely",
    ),
    Rule(
        id="zluda-attention",
        symptom="Kernels of NVIDIA's attention run under ZLUDA.",
        cause="PyTorch's memory-efficient attention is compiled for NVIDIA cards; ZLUDA can't"
        " translate these kernels.",
        do="torch.backends.cuda.enable_mem_efficient_sdp(False)",
        here="This package leaves attention alone.",
        otherwise="enable_flash_sdp(False) as well; ComfyUI: --use-quad-cross-attention.",
        source="https://github.com/lllyasviel/FramePack/issues/58",
        words=("fmha_cutlass",),
        patterns=(r"FATAL: kernel `fmha_cutlass\w+` is for sm\d+",),
    ),
    Rule(
        id="directml-device-lost",
        symptom="DirectML lost the GPU.",
        cause="The driver took the device away: a kernel ran too long, or memory was used up.",
        do="{wheels}",
        here="This package works with ROCm and ZLUDA; DirectML gets PyTorch's plain operators.",
        otherwise="That is PyTorch for ROCm in place of DirectML. Else: smaller pictures, the"
        " current Adrenalin driver.",
        source="https://github.com/microsoft/DirectML/issues/550",
        words=("device instance has been suspended", "getdeviceremovedreason", "887a000"),
        patterns=(
            r"GPU device instance has been suspended",
            r"\b0?x?887A000[567]\b",
        ),
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="directml-unsupported",
        symptom="DirectML can't do what the node asks for.",
        cause="torch-directml lacks that operator, or the node takes every GPU for CUDA. It is not"
        " PyTorch's bug, although the text says so.",
        do="{wheels}",
        here="This package works with ROCm and ZLUDA; DirectML gets PyTorch's plain operators.",
        otherwise="That is PyTorch for ROCm in place of DirectML. Else: samplers without _gpu in"
        " their name, or without that node.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/6683",
        words=("privateuseone", "privateuse1", "directml", "'dml'"),
        patterns=(
            r"Device type privateuseone is not supported",
            r"DeviceType::PrivateUse1 INTERNAL ASSERT",
            r"(?:from|for|with) the '?(?:PrivateUse1|DML)'? (?:backend|device)",
            r"No module named '?torch_directml",
        ),
        follows=("directml-device-lost",),
        confidence="likely",
    ),
    Rule(
        id="zluda-compiles",
        symptom="ZLUDA compiles kernels.",
        cause="It does so at the first use of each; it is slow once.",
        do="Nothing has to be done.",
        source=_ZLUDA + "415",
        words=("compilation is in progress",),
        patterns=(r"Compilation is in progress\. Please wait",),
        severity="notice",
    ),
)
