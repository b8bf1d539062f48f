"""What MIOpen and cuDNN print. Texts: public threads (tests/data/log_excerpts.json) and sources."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_ISSUES = "https://github.com/ROCm/"
_ANY_MIOPEN_CAUSE = ("miopen-compile", "miopen-database", "miopen-setting", "cxx-headers")
_ROUTED = (
    'Under protect(), in the node "VAE Decode (ROCm, bounded memory)" and in the corrected VAE'
    " nodes such a convolution is computed in another way and the decode goes on."
)  # fmt: skip

RULES: tuple[Rule, ...] = (
    Rule(
        id="miopen-no-algorithm",
        symptom="MIOpen found no algorithm for a convolution.",
        cause="No solver of this MIOpen takes that convolution, mostly a 3D one of a video VAE:"
        " on RDNA cards few exist, and those that want more workspace than there is are left out.",
        do="torch.backends.cudnn.enabled = False",
        decode='Take the node "VAE Decode (ROCm, bounded memory)" in place of "VAE Decode".',
        here=_ROUTED,
        otherwise="Without this package: a newer ROCm, or torch.backends.cudnn.enabled = False for"
        " the decode; PyTorch's own operators then want more memory.",
        source=_ISSUES + "TheRock/issues/724",
        words=("algorithm",),
        patterns=(
            r"No suitable algorithm was found to execute the required convolution",
            r"Unable to find a (?:suitable|valid cuDNN) algorithm",
        ),
        follows=_ANY_MIOPEN_CAUSE,
    ),
    Rule(
        id="cxx-headers",
        symptom="The compiler for the card does not find the C++ library's headers.",
        cause="MIOpen, hiprtc or hipcc compile with the headers of the newest GCC that they see;"
        " its development package is not installed (or, for hip/ headers, ROCm's own).",
        do='sudo apt install "libstdc++-$(ls /usr/lib/gcc/x86_64-linux-gnu | sort -n | tail -1)'
        '-dev"',
        windows='python -m pip install "rocm[libraries,devel]" --index-url'
        " https://rocm.nightlies.amd.com/whl-multi-arch/",
        here=_ROUTED,
        otherwise="Fedora: gcc-c++; Arch: gcc. hip/hip_runtime.h: the package hip-dev.",
        source=_ISSUES + "legacy-rocm-build/issues/3380",
        words=("file not found", "include file"),
        patterns=(
            r"include file '?hip/[\w./]+'? not found",
            r"fatal error: '?(?:cstdint|cstddef|cmath|cstdlib|cstring|limits|type_traits|utility"
            r"|algorithm|array|functional|initializer_list|hip/[\w.]+)'? file not found",
        ),
    ),
    Rule(
        id="miopen-compile",
        symptom="MIOpen could not build one of its kernels.",
        cause="MIOpen compiles kernels on the machine when they are first used. The compiler"
        " failed: it or its headers are missing, this card is not known to it, or it can't write"
        " its temporary files.",
        do="hy3d-rocm miopen clear",
        decode='Take the node "VAE Decode (ROCm, bounded memory)" in place of "VAE Decode".',
        here=_ROUTED,
        otherwise="Look at the first compiler message below that line. Check that the temporary"
        " folder has room and may run programs, that the ROCm libraries are all of one version,"
        " and that HSA_OVERRIDE_GFX_VERSION does not claim another card.",
        source=_ISSUES + "MIOpen/issues/1204",
        words=("miopen", "hiprtc", "comgr", "code object build failed", "x-amdgcn-asm"),
        patterns=(
            r"HIPRTC_ERROR_COMPILATION",
            r"MIOpen\(HIP\): Error \[(?:Compile|Build\w*|SetIsaName|Do)\]",
            r"Code object build failed",
            r"X-AMDGCN-ASM",
            r"Can't execute cd \S*miopen",
        ),
        unless=(r"migraphx",),
        follows=("cxx-headers",),
    ),
    Rule(
        id="miopen-database",
        symptom="MIOpen could not use its database on disk.",
        cause="MIOpen keeps kernels in ~/.cache/miopen and find results in ~/.config/miopen"
        " (Windows: %USERPROFILE%\\.miopen). One of them can't be written, is broken or locked, or"
        " lies on a network file system.",
        do="export MIOPEN_USER_DB_PATH=/tmp/miopen MIOPEN_CUSTOM_CACHE_DIR=/tmp/miopen",
        windows="hy3d-rocm miopen clear",
        here="`hy3d-rocm miopen info` shows both folders and `hy3d-rocm miopen clear` clears them"
        " after a backup. " + _ROUTED,
        otherwise="Set MIOPEN_USER_DB_PATH and MIOPEN_CUSTOM_CACHE_DIR to folders on a local disk"
        " that you may write to.",
        source=_ISSUES + "MIOpen/issues/2214",
        words=("sqlite", "miopen"),
        patterns=(
            r"Internal error while accessing SQLite database",
            r"sqlite_db\.cpp:\d+: ",
            r"boost::filesystem.{0,200}[\\/]\.?miopen[\\/]",
            r"miopen.{0,80}(?:database is locked|database disk image is malformed"
            r"|attempt to write a readonly database)",
        ),
    ),
    Rule(
        id="miopen-temporary",
        symptom="MIOpen could not make or remove a folder for temporary files.",
        cause="MIOpen builds kernels in a folder of its own (miopen-interim-...) below the"
        " temporary folder, and ends the process where that can't be removed: on a file"
        " system that keeps deleted files for a while (a network's, NTFS under Linux, FUSE), or"
        " where several processes share it. The model is not at fault.",
        do="export TMPDIR=/tmp",
        windows="set TMP=C:\\Temp& set TEMP=C:\\Temp",
        here=_ROUTED,
        otherwise="Any folder on a local disk of the system's own kind that has room. One process"
        " at a time for the first run.",
        source="https://github.com/RVC-Project/Retrieval-based-Voice-Conversion-WebUI/issues/1200",
        words=("miopen-interim",),
        patterns=(r"(?:filesystem|boost).{0,200}miopen-interim",),
        confidence="likely",
    ),
    Rule(
        id="miopen-naive-kernel",
        symptom="MIOpen computes a convolution with its naive kernel.",
        cause="Nothing faster takes this shape here, or the find step did not try it. The naive"
        " kernel is 10 to 100 times slower than it should be, minutes a layer for a video VAE,"
        " and on Windows long enough for the driver to be reset.",
        do="export MIOPEN_FIND_MODE=FAST",
        windows="set MIOPEN_FIND_MODE=FAST",
        here=_ROUTED + " `hy3d-rocm tune` measures ahead what is fastest on this card.",
        otherwise="MIOPEN_FIND_MODE=FAST, set before torch is imported, keeps the find step from"
        " timing the naive kernel. With PyTorch of ROCm 7.0 also PYTORCH_MIOPEN_SUGGEST_NHWC=0:"
        " channels-last is the default there, and slow.",
        source=_ISSUES + "TheRock/issues/1899",
        words=("naive",),
        patterns=(
            r"Selected: ConvDirectNaiveConv",
            r"ConvDirectNaiveConv\w* registered as find 1\.0 best",
        ),
        confidence="likely",
    ),
    Rule(
        id="miopen-setting",
        symptom="A variable of MIOpen has a value that MIOpen throws on.",
        cause="DYNAMIC is no find mode and DB_ONLY no way of enforcing one, although guides name"
        " them. MIOpen throws at the first convolution, which PyTorch shows as"
        " miopenStatusUnknownError.",
        do="unset MIOPEN_FIND_ENFORCE; export MIOPEN_FIND_MODE=FAST",
        windows="set MIOPEN_FIND_ENFORCE=& set MIOPEN_FIND_MODE=FAST",
        here="In ComfyUI this package leaves such a value out before torch is imported.",
        otherwise="MIOPEN_FIND_MODE is one of NORMAL, FAST, HYBRID, DYNAMIC_HYBRID; leave"
        " MIOPEN_FIND_ENFORCE unset.",
        source="https://github.com/ROCm/MIOpen/blob/develop/src/find_controls.cpp",
        words=("miopen_find_",),
        patterns=(
            r"MIOPEN_FIND_MODE\W{1,6}DYNAMIC\b(?!_)",
            r"MIOPEN_FIND_ENFORCE\W{1,6}DB_ONLY\b",
        ),
        unless=(r"hy3d_rocm: ",),
    ),
    Rule(
        id="miopen-failed",
        symptom="MIOpen ended a call with an error.",
        cause="The status that PyTorch shows only says that MIOpen failed; its reason is in the"
        " line 'MIOpen Error: ...', which some start scripts hide.",
        do="torch.backends.cudnn.enabled = False",
        decode='Take the node "VAE Decode (ROCm, bounded memory)" in place of "VAE Decode".',
        here=_ROUTED,
        otherwise="Send the lines with 'MIOpen'; with MIOPEN_LOG_LEVEL=5 there are more of them.",
        source=_ISSUES + "MIOpen/issues/3726",
        words=("miopen(hip): error", "miopenstatus", "miopen error"),
        patterns=(
            r"MIOpen\(HIP\): Error \[",
            r"\bmiopenStatus(?!Success|_t)\w+",
            r"MIOpen Error: ",
        ),
        unless=(r"status == miopenStatusSuccess \(0",),
        follows=("miopen-no-algorithm", "miopen-naive-kernel", *_ANY_MIOPEN_CAUSE),
        confidence="likely",
    ),
    Rule(
        id="cudnn-no-engine",
        symptom="The convolution library found no engine for a convolution.",
        cause="PyTorch's cuDNN front end asked for a way to compute it and got none. Under ZLUDA"
        " MIOpen stands behind that, with the card's missing solvers.",
        do="torch.backends.cudnn.enabled = False",
        decode='Take the node "VAE Decode (ROCm, bounded memory)" in place of "VAE Decode".',
        here=_ROUTED,
        otherwise="Without this package: torch.backends.cudnn.enabled = False for the decode, or"
        " the VAE in its own type (bf16 is what is most often refused).",
        source="https://github.com/Comfy-Org/ComfyUI/issues/10075",
        words=(
            "cudnn_status_",
            "unable to find an engine",
        ),
        patterns=(
            r"\bCUDNN_STATUS_(?!SUCCESS)\w+",
            r"(?:GET|FIND) was unable to find an engine to execute this computation",
        ),
        follows=("miopen-compile", "miopen-no-algorithm", "miopen-database"),
    ),
    Rule(
        id="miopen-workspace-warning",
        symptom="[IsEnoughWorkspace] warnings of MIOpen.",
        cause="MIOpen's way of asking which solvers fit into the workspace; it takes another one.",
        do="Nothing has to be done.",
        otherwise="MIOPEN_LOG_LEVEL=3 hides them.",
        source=_ISSUES + "rocm-libraries/pull/4100",
        words=("isenoughworkspace",),
        patterns=(r"Warning \[IsEnoughWorkspace\]",),
        severity="notice",
    ),
    Rule(
        id="miopen-ck-missing",
        symptom="A library with more of MIOpen's convolutions is not there for this card.",
        cause="MIOpen takes its other solvers; some convolutions are slower.",
        do="Nothing has to be done.",
        source=_ISSUES + "TheRock/issues/4681",
        words=("ck grouped conv", ".tn.model"),
        patterns=(r"CK grouped conv library not found", r"Unable to load file: \S+\.tn\.model"),
        severity="notice",
        alone=True,
    ),
    Rule(
        id="miopen-system-database",
        symptom="MIOpen has no database that came with it for this card.",
        cause="Kernels for this card and number of compute units were not installed, so they are"
        " compiled at first use: slower once, then kept.",
        do="Nothing has to be done.",
        otherwise="The MIOpen kernels package of your ROCm version has them for some cards.",
        source=_ISSUES + "MIOpen/issues/2123",
        words=("system database", "parseandloaddb"),
        patterns=(
            r"(?:Missing|Unable to read) system database",
            r"\[ParseAndLoadDb\] File is unreadable: ",
        ),
        severity="notice",
    ),
    Rule(
        id="miopen-variable-unknown",
        symptom="A variable is set that MIOpen does not know.",
        cause="MIOPEN_FIND_TIME_LIMIT and MIOPEN_DEBUG_AMD_ROCM_PRECOMPILED_BINARIES do nothing"
        " in today's MIOpen: no variable bounds its find step.",
        do="unset MIOPEN_FIND_TIME_LIMIT MIOPEN_DEBUG_AMD_ROCM_PRECOMPILED_BINARIES",
        windows="set MIOPEN_FIND_TIME_LIMIT=& set MIOPEN_DEBUG_AMD_ROCM_PRECOMPILED_BINARIES=",
        here="Where MIOpen has to be tried, this package tries it in a child process with a time"
        " limit.",
        source=""
        "https://rocm.docs.amd.com/projects/MIOpen/en/docs-10.1.0/reference/env_variables.html",
        words=("miopen_find_time_limit", "miopen_debug_amd_rocm_precompiled"),
        patterns=(
            r"MIOPEN_FIND_TIME_LIMIT\W{1,6}\d",
            r"MIOPEN_DEBUG_AMD_ROCM_PRECOMPILED_BINARIES\W{1,6}\d",
        ),
        unless=(r"hy3d_rocm: ",),
        severity="notice",
    ),
)
