"""What ComfyUI itself says: packs that do not load, prompts that do not fit; harmless lines."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_NOTHING = "Nothing has to be done."
_NO_GPU = "The card and its driver have no part in it."

RULES: tuple[Rule, ...] = (
    Rule(
        id="prompt-invalid",
        symptom="ComfyUI refused the workflow before it ran.",
        cause="The line below names the node and the input: mostly a model's file that is not in"
        " ComfyUI's folders, or is listed with its subfolder. " + _NO_GPU,
        do="Press R in ComfyUI and choose, in the node that is named, an entry of its list.",
        otherwise="An empty list ('not in []'): put the file into the folder below models/ that the"
        " node reads, or name it in extra_model_paths.yaml.",
        source="https://github.com/sakalond/StableGen/issues/4",
        words=("failed to validate prompt", "failed validation", "value not in list"),
        patterns=(
            r"Failed to validate prompt for output",
            r"Prompt outputs failed validation",
            r"Value not in list: ",
        ),
    ),
    Rule(
        id="node-import-failed",
        symptom="A custom node pack did not load.",
        cause="Its Python code failed when ComfyUI imported it: mostly a package that it needs is"
        " not installed, or it does not fit this ComfyUI. The line 'Cannot import ...' names the"
        " reason; its nodes are missing, all else runs. " + _NO_GPU,
        do="python -m pip install -r custom_nodes/NAME_OF_THE_PACK/requirements.txt",
        otherwise="Run it in ComfyUI's own environment and look that it leaves torch as it is; or"
        " update the pack, or remove its folder.",
        source="https://github.com/LykosAI/StabilityMatrix/issues/762",
        words=("import failed", "module for custom nodes"),
        patterns=(r"\(IMPORT FAILED\)", r"Cannot import .{1,300} module for custom nodes"),
        follows=(
            "hip-sdk-path",
            "torchvision-mismatch",
            "mixed-torch-builds",
            "bitsandbytes",
            "triton-missing",
            "triton-mismatch",
            "triton-no-driver",
            "attention-package-missing",
            "custom-rasterizer",
            "windows-torch-dll",
            "windows-package-dll",
            "extension-mismatch",
            "library-mismatch",
            "torch-distributed-missing",
            "requirements-not-updated",
            "numpy-too-old",
            "torch-broken",
            "cuda-version-none",
            "cuda-extension-build",
            "package-older-than-torch",
            "package-versions",
            "numpy-version",
            "torchcodec",
        ),
        rank=2,
    ),
    Rule(
        id="dynamic-vram-unavailable",
        symptom="ComfyUI's DynamicVRAM could not start; the old way is taken.",
        cause="comfy-aimdo could not hook the allocator (in a container its system calls are"
        " refused). ComfyUI goes on without; the GPU's memory is not full.",
        do="Start ComfyUI without --enable-dynamic-vram",
        otherwise="A newer comfy-aimdo; in Docker --security-opt seccomp=unconfined.",
        source="https://github.com/Comfy-Org/comfy-aimdo/issues/74",
        words=("funchook", "comfy-aimdo install", "aimdo_setup"),
        patterns=(
            r"funchook_prepare\(\w+\) failed",
            r"No working comfy-aimdo install detected",
            r"aimdo_setup_hooks",
        ),
        confidence="likely",
        rank=2,
        optional=True,
    ),
    Rule(
        id="backend-left-out",
        symptom="ComfyUI lists which of its back ends it can use.",
        cause="comfy_kitchen takes another one for what is not there.",
        do=_NOTHING,
        source="https://github.com/Comfy-Org/ComfyUI/issues/11085",
        words=("comfy_kitchen backend", "unavailable_reason"),
        patterns=(r"Found comfy_kitchen backend \w+:",),
        severity="notice",
        alone=True,
    ),
    Rule(
        id="aimdo-for-nvidia",
        symptom="comfy-aimdo (DynamicVRAM) did not load.",
        cause="That part of ComfyUI is for NVIDIA cards there; ComfyUI runs without it.",
        do=_NOTHING,
        source="https://github.com/Comfy-Org/ComfyUI/issues/13241",
        words=("autodetect aimdo", "comfy-aimdo", "aimdo"),
        patterns=(
            r"Could not autodetect AIMDO implementation",
            r"comfy-aimdo failed to load: ",
        ),
        severity="notice",
    ),
    Rule(
        id="nvidia-monitor",
        symptom="A node that watches the GPU does not find its library.",
        cause="NVIDIA's does not exist on AMD machines, AMD's is not installed; only its display"
        " lacks figures.",
        do=_NOTHING,
        source="https://github.com/Comfy-Org/ComfyUI/issues/4341",
        words=("pynvml", "no gpu with cuda", "amdsmi", "pyrsmi"),
        patterns=(
            r"Could not init pynvml",
            r"No GPU with CUDA detected",
            r"No module named '?(?:amdsmi|pyrsmi|pynvml)\b",
        ),
        severity="notice",
    ),
    Rule(
        id="deprecation-warning",
        symptom="A Python package warns that a function will go one day.",
        cause="FutureWarning and DeprecationWarning tell authors, not users.",
        do=_NOTHING,
        source="https://github.com/Comfy-Org/ComfyUI/issues/5312",
        words=("futurewarning", "deprecationwarning"),
        patterns=(r"\b(?:Future|Deprecation)Warning: ",),
        severity="notice",
    ),
    Rule(
        id="registry-unreachable",
        symptom="ComfyUI-Manager could not reach the registry of nodes.",
        cause="Only its list of packs is missing or old.",
        do=_NOTHING,
        source="https://github.com/Comfy-Org/ComfyUI/issues/16062",
        words=("comfyregistry",),
        patterns=(r"Cannot connect to comfyregistry",),
        severity="notice",
    ),
)
