"""The kernel's driver and firmware: what `dmesg` and the HSA runtime say of the card."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_THEROCK = "https://github.com/ROCm/TheRock/issues/"
_ROCM = "https://github.com/ROCm/legacy-rocm-build/issues/"
_DOCTOR = "`hy3d-rocm doctor` names kernels and firmware with known faults."
_NEWER = "Install the newest kernel and linux-firmware of your distribution and reboot."
# TheRock#2991: the room for saved waves was too small for this card's registers; mended since
# ROCm 7.2 and in newer kernels. AMD advises against the switch elsewhere.
_CWSR = (
    "Update ROCm to 7.2 or newer and the kernel to 6.18 or newer; until then add"
    " amdgpu.cwsr_enable=0 to the kernel's command line and reboot."
)
_WSL = "In Windows install the Adrenalin driver that AMD lists for ROCm on WSL, then: wsl --update"
_LONG_KERNELS = (
    "Under protect() no convolution of MIOpen is started that was not proven for its shape, and the"
    " decode of this package goes in parts: both avoid kernels that run for seconds."
)

RULES: tuple[Rule, ...] = (
    Rule(
        id="gpu-lost-from-bus",
        symptom="The card vanished from the PCIe bus.",
        cause="Reading its registers gave nothing any more. It is the connection or the power: a"
        " riser, splitter, OCuLink or Thunderbolt cable, power saving of the link, or a card that"
        " did not come back from a reset.",
        do="Add pcie_aspm=off amdgpu.runpm=0 to the kernel's command line and switch the machine"
        " off and on.",
        here="Nothing that runs above the driver can mend it.",
        otherwise="The card in a full slot without a riser, its own power cables.",
        source=_THEROCK + "8232",
        words=("lost from bus", "device inaccessible", "device not accessible", "off the bus"),
        patterns=(
            r"amdgpu.{0,40}device lost from bus",
            r"D3cold to D0, device inaccessible",
            r"GPU has fallen off the bus",
        ),
        rank=0,
    ),
    Rule(
        id="gpu-init-memory",
        symptom="The driver could not start the card: no address space for its memory (error -12).",
        cause="The BIOS has not given the card's large memory window an address. The card is not"
        " there for any program.",
        do="In the BIOS switch on 'Above 4G Decoding' and 'Resizable BAR', switch CSM off.",
        otherwise="On servers a larger MMIO size; in a virtual machine a larger 64-bit window.",
        source=_ROCM + "3712",
        words=("failed with error -12",),
        patterns=(r"amdgpu: probe of \S+ failed with error -12",),
        rank=0,
    ),
    Rule(
        id="gpu-init-failed",
        symptom="The driver could not start the card.",
        cause="The initialisation ended with an error: firmware that is missing or does not load"
        " (PSP, a virtual machine that was given the card), or a card that is in a bad state. The"
        " lines above it name the part that failed.",
        do="Switch the machine off and on (not only a restart), then: sudo dmesg | grep -i amdgpu",
        otherwise="A newer linux-firmware. In a virtual machine: the card's own vBIOS as a file,"
        " and a host that does not use the card.",
        source="https://github.com/isc30/ryzen-gpu-passthrough-proxmox/issues/68",
        words=("gpu init", "hw_init", "probe of", "firmware", "ip_init"),
        patterns=(
            r"amdgpu.{0,40}Fatal error during GPU init",
            r"hw_init of IP block <\w+> failed",
            r"amdgpu: probe of \S+ failed with error -(?!12\b)\d",
            r"amdgpu.{0,60}(?:firmware loading failed|Failed to load (?:toc|firmware)"
            r"|failed to load ucode)",
            r"Direct firmware load for amdgpu/\S+ failed with error",
            r"amdgpu_device_ip_init failed",
        ),
        follows=("gpu-init-memory",),
        rank=0,
    ),
    Rule(
        id="dkms-build",
        symptom="AMD's driver package (amdgpu-dkms) does not build for this kernel.",
        cause="The package knows kernels up to its own release only, or the kernel's headers are"
        " missing. The kernel's own amdgpu driver serves ROCm as well.",
        do="sudo amdgpu-install --usecase=rocm --no-dkms",
        otherwise="A newer amdgpu-dkms, or the kernel that it names; in a container no driver"
        " belongs at all.",
        source="https://github.com/invoke-ai/InvokeAI/issues/8518",
        words=("module build", "amdgpu-dkms", "dkms"),
        patterns=(
            r"Bad return status for module build on kernel",
            r"error processing package amdgpu-dkms",
            r"dkms: .{0,60}amdgpu.{0,60}(?:failed|skipped)",
        ),
        confidence="likely",
    ),
    Rule(
        id="gpu-queues-exhausted",
        symptom="The driver has no queue of the GPU left to give.",
        cause="Queues of the copy engines (SDMA) or of compute are few, and earlier programs, also"
        " ones that crashed, hold them; or the scheduler's firmware no longer answers.",
        do="export HSA_ENABLE_SDMA=0",
        otherwise="End other programs on the card (`sudo fuser -v /dev/kfd` lists them); restart"
        " the machine.",
        source=_ROCM + "5151",
        words=("queue",),
        patterns=(
            r"No more SDMA queue to allocate",
            r"DQM create queue (?:type \d )?failed",
            r"Queue create failed at hsaKmtCreateQueue",
        ),
        follows=("gpu-reset",),
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="gpu-hang",
        symptom="The GPU hung.",
        cause="A kernel or the scheduler's firmware did not answer, so the runtime ended the"
        " process; what Python shows is only where it waited. Known causes are old firmware, on"
        " gfx1151 the driver's saving of waves (CWSR), and kernels that run for seconds.",
        do=_NEWER,
        gfx1151=_CWSR,
        wsl=_WSL,
        windows="Install the current Adrenalin driver.",
        here=_LONG_KERNELS + " " + _DOCTOR,
        otherwise="Another ROCm; HSA_ENABLE_SDMA=0 helped on APUs.",
        linux="The lines with 'amdgpu' in `dmesg` name the ring or engine.",
        source=_ROCM + "4557",
        words=(
            "gpu hang",
            "fence wait",
            "preemption time",
            "unrecoverable state",
            "is hung",
            "unmapping queues",
        ),
        patterns=(
            r"\breason ?: ?GPU Hang",
            r"qcm fence wait loop timeout",
            r"\bcp might be in an? unrecoverable state",
            r"Queue preemption time ?out",
            r"IP block:\w+ is hung",
            r"kfd: unmapping queues failed",
        ),
        follows=("gpu-reset", "gpu-lost-from-bus"),
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="gpu-reset",
        symptom="The driver lost the GPU and reset it.",
        cause="The card did not answer in time. A kernel that runs too long does that (MIOpen's"
        " find step with its naive kernel at a new resolution is the usual one), and so do faults"
        " of driver and firmware. The program that the driver names is often only a victim.",
        do=_NEWER,
        gfx1151=_CWSR,
        wsl=_WSL,
        windows="Install the current Adrenalin driver.",
        decode="export MIOPEN_FIND_MODE=FAST",
        here=_LONG_KERNELS + " " + _DOCTOR,
        otherwise="Another ROCm; MIOPEN_FIND_MODE=FAST before torch is imported.",
        source=_ROCM + "2773",
        words=(
            "flip_done",
            "previous command",
            "initialize parser",
            "mes failed",
            "scheduling ibs",
            "fences timed out",
            "command stream",
            "gpu recovery",
            "amdgpu",
            "gpu reset",
        ),
        patterns=(
            r"flip_done timed out",
            r"not done with your previous command",
            r"Failed to initialize parser -125",
            r"\bMES failed to respon[ds]e?",
            r"\[drm\] Skip scheduling IBs",
            r"\*ERROR\* Waiting for fences timed out",
            r"\*ERROR\* Illegal (?:opcode|register) in command stream",
            r"amdgpu.{0,60}ring \S+ timeout",
            r"amdgpu.{0,30}GPU reset begin",
            r"VRAM is lost due to GPU reset",
            r"amdgpu.{0,60}MES might be in unrecoverable state",
            r"\bamdgpu_job_timedout\b",
        ),
        follows=("gpu-page-fault", "hsa-queue-error", "gpu-lost-from-bus"),
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="gpu-page-fault",
        symptom="A kernel on the GPU accessed memory that is not its own.",
        cause="A fault of a kernel, of the driver or of its firmware, or a card that claims to be"
        " another one (HSA_OVERRIDE_GFX_VERSION). It is no lack of memory. The process can't use"
        " the GPU any more.",
        do="{wheels}",
        gfx1151=_CWSR,
        wsl=_WSL,
        windows="Install the current Adrenalin driver, then: {wheels}",
        here="protect() says so in one sentence instead of going on with a lost device; where the"
        " process does not survive, the shape is remembered as one that hangs. " + _DOCTOR,
        otherwise="That is another ROCm. If it comes again at the same place, run once with"
        " AMD_SERIALIZE_KERNEL=3; unset HSA_OVERRIDE_GFX_VERSION.",
        linux="Then another kernel and linux-firmware.",
        source=_ROCM + "5051",
        words=(
            "access fault",
            "illegal memory",
            "illegaladdress",
            "page fault",
            "protection_fault",
            "memory critical error",
        ),
        patterns=(
            r"Memory access fault by GPU node",
            r"(?:HIP|CUDA|ROCm) error: an illegal memory access was encountered",
            r"\bhipErrorIllegalAddress\b",
            r"VM_L2_PROTECTION_FAULT_STATUS: ?0x(?!0{8})",
            r"amdgpu.{0,40}\[(?:gfxhub|mmhub)\w*\] (?:retry |no-retry )?page fault",
            r"Memory critical error by agent node",
        ),
        follows=("gpu-reset", "hsa-queue-error", "gpu-hang"),
        rank=0,
    ),
    Rule(
        id="hsa-queue-error",
        symptom="The HSA runtime stopped a queue of the GPU.",
        cause="The hardware raised an exception in a kernel: one that was built for another card"
        " (also through HSA_OVERRIDE_GFX_VERSION), an index out of range, or a fault of kernel or"
        " driver. It is no lack of memory.",
        do="Run once with AMD_SERIALIZE_KERNEL=3: the traceback then names the operation.",
        here="`hy3d-rocm doctor` compares the card with what PyTorch was built for.",
        otherwise="Unset HSA_OVERRIDE_GFX_VERSION if your card is supported without it; another"
        " attention; another ROCm.",
        source="https://github.com/cubiq/ComfyUI_InstantID/issues/71",
        words=("hsa_status_error_", "vgpu=0x"),
        patterns=(
            r"HSA_STATUS_ERROR_(?:EXCEPTION|MEMORY_APERTURE_VIOLATION|ILLEGAL_INSTRUCTION"
            r"|OUT_OF_REGISTERS|INVALID_ISA|MEMORY_FAULT)",
            r"\bVGPU=0x[\da-f]+ SWq=0x",
        ),
        follows=("gpu-page-fault", "gpu-reset", "crash-in-attention"),
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="hsa-queue-resources",
        symptom="A kernel wanted more scratch memory or registers than a queue of the GPU has.",
        cause="The runtime ended the queue (HSA_STATUS_ERROR_OUT_OF_RESOURCES, code 0x1008) while"
        " kernels ran. It is a limit of one kernel, not of the card's free memory.",
        do="Run once with AMD_SERIALIZE_KERNEL=3: the traceback then names the operation.",
        otherwise="Another ROCm, fewer programs at once on the card.",
        source="https://github.com/StanfordLegion/legion/issues/1339",
        words=("out_of_resources",),
        patterns=(r"aborting with error ?: HSA_STATUS_ERROR_OUT_OF_RESOURCES",),
        confidence="likely",
        rank=0,
    ),
    Rule(
        id="driver-out-of-memory",
        symptom="The driver had no memory left for the desktop's or a program's commands.",
        cause="The card's memory and what it may take of the computer's are full, so even the"
        " desktop gets none.",
        do="Start ComfyUI with --reserve-vram 2",
        decode='Take the node "VAE Decode (ROCm, bounded memory)" in place of "VAE Decode".',
        here='The node "VAE Decode (ROCm, bounded memory)" plans a decode within what is free.',
        otherwise="Smaller pictures, fewer frames, a smaller model.",
        source=_ROCM + "3580",
        words=(
            "eviction failed",
            "amdgpu_vm_validate",
            "list_validate",
            "command submission",
        ),
        patterns=(
            r"Buffer eviction failed",
            r"amdgpu_vm_validate\(\) failed|amdgpu_cs_list_validate\(validated\) failed",
            r"Not enough memory for command submission",
        ),
        confidence="likely",
        rank=0,
    ),
)
