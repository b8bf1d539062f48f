"""Python packages beside PyTorch, pip, files and the network: mostly no matter of the card."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_NO_CARD = "The card and its driver have no part in it."
_PACKAGE = "PACKAGE (the one in the traceback)"
_NAMES = (
    r"(?:transformers|diffusers|huggingface_hub|accelerate|peft|tokenizers|timm|numpy|pydantic"
    r"|gradio|einops|cv2|PIL|kornia|onnxruntime|insightface|comfy\w*)"
)
_TORCH = r"(?:torch|torchvision|torchaudio)(?![\w.-])"

_NOT_THERE = r".{1,200}\bbut .{1,80}(?:to be installed|installable|is installed)"

RULES: tuple[Rule, ...] = (
    Rule(
        id="pip-version-missing",
        symptom="pip found the package, but not the version that was asked for.",
        cause="The line lists in brackets what the address has for this Python and system. The"
        " version that was asked for lies at another address (those with +rocm in their name only"
        " at ROCm's), was removed there, or exists for another Python only.",
        do="Ask for one of the versions in the brackets, or choose the address that has yours.",
        otherwise="`python -m pip index versions PACKAGE --index-url ADDRESS` lists what is there;"
        " `python --version` tells which Python asks. For torch: {wheels}",
        source="https://github.com/nod-ai/amd-shark-ai/issues/47",
        words=("satisfies the requirement", "there is no version of", "no versions of"),
        patterns=(
            r"satisfies the requirement .{1,200}\(from versions: (?!none)\S",
            r"there (?:is|are) no versions? of \S+[=<>]",
        ),
        unless=(r"custom[_-]rasterizer",),
        confidence="likely",
    ),
    Rule(
        id="pip-nothing-found",
        symptom="pip found no version of a package that this Python could use.",
        cause="Where pip looked ('Looking in indexes' above) there is no such package (PyTorch's"
        " addresses have only PyTorch), none for this Python or system, or it was not reached. The"
        " line does not tell which.",
        do="python -m pip download --no-deps -v PACKAGE",
        otherwise="It shows where pip looks. With --index-url install torch first, and the rest in"
        " a second command without it. Else it is mostly too new a Python (`python --version`):"
        " 3.12 has the most wheels. " + _NO_CARD,
        source="https://github.com/amd/playbooks/issues/315",
        words=("satisfies the requirement", "no matching distribution", "different python"),
        patterns=(
            r"satisfies the requirement (?!" + _TORCH + r").{1,200}\(from versions: none\)",
            r"No matching distribution found for (?!" + _TORCH + r")\w",
            r"requires a different Python: ",
        ),
        unless=(r"custom[_-]rasterizer",),
        follows=("pip-version-missing",),
        confidence="likely",
    ),
    Rule(
        id="pip-system-python",
        symptom="pip refuses to install into the system's Python.",
        cause="The distribution keeps its own Python to itself. " + _NO_CARD,
        do="python3 -m venv venv && . venv/bin/activate",
        otherwise="Then the same pip command again, in that environment.",
        source="https://peps.python.org/pep-0668/",
        words=("externally-managed",),
        patterns=(r"externally-managed-environment",),
    ),
    Rule(
        id="native-build",
        symptom="The compiled part of a package does not build.",
        cause="A compiler is there and fails on the package's source. The first line with 'error:'"
        " above says why: headers that are not installed, or source for CUDA or for another"
        " PyTorch.",
        do="python -m pip install --only-binary :all: PACKAGE",
        otherwise="That takes a finished wheel, if there is one for this Python. Else the package's"
        " notes on AMD, or without it.",
        source="https://pip.pypa.io/en/stable/cli/pip_install/",
        words=("failed with exit", "failed building wheel", "error compiling objects"),
        patterns=(
            r"command '\S*(?:cl(?:\.exe)?|gcc|g\+\+|c\+\+|cc|clang\S*|hipcc\S*)' failed with exit",
            r"Failed building wheel for (?!custom[_-]rast|flash[-_]attn)\w",
            r"RuntimeError: Error compiling objects for extension",
        ),
        follows=(
            "triton-no-compiler",
            "cuda-extension-build",
            "flash-build",
            "custom-rasterizer",
            "hip-device-library",
        ),
        confidence="likely",
    ),
    Rule(
        id="hip-device-library",
        symptom="The HIP compiler does not find ROCm's device library.",
        cause="clang or hipcc was found, the files that come with it (amdgcn/bitcode) were not:"
        " ROCm is installed in part, or elsewhere than where the compiler looks.",
        do='export HIP_DEVICE_LIB_PATH="$(dirname "$(find /opt/rocm/ -name ockl.bc | head -1)")"',
        windows='python -m pip install "rocm[libraries,devel]" --index-url'
        " https://rocm.nightlies.amd.com/whl-multi-arch/",
        otherwise="Where nothing is found: the package rocm-device-libs; with ROCm's wheels"
        " `rocm-sdk path --root` tells the folder to look in.",
        source="https://github.com/ROCm/legacy-rocm-build/issues/5773",
        words=("rocm device library",),
        patterns=(r"cannot find ROCm device library",),
    ),
    Rule(
        id="package-older-than-torch",
        symptom="A package asks for something that newer releases have removed.",
        cause="The module in the line was taken out of PyTorch, torchvision, torchaudio or Triton;"
        " the package in the traceback was written before that. The installation is whole.",
        do="python -m pip install --upgrade " + _PACKAGE,
        otherwise="triton.ops: bitsandbytes before 0.45. torchvision.transforms.functional_tensor:"
        " basicsr; there write functional in place of functional_tensor in"
        " basicsr/data/degradations.py. torchaudio: the package's newest version, or torchaudio"
        " 2.8 with its PyTorch. " + _NO_CARD,
        source="https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1492",
        words=("triton.ops", "functional_tensor", "torch._six", "torchaudio"),
        patterns=(
            r"No module named '?triton\.ops",
            r"No module named '?torchvision\.transforms\.functional_tensor",
            r"No module named '?torch\._six|cannot import name '\w+' from 'torch\._six'",
            r"module 'torchaudio[\w.]*' has no attribute",
            r"No module named '?torchaudio\.(?:backend|io|sox_effects|prototype)",
        ),
        unless=(r"partially initialized",),
    ),
    Rule(
        id="torchcodec",
        symptom="torchaudio wants TorchCodec to read or write sound.",
        cause="From 2.9 on torchaudio hands files to TorchCodec, which is not installed, does not"
        " fit this PyTorch, or finds no FFmpeg. It computes on the processor: " + _NO_CARD[4:],
        do="python -m pip install torchcodec",
        otherwise="In the version that its table names for your PyTorch, with FFmpeg 4 to 8 as"
        " shared libraries on PATH; or a version of the node that saves with soundfile.",
        source="https://github.com/niknah/ComfyUI-F5-TTS/issues/68",
        words=("torchcodec",),
        patterns=(
            r"TorchCodec is required for",
            r"Could not load libtorchcodec",
            r"No module named '?torchcodec",
        ),
    ),
    Rule(
        id="numpy-version",
        symptom="A package was compiled for another NumPy.",
        cause="Packages that were built with NumPy 1 do not run with NumPy 2, and the other way"
        " round. " + _NO_CARD,
        do='python -m pip install "numpy<2"',
        otherwise="Or a newer version of the package in the traceback, where it needs NumPy 2.",
        source="https://numpy.org/doc/stable/numpy_2_0_migration_guide.html",
        words=("numpy 1.x", "numpy.dtype", "numpy.core.multiarray", "_array_api"),
        patterns=(
            r"compiled using NumPy 1\.x cannot be run in",
            r"numpy\.dtype size changed",
            r"numpy\.core\.multiarray failed to import",
            r"_ARRAY_API not found",
        ),
        unless=(r"Expected 96 from C header, got 88",),
        confidence="likely",
        optional=True,
    ),
    Rule(
        id="numpy-too-old",
        symptom="A package was compiled for a newer NumPy than the installed one.",
        cause="It expects NumPy 2 (96 bytes), and NumPy 1 is there (88 bytes). " + _NO_CARD,
        do='python -m pip install "numpy>=2"',
        otherwise="Or an older version of the package in the traceback, where another one needs"
        " NumPy 1.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/5614",
        words=("numpy.dtype",),
        patterns=(r"numpy\.dtype size changed.{0,80}Expected 96 from C header, got 88",),
        optional=True,
    ),
    Rule(
        id="requirements-not-updated",
        symptom="ComfyUI was updated, the packages that it needs were not.",
        cause="A package of ComfyUI's own requirements.txt is not in this environment. " + _NO_CARD,
        do="python -m pip install -r requirements.txt (in ComfyUI's folder, with its own Python)",
        otherwise="It leaves a torch that is installed as it is. A fork's updater does the same.",
        source="https://github.com/patientx/ComfyUI-Zluda/issues/429",
        words=("no module named",),
        patterns=(
            r"No module named '?(?:comfy_(?:aimdo|kitchen)|comfyui_\w+)\b",
            r"No module named '?(?:alembic|torchsde|spandrel)\b",
        ),
        confidence="likely",
    ),
    Rule(
        id="apt-rocm-conflict",
        symptom="apt can't install ROCm: packages of two sources or releases do not fit.",
        cause="Ubuntu has packages of the same names (rocminfo, rocm-cmake, hipcc) in versions of"
        " its own, and apt takes them in place of AMD's; or AMD's address is for another Ubuntu or"
        " another ROCm than the packages that are there.",
        do="printf 'Package: *\\nPin: release o=repo.radeon.com\\nPin-Priority: 600\\n' | sudo tee"
        " /etc/apt/preferences.d/rocm-pin-600 && sudo apt update",
        here="PyTorch's ROCm wheels bring ROCm's libraries themselves: only the kernel's driver and"
        " the user's groups are needed.",
        otherwise="Remove Ubuntu's first: sudo apt remove rocminfo rocm-cmake. In"
        " /etc/apt/sources.list.d only one ROCm version, for this Ubuntu.",
        source="https://github.com/ROCm/rocm-install-on-linux/issues/583",
        words=("depends",),
        patterns=(
            r"^Broken (?:rocm|hip|miopen|amdgpu)\S* Depends on ",
            r"\b(?:rocm|hip|miopen|amdgpu|comgr|hsa-)\S* ?: (?:Pre-?)?Depends: " + _NOT_THERE,
            r"^(?:Pre-?)?Depends: (?:rocm|hip|miopen|amdgpu|comgr|hsa-)\S* " + _NOT_THERE,
        ),
        confidence="likely",
    ),
    Rule(
        id="package-versions",
        symptom="Two Python packages do not fit each other.",
        cause="One asks another for a name that its installed version has not got: the one is too"
        " old or the other too new. " + _NO_CARD,
        do="python -m pip install --upgrade " + _PACKAGE,
        otherwise="If that does not help: the version of the other one (in quotes, behind 'from')"
        " that the package's requirements.txt names.",
        source="https://github.com/WASasquatch/was-node-suite-comfyui/issues/446",
        words=("cannot import name", "has no attribute"),
        patterns=(
            rf"cannot import name '\w+' from '{_NAMES}[.']",
            rf"module '{_NAMES}(?:\.\w+)*' has no attribute",
        ),
        unless=(r"partially initialized",),
        confidence="likely",
    ),
    Rule(
        id="model-file-broken",
        symptom="A model's file is not complete or not what its name says.",
        cause="The download was cut off, or it is a web page or a pointer in place of the model;"
        " 'header too large' is also said of a whole file with more tensors than the library takes."
        " " + _NO_CARD,
        do="Delete the file that is named above and download it once more; compare its size.",
        source="https://github.com/cubiq/ComfyUI_IPAdapter_plus/issues/591",
        words=(
            "deserializing header",
            "pytorchstreamreader",
            "invalid load key",
            "not a zip file",
        ),
        patterns=(
            r"Error while deserializing header",
            r"PytorchStreamReader failed",
            r"invalid load key, '",
            r"BadZipFile: File is not a zip file",
        ),
        confidence="likely",
    ),
    Rule(
        id="model-mismatch",
        symptom="Parts of the workflow do not belong together.",
        cause="The weights or their results have another shape than the part that takes them: a"
        " text encoder, VAE, LoRA or ControlNet of another model family, or a loader that does not"
        " know this model. " + _NO_CARD,
        do="In the node that is named, choose the text encoder, VAE and LoRA that the model's page"
        " names.",
        otherwise="For a model that is new: update ComfyUI and the node pack.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/7114",
        words=(
            "shapes cannot be multiplied",
            "loading state_dict",
            "could not detect model type",
            "channels, but got",
        ),
        patterns=(
            r"shapes cannot be multiplied",
            r"Error\(s\) in loading state_dict",
            r"Could not detect model type",
            r"expected input\[.{1,60}\] to have \d+ channels, but got",
        ),
        confidence="likely",
    ),
    Rule(
        id="disk-full",
        symptom="The disk is full.",
        cause="A file could not be written, since there is no room. " + _NO_CARD,
        do="python -m pip cache purge",
        otherwise="Models in ~/.cache/huggingface and temporary files take the most. `df -h` shows"
        " which disk it is (in Docker and WSL the virtual one).",
        source="https://docs.python.org/3/library/errno.html#errno.ENOSPC",
        words=("no space left", "os error 112", "winerror 112"),
        patterns=(r"No space left on device", r"(?:os error|WinError) 112\b"),
    ),
    Rule(
        id="network",
        symptom="A server could not be reached.",
        cause="A download or a question to a server failed: no connection, a proxy, a wrong clock,"
        " or the server itself. " + _NO_CARD,
        do="Open the address in the line with a browser on the same machine.",
        otherwise="Where it can't be reached from there: download the file elsewhere and put it"
        " into the folder that the node reads.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/6430",
        words=(
            "getaddrinfo",
            "max retries",
            "name resolution",
            "certificate_verify",
            "localentrynotfound",
            "couldn't connect to",
        ),
        patterns=(
            r"getaddrinfo failed",
            r"Max retries exceeded with url",
            r"Temporary failure in name resolution",
            r"CERTIFICATE_VERIFY_FAILED",
            r"\bLocalEntryNotFoundError\b",
            r"couldn't connect to '?https?:",
        ),
        optional=True,
    ),
    Rule(
        id="port-in-use",
        symptom="Another program has the port that this one wants.",
        cause="Mostly an older ComfyUI that still runs. " + _NO_CARD,
        do="Start ComfyUI with --port 8189",
        otherwise="Or end the older one.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/2305",
        words=("address already in use", "10048"),
        patterns=(r"address already in use", r"\b(?:WinError|Errno|error) 10048\b"),
    ),
    Rule(
        id="windows-blocked",
        symptom="Windows refuses to load a file (Smart App Control).",
        cause="A DLL without a signature is blocked; the file is whole, and PyTorch is not at"
        " fault. " + _NO_CARD,
        do="start windowsdefender://smartapp",
        otherwise="There switch Smart App Control off (older Windows 11 switches it on again only"
        " when it is set up anew). On a company's machine ask who runs it.",
        source="https://github.com/LykosAI/StabilityMatrix/issues/1712",
        words=("application control policy", "winerror 4551"),
        patterns=(r"Application Control policy has blocked|WinError 4551",),
    ),
)
