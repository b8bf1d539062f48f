"""What is installed: PyTorch, ROCm, ZLUDA, permissions."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_ROCM = "https://github.com/ROCm/legacy-rocm-build/issues/"
_ZLUDA = "https://github.com/patientx/ComfyUI-Zluda/issues/"
_DOCTOR = (
    "`hy3d-rocm doctor` shows which PyTorch this is, what it was built for and which card it sees."
)
_ROCM_LIBRARY = r"lib(?:MIOpen|torch_hip|amd_smi|rocm_smi64|rocblas|hipblas(?:lt)?|hipsparse"
_ROCM_LIBRARY += r"|hsa-runtime64|amdhip64|rccl|hipfft"
_ROCM_LIBRARY += r"|rocsolver|rocrand|hiprand|amd_comgr|roctx64|hiprtc)\.so[.\d]*"

RULES: tuple[Rule, ...] = (
    Rule(
        id="wrong-architecture",
        symptom="The program has no code for this AMD card.",
        cause="PyTorch, or a library in it, was built for other architectures than the card's, or"
        " HSA_OVERRIDE_GFX_VERSION names one that it does not have.",
        here=_DOCTOR,
        otherwise="Install PyTorch for your architecture (AMD's wheels by gfx number), or where"
        " only a relative is supported, set HSA_OVERRIDE_GFX_VERSION to it (10.3.0 for RDNA2,"
        " 11.0.0 for RDNA3).",
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
    ),
    Rule(
        id="rocblas-architecture",
        symptom="rocBLAS has no kernels for this card.",
        cause="rocBLAS reads its matrix kernels from files, one set an architecture, and there is"
        " none for this card in this ROCm or HIP SDK.",
        here=_DOCTOR + " Convolutions can go by Triton instead, matrix products of the model"
        " can't.",
        otherwise="A ROCm (or HIP SDK) that supports the card; on Windows also the rocBLAS files"
        " that the community builds for it.",
        source="https://github.com/ROCm/rocBLAS/issues/1339",
        words=("tensilelibrary", "tensile host"),
        patterns=(
            r"(?:Cannot read|Could not load) \S.{0,160}TensileLibrary",
            r"Could not initialize Tensile host",
        ),
    ),
    Rule(
        id="cuda-wrong-architecture",
        symptom="PyTorch has no code for this NVIDIA card.",
        cause="Its wheel was built for other compute capabilities than the card's.",
        here="Nothing of this package is at fault.",
        otherwise="Install the PyTorch wheel for a CUDA version that knows the card.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/7677",
        words=("no kernel image",),
        patterns=(r"CUDA error: no kernel image is available",),
    ),
    Rule(
        id="rocm-library-missing",
        symptom="A library of ROCm is not found.",
        cause="PyTorch is linked to a ROCm library that is not installed, or lies where the"
        " loader does not look.",
        here=_DOCTOR,
        otherwise="Install PyTorch and ROCm of one version, or add the folder of the library to"
        " LD_LIBRARY_PATH.",
        source="https://github.com/pccr10001/comfyui-gfx1151-fa/issues/1",
        words=("cannot open shared object", "could not load dynamic library"),
        patterns=(_ROCM_LIBRARY + r"\W{1,4}(?:.{0,20}: )?cannot open shared object file",),
    ),
    Rule(
        id="rocm-library-mismatch",
        symptom="Libraries of ROCm do not fit each other.",
        cause="A symbol that one library expects is not in the other: they come from different"
        " versions or builds.",
        here=_DOCTOR,
        otherwise="Remove LD_LIBRARY_PATH entries to other ROCm versions; install all parts from"
        " one place.",
        source="https://github.com/ROCm/pytorch/issues/2893",
        words=("undefined symbol", "version `"),
        patterns=(_ROCM_LIBRARY + r": (?:undefined symbol|version `)",),
    ),
    Rule(
        id="mixed-torch-builds",
        symptom="A package was built for the CUDA build of PyTorch.",
        cause="It looks for libtorch_cuda.so, and a ROCm PyTorch has libtorch_hip.so: torchvision,"
        " torchaudio or an extension came from another index than torch.",
        here=_DOCTOR,
        otherwise="Install torch, torchvision and torchaudio together from the ROCm index.",
        source="https://github.com/pytorch/pytorch/issues/139410",
        words=("libtorch_cuda", "libc10_cuda", "libtorch_hip", "libc10_hip"),
        patterns=(r"lib(?:torch|c10)_(?:cuda|hip)\.so: cannot open shared object file",),
    ),
    Rule(
        id="torch-without-gpu",
        symptom="This PyTorch was built without GPU support.",
        cause="The CPU wheel is installed, mostly because a later `pip install` replaced the one"
        " that was there; or a node asks for CUDA on a machine that has none, as on a Mac.",
        here="This package never installs or replaces torch. " + _DOCTOR,
        otherwise="Uninstall torch, torchvision and torchaudio and install them from the ROCm"
        " index.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/2807",
        words=("torch not compiled with cuda",),
        patterns=(r"Torch not compiled with CUDA enabled",),
    ),
    Rule(
        id="torch-cuda-build",
        symptom="This PyTorch is the one for NVIDIA cards.",
        cause="It looks for NVIDIA's driver. On an AMD machine a later `pip install` has replaced"
        " the ROCm build by PyPI's.",
        here="This package never installs or replaces torch. " + _DOCTOR,
        otherwise="Uninstall torch, torchvision and torchaudio and install them from the ROCm"
        " index.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/5122",
        words=("no nvidia driver",),
        patterns=(r"Found no NVIDIA driver on your system",),
    ),
    Rule(
        id="no-gpu-found",
        symptom="PyTorch sees no GPU.",
        cause="The driver is not loaded, this user or container may not use it, or"
        " HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES hides the card.",
        here=_DOCTOR,
        otherwise="Unset these variables, or set them to a number that exists; on Linux see whether"
        " `rocminfo` lists the card and whether you are in the groups render and video.",
        source="https://github.com/ROCm/hip/issues/3799",
        words=("gpus are available", "hiperrornodevice", "no rocm-capable", "no agent was"),
        patterns=(
            r"No (?:HIP|CUDA) GPUs are available",
            r"\bhipErrorNoDevice\b",
            r"no ROCm-capable device is detected",
            r"ROCm: no agent was found",
        ),
        follows=("kfd-access", "kfd-unsupported-gpu", "torch-cuda-build", "rocm-library-missing"),
        confidence="likely",
    ),
    Rule(
        id="kfd-access",
        symptom="The compute driver's device /dev/kfd can't be opened.",
        cause="The user is not in its group, the container was not given it, or the driver"
        " refuses.",
        here=_DOCTOR,
        otherwise="`sudo usermod -aG render,video $USER` and log in again; in Docker --device"
        " /dev/kfd --device /dev/dri. If you are in the groups, look for 'kfd' in `dmesg`.",
        source=_ROCM + "1211",
        words=("/dev/kfd",),
        patterns=(
            r"Unable to open /dev/kfd",
            r"/dev/kfd\b.{0,40}(?:Permission denied|Operation not permitted|No such file)",
            r'openat?\(.{0,20}"/dev/kfd".{0,40}= -1 ',
        ),
        follows=("kfd-unsupported-gpu",),
        confidence="likely",
    ),
    Rule(
        id="kfd-unsupported-gpu",
        symptom="The compute driver does not support this card.",
        cause="The kernel's compute driver (kfd) says so itself: the card, or the way it is"
        " connected, is not one that ROCm can use.",
        here=_DOCTOR,
        otherwise="A newer kernel, another card, or another back end (Vulkan, DirectML).",
        source=_ROCM + "2232",
        words=("in kfd", "kfd:"),
        patterns=(
            r"not supported in kfd",
            r"kfd: .{0,60}skipped device .{0,60}PCI rejects atomics",
        ),
    ),
    Rule(
        id="zluda-dll",
        symptom="PyTorch can't load a DLL behind which ZLUDA stands.",
        cause="cublas, cusparse, nvrtc and cudnn are ZLUDA's there; they need the HIP SDK and its"
        " PATH, and the files in torch\\lib have to be ZLUDA's.",
        here="This package works above PyTorch and can't mend it.",
        otherwise="Install the HIP SDK that your ZLUDA asks for, put its bin folder on PATH, run"
        " the patching script again, remove an old NVIDIA driver.",
        source=_ZLUDA + "224",
        words=("cublas", "cusparse", "caffe2_nvrtc", "nvrtc", "cudnn64", "nvcuda", "zluda"),
        patterns=(
            r"Error loading \S.{0,200}\b(?:cublas\w*|cusparse\w*|caffe2_nvrtc|nvrtc\w*|cudnn\w*"
            r"|nvcuda)\.dll",
        ),
        confidence="likely",
    ),
    Rule(
        id="windows-torch-dll",
        symptom="PyTorch can't load one of its own DLLs (Windows).",
        cause="A DLL that it needs is missing: the Visual C++ run time, a part of ROCm, or the"
        " card's driver is too old for this build.",
        here="This package works above PyTorch and can't mend it.",
        otherwise="Install the current Visual C++ redistributable and the current Adrenalin"
        " driver, then torch and rocm of one version anew.",
        source="https://github.com/ROCm/TheRock/issues/1309",
        words=("error loading",),
        patterns=(r'Error loading "?\S.{0,200}[\\/]torch[\\/]lib[\\/][\w.-]+\.dll',),
        unless=(r"[\\/](?:cublas\w*|cusparse\w*|caffe2_nvrtc|nvrtc\w*|cudnn\w*|nvcuda)\.dll",),
        confidence="likely",
    ),
    Rule(
        id="zluda-failed",
        symptom="ZLUDA could not start.",
        cause="ZLUDA stands on AMD's HIP SDK and driver: the SDK is missing or of another version"
        " than this ZLUDA was made for, or it lists no card.",
        here="This package works above PyTorch and can't mend it.",
        otherwise="Install the HIP SDK that your ZLUDA asks for (only one of them), put its bin"
        " folder on PATH, see whether hipInfo lists the card, and delete the .zluda folder.",
        source="https://github.com/CS1o/Stable-Diffusion-Info/issues/5",
        words=("zluda",),
        patterns=(
            r"Failed to load ZLUDA",
            r"ZLUDA failed to initialize",
            r"ERROR\W{1,20}Load ZLUDA: ",
            r"ZLUDA device failed to pass basic operation test",
        ),
    ),
    Rule(
        id="zluda-attention",
        symptom="Kernels of NVIDIA's attention run under ZLUDA.",
        cause="PyTorch's memory-efficient attention is compiled for NVIDIA cards; ZLUDA can't"
        " translate these kernels.",
        here="This package leaves attention alone.",
        otherwise="torch.backends.cuda.enable_mem_efficient_sdp(False) and"
        " enable_flash_sdp(False).",
        source="https://github.com/lllyasviel/FramePack/issues/58",
        words=("fmha_cutlass",),
        patterns=(r"FATAL: kernel `fmha_cutlass\w+` is for sm\d+",),
    ),
    Rule(
        id="amdgpu-ids",
        symptom="amdgpu.ids is not found.",
        cause="A list with the names of cards; without it the card has a general name and all"
        " else works.",
        here="Nothing has to be done.",
        otherwise="The package libdrm-amdgpu-common has the file.",
        source="https://github.com/ROCm/pytorch/issues/984",
        words=("amdgpu.ids",),
        patterns=(r"amdgpu\.ids: No such file",),
        severity="notice",
    ),
)
