"""Whether a program can reach the card: driver, permissions, containers, WSL."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_ROCM = "https://github.com/ROCm/legacy-rocm-build/issues/"
_DOCTOR = (
    "`hy3d-rocm doctor` shows which PyTorch this is, what it was built for and which card it sees."
)

HIDE_IT = "export HIP_VISIBLE_DEVICES=1"
HIDE_IT_WINDOWS = "set HIP_VISIBLE_DEVICES=1"
_WSL_DRIVER = (
    "In Windows install the Adrenalin driver that AMD lists for ROCm on WSL, in WSL the ROCm of"
    " that"
    " list, then in PowerShell: wsl --update"
)
_NOT_IN_WINDOWS = "Windows has no /dev/kfd; on Windows itself, outside the container: {wheels}"
_NO_GROUPS = "WSL has neither /dev/kfd nor its groups: usermod and modprobe do nothing there."

RULES: tuple[Rule, ...] = (
    Rule(
        id="wsl-no-adapter",
        symptom="ROCm in WSL finds no card that Windows would lend it.",
        cause="The Windows driver offers WSL no adapter that this ROCm knows: the driver and ROCm"
        " are"
        " no pair, or AMD does not support the card under WSL. " + _NO_GROUPS,
        do=_WSL_DRIVER,
        here=_DOCTOR,
        otherwise="Where the card is not on that list: ROCm's wheels on Windows itself.",
        source=_ROCM + "5900",
        words=("wddm adapters",),
        patterns=(r"No WDDM adapters found",),
    ),
    Rule(
        id="wsl-thunk",
        symptom="ROCm's part for WSL failed an assertion.",
        cause="ROCm's library for WSL asked the Windows driver about the card and got an answer"
        " that"
        " it does not know: a fault of that release, or a driver that does not belong to it.",
        do=_WSL_DRIVER,
        here=_DOCTOR,
        otherwise="A newer release of both, or the earlier one that worked.",
        source=_ROCM + "4460",
        words=("libhsakmt", "thunk_proxy"),
        patterns=(r"(?:wsl/libhsakmt|thunk_proxy)\S*:\d+: .{1,300}Assertion .{1,200} failed",),
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="wsl-rocdxg",
        symptom="librocdxg does not fit the installed ROCm (WSL).",
        cause="librocdxg stands between ROCm and the Windows driver under WSL, and comes by itself:"
        " this one lacks a function that this ROCm asks for, so the program crashes. The card is"
        " not"
        " at fault.",
        do="Install the librocdxg that belongs to your ROCm from"
        " https://github.com/ROCm/librocdxg/releases",
        here=_DOCTOR,
        source="https://github.com/ROCm/librocdxg/issues/4",
        words=("librocdxg",),
        patterns=(r"librocdxg\.so[.\d]*: undefined symbol",),
        rank=0,
    ),
    Rule(
        id="wsl-torch-runtime",
        symptom="PyTorch sees no GPU in WSL.",
        cause="Mostly the wheel's own HSA run time (torch/lib/libhsa-runtime64.so), which does not"
        " know WSL's way to the card and hides the system's, which does. " + _NO_GROUPS,
        do='Where `rocminfo` lists the card: rm "$(python -c "import sysconfig as s;'
        " print(s.get_path('purelib'))\")\""
        "/torch/lib/libhsa-runtime64.so*",
        here=_DOCTOR,
        otherwise="The program then takes the system's. Where `rocminfo` does not list the card: "
        + _WSL_DRIVER
        + ".",
        source=_ROCM + "3571",
        words=("microsoft-standard-wsl", "usecase="),
        patterns=(r"microsoft-standard-WSL", r"usecase=\S{0,20}\bwsl\b"),
        needs=("no-gpu-found", "no-cuda-gpu"),
        follows=("wsl-unsupported-gpu", "wsl-no-adapter", "wsl-thunk", "wsl-rocdxg"),
        confidence="likely",
    ),
    Rule(
        id="wsl-unsupported-gpu",
        symptom="ROCm in WSL does not support this card.",
        cause="Under WSL ROCm knows few cards only, and says so itself. It is neither memory nor"
        " permissions.",
        do="Use ROCm on Windows itself, outside WSL: {wheels}",
        here=_DOCTOR,
        otherwise="Linux on the machine itself.",
        source=_ROCM + "4435",
        words=("unsupported gpu",),
        patterns=(r"ROCR: unsupported GPU",),
    ),
    Rule(
        id="wsl-rocm-start",
        symptom="ROCm could not start in WSL.",
        cause="This ROCm, the Windows driver and WSL's kernel do not fit each other, or the card is"
        " not one that ROCm supports there. The words about resources mean neither memory nor"
        " permissions here.",
        do="wsl --update",
        here=_DOCTOR,
        otherwise="That is run in PowerShell. Then: Windows 11, the Adrenalin driver that AMD lists"
        " for WSL and exactly the ROCm version of that list; or ROCm's wheels on Windows itself.",
        source=_ROCM + "5106",
        words=("wsl environment",),
        patterns=(r"WSL environment detected",),
        needs=("hsa-out-of-resources", "no-gpu-found", "kfd-access", "kfd-missing"),
        within=12,
        follows=("wsl-unsupported-gpu", "wsl-no-adapter", "wsl-thunk", "wsl-rocdxg"),
        confidence="likely",
    ),
    Rule(
        id="hsa-out-of-resources",
        symptom="The HSA runtime could not start or allocate what it needs.",
        cause="At start: this user may not use /dev/kfd, or the driver is in a bad state. In the"
        " middle of work: GPU memory, queues or signals are used up.",
        do="{access}",
        wsl=_WSL_DRIVER,
        here="`hy3d-rocm doctor` shows whether the card answers and who holds its memory.",
        otherwise="Then log in again. If `rocminfo` works for your user, end the programs that use"
        " the card or restart the machine.",
        source=_ROCM + "4382",
        words=(
            "hsa_status_error",
            "hsa_status_error_out_of_resources",
        ),
        patterns=(
            r"\bHSA_STATUS_ERROR\b",
            r"HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        ),
        unless=(r"aborting with error ?: HSA_STATUS",),
        follows=(
            "wsl-unsupported-gpu",
            "wsl-rocm-start",
            "wsl-no-adapter",
            "kfd-access",
            "kfd-missing",
            "kfd-no-memory",
            "kfd-unsupported-gpu",
            "block-allocator",
            "hip-out-of-memory",
            "gpu-queues-exhausted",
        ),
        confidence="likely",
    ),
    Rule(
        id="no-gpu-found",
        symptom="PyTorch sees no GPU.",
        cause="The driver is not loaded, this user or container may not use it, or"
        " HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES hides the card.",
        do="{access}",
        wsl=_WSL_DRIVER,
        windows="Install the current Adrenalin driver.",
        here=_DOCTOR,
        otherwise="Unset HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES, or set"
        " them to a number that exists.",
        linux="After the command log in again; see whether `rocminfo` lists the card; in Docker"
        " --device /dev/kfd --device /dev/dri.",
        source="https://github.com/ROCm/hip/issues/3799",
        words=(
            "gpus are available",
            "hiperrornodevice",
            "no rocm-capable",
            "getdevicecount",
            "rock module",
            "torch reports gpu",
        ),
        patterns=(
            r"No HIP GPUs are available",
            r"\bhipErrorNoDevice\b",
            r"no ROCm-capable device is detected",
            r"Unexpected error from hipGetDeviceCount",
            r"ROCk module is NOT loaded",
            r"Torch reports GPU not available",
        ),
        follows=(
            "wsl-torch-runtime",
            "wsl-no-adapter",
            "hip-sdk-no-device",
            "kfd-access",
            "kfd-missing",
            "kfd-unsupported-gpu",
            "torch-cuda-build",
            "rocm-library-missing",
            "gpu-init-failed",
            "gpu-init-memory",
            "hip-runtime-missing",
        ),
        confidence="likely",
    ),
    Rule(
        id="no-cuda-gpu",
        symptom="A PyTorch that is not the one for ROCm sees no GPU.",
        cause="These are the words of a CUDA build (ROCm's says HIP). On an AMD card that is PyPI's"
        " PyTorch in place of ROCm's, or ZLUDA that did not start or sees no card, also since"
        " HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES hides it.",
        do='python -c "import torch; print(torch.__version__, torch.version.hip)"',
        here=_DOCTOR,
        otherwise="Without a number for HIP and without ZLUDA: {wheels}. With ZLUDA: start through"
        " it, unset HIP_VISIBLE_DEVICES, the HIP SDK that it asks for. On an NVIDIA card: its"
        " driver.",
        source="https://github.com/lllyasviel/Fooocus/issues/1681",
        words=("gpus are available", "no cuda-capable", "cudagetdevicecount", "cuda unknown"),
        patterns=(
            r"No CUDA GPUs are available",
            r"no CUDA-capable device is detected",
            r"Unexpected error from cudaGetDeviceCount",
            r"CUDA initialization: CUDA unknown error",
        ),
        follows=(
            "no-gpu-found",
            "hip-sdk-no-device",
            "torch-cuda-build",
            "torch-not-rocm",
            "zluda-failed",
            "card-too-old",
        ),
        excused=("zluda-no-device",),
        confidence="likely",
    ),
    Rule(
        id="runs-on-cpu",
        symptom="The program computes on the processor: it sees no card.",
        cause="It says so at its start, or PyTorch answers that no GPU is available. The driver is"
        " not loaded, this user or container may not use it, a variable hides the card, or this"
        " PyTorch is not the one for ROCm (no +rocm in its version).",
        do="{access}",
        wsl=_WSL_DRIVER,
        windows="{wheels}",
        here=_DOCTOR,
        otherwise='`python -c "import torch; print(torch.__version__)"` in the program\'s own'
        " environment (or container) tells which PyTorch it is. Unset HIP_VISIBLE_DEVICES and"
        " ROCR_VISIBLE_DEVICES.",
        source="https://github.com/invoke-ai/InvokeAI/issues/9490",
        words=("device: cpu", "available"),
        patterns=(
            r"Using torch device: CPU\b",
            r"^Device: cpu$",
            r"\b(?:CUDA|GPU|HIP|ROCm)[\w ()/]{0,12} available\W{1,4}False\b",
            r"torch\.cuda\.is_available\(\)\W{1,6}False\b",
        ),
        when=("amd", "no by choice", "no torch works"),
        follows=(
            "no-gpu-found",
            "no-cuda-gpu",
            "torch-cuda-build",
            "torch-not-rocm",
            "torch-without-gpu",
            "kfd-access",
            "kfd-missing",
            "hip-sdk-no-device",
            "rocm-library-missing",
            "wsl-torch-runtime",
        ),
        confidence="likely",
    ),
    Rule(
        id="integrated-gpu-only",
        symptom="The HIP SDK lists only the processor's GPU, not the card.",
        cause="gfx1036 is the small GPU inside a desktop processor. Where a card is in the machine,"
        " this HIP SDK or driver does not know it, and the program takes what is listed.",
        do="rocminfo | grep -i gfx",
        windows="Install the current Adrenalin driver and a HIP SDK whose hipInfo lists the card.",
        here=_DOCTOR,
        otherwise="Or PyTorch for ROCm in place of ZLUDA, and the processor's GPU switched off in"
        " the Device Manager or the BIOS. Without a card there is nothing here that ROCm supports.",
        source="https://github.com/LykosAI/StabilityMatrix/issues/1290",
        words=("agents=",),
        patterns=(r"\bagents=\['gfx1036'\]",),
        confidence="likely",
    ),
    Rule(
        id="integrated-gpu",
        symptom="The program took the processor's GPU in place of the card.",
        cause="The GPU in the processor is listed first or beside the card, and no library has code"
        " for it. The card itself, its driver and PyTorch are not at fault.",
        do=HIDE_IT,
        windows=HIDE_IT_WINDOWS,
        here=_DOCTOR,
        otherwise="The number is that of the card: 1 where the processor's GPU is listed first,"
        " else"
        " 0. Or switch that GPU off in the BIOS, in Windows in the Device Manager. No files for"
        " rocBLAS are needed for it.",
        source="https://github.com/CS1o/Stable-Diffusion-Info/issues/6",
        words=("gfx1036", "igpu"),
        patterns=(
            r"(?<!lazy_)\bgfx1036\b",
            r"\biGPU at device \d.{0,20}\bdGPU at device \d",
        ),
        unless=(r"gfx\w+\W{1,6}gfx\w+\W{1,6}gfx",),
        needs=("rocblas-architecture", "wrong-architecture", "hip-invalid-image"),
        within=5,
        confidence="likely",
    ),
    Rule(
        id="card-too-old",
        symptom="The card is too old for ROCm and ZLUDA.",
        cause="The RX 400 and 500 cards (Polaris, gfx803) are left out of today's ROCm, HIP SDK and"
        " ZLUDA, which begin with RDNA. No patch, driver or setting mends that.",
        do="Take a program that computes with Vulkan.",
        windows="Start ComfyUI with --directml",
        here="This package works with ROCm and ZLUDA.",
        linux="On Linux there are old ROCm versions that were built again for gfx803:"
        " https://github.com/robertrosenbusch/gfx803_rocm.",
        source="https://github.com/vosen/ZLUDA/issues/371",
        words=("rx 4", "rx 5", "rx4", "rx5"),
        patterns=(r"\bRX ?(?:4[678]0|5[4-9]0)\b",),
        needs=("zluda-cublas", "zluda-failed", "zluda-dll"),
        confidence="likely",
    ),
    Rule(
        id="torch-refuses-gpu",
        symptom="The program's start says that PyTorch can't use a GPU.",
        cause="The web UI was not told to use an AMD back end, or its PyTorch is the build for"
        " NVIDIA or for the CPU. Skipping the test only moves the error.",
        do="{wheels}",
        windows="Add --use-zluda to COMMANDLINE_ARGS in webui-user.bat (AMD's forks of the web UIs)"
        " and delete the folder venv.",
        here=_DOCTOR,
        otherwise="Run it in the program's own environment. --skip-torch-cuda-test does not help.",
        source="https://github.com/lshqqytiger/stable-diffusion-webui-amdgpu/issues/480",
        words=("not able to use gpu", "does not support the current version of torch"),
        patterns=(
            r"Torch is not able to use GPU",
            r"does not support the current version of Torch/CUDA",
        ),
        follows=("zluda-failed", "torch-cuda-build", "no-gpu-found", "no-cuda-gpu"),
        confidence="likely",
    ),
    Rule(
        id="hsa-kernel-mismatch",
        symptom="ROCm and the kernel's driver do not fit each other.",
        cause="The runtime is newer than the kernel's amdgpu driver knows, so it leaves the GPU"
        " out.",
        do="sudo apt install linux-generic-hwe-24.04",
        otherwise="That is for Ubuntu 24.04. Any newer kernel, or AMD's amdgpu-dkms; or an older"
        " ROCm.",
        source=_ROCM + "1583",
        words=("kernel and userspace",),
        patterns=(r"Incompatible kernel and userspace",),
    ),
    Rule(
        id="container-for-nvidia",
        symptom="Docker was asked for NVIDIA's run time.",
        cause="'--gpus' and 'driver: nvidia' are for NVIDIA cards; an AMD card is given to a"
        " container by its devices.",
        do="docker run --device /dev/kfd --device /dev/dri --group-add video --security-opt"
        " seccomp=unconfined IMAGE",
        wsl="Start the container as AMD's guide for WSL does (with /dev/dxg):"
        " https://rocm.docs.amd.com/projects/radeon/en/latest/docs/install/wsl/install-pytorch.html",
        otherwise="In docker-compose.yml: devices /dev/kfd and /dev/dri in place of"
        " deploy.resources; and an image with ROCm.",
        source="https://github.com/av/harbor/issues/173",
        words=("device driver", "nvidia-container", "unknown or invalid runtime"),
        patterns=(
            r"could not select device driver .{0,40}gpu",
            r"nvidia-container-cli: ",
            r"unknown or invalid runtime name: nvidia",
        ),
    ),
    Rule(
        id="kfd-no-memory",
        symptom="The compute driver gave the process no resources (/dev/kfd: ENOMEM).",
        cause="The driver itself failed while it was opened: it is no matter of groups.",
        do="sudo dmesg | grep -i -e kfd -e amdgpu",
        here=_DOCTOR,
        otherwise="Restart the machine; another kernel.",
        source=_ROCM + "1088",
        words=("/dev/kfd",),
        patterns=(
            r'"/dev/kfd".{0,40}= -1 ENOMEM',
            r"Unable to open /dev/kfd.{0,30}Cannot allocate memory",
        ),
        follows=("kfd-unsupported-gpu",),
        confidence="likely",
    ),
    Rule(
        id="kfd-missing",
        symptom="The host has no /dev/kfd.",
        cause="The amdgpu driver is not loaded on the machine below the container (or the machine"
        " is a WSL, which has no such device).",
        do="sudo modprobe amdgpu",
        windows=_NOT_IN_WINDOWS,
        wsl=_WSL_DRIVER,
        here=_DOCTOR,
        otherwise="On the host, not in the container. In WSL: ROCm on Windows or on Linux itself.",
        source="https://github.com/l1na-forever/stable-diffusion-rocm-docker/issues/8",
        words=("/dev/kfd",),
        patterns=(r"/dev/kfd\b.{0,40}No such file",),
        confidence="likely",
    ),
    Rule(
        id="kfd-access",
        symptom="The compute driver's device /dev/kfd can't be opened.",
        cause="The user is not in its group, the container was not given it, or the driver"
        " refuses.",
        do="{access}",
        windows=_NOT_IN_WINDOWS,
        wsl=_WSL_DRIVER,
        here=_DOCTOR,
        otherwise="Then log in again; in Docker --device /dev/kfd --device /dev/dri. If you are in"
        " the groups, look for 'kfd' in `dmesg`.",
        linux="A container without root loses the groups: podman --group-add keep-groups.",
        source=_ROCM + "1211",
        words=(
            "not member of",
            "/dev/dri/",
            "/dev/kfd",
        ),
        patterns=(
            r"is not (?:a )?member of \W?(?:render|video|nogroup)\W? group",
            r"/dev/dri/\S+.{0,40}(?:Permission|permission) denied",
            r"Unable to open /dev/kfd(?!.{0,30}Cannot allocate)",
            r"/dev/kfd\b.{0,40}(?:Permission denied|Operation not permitted)",
            r'openat?\(.{0,20}"/dev/kfd".{0,40}= -1 (?!ENOMEM)',
        ),
        follows=(
            "kfd-missing",
            "kfd-no-memory",
            "kfd-unsupported-gpu",
        ),
        confidence="likely",
    ),
    Rule(
        id="kfd-unsupported-gpu",
        symptom="The compute driver does not support this card.",
        cause="The kernel's compute driver (kfd) says so itself: the card, or the way it is"
        " connected, is not one that ROCm can use.",
        do="Put the card into a slot that the processor drives itself (PCIe atomics).",
        here=_DOCTOR,
        otherwise="A newer kernel, another card, or another back end (Vulkan, DirectML).",
        source=_ROCM + "2232",
        words=("in kfd", "kfd:"),
        patterns=(
            r"not supported in kfd",
            r"kfd: .{0,60}skipped device .{0,60}PCI rejects atomics",
        ),
    ),
)
