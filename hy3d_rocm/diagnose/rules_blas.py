"""Matrix products: rocBLAS, hipBLASLt, ZLUDA's cuBLAS, and number types that do not fit."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_HIDE_IT = "Hide the processor's GPU: set HIP_VISIBLE_DEVICES to the number of the card"
_WHICH = (
    'python -c "import torch; print(torch.__version__, torch.version.hip,'
    ' torch.cuda.get_device_name())"'
)
_NOT_OURS = "This package computes convolutions; the model's matrix products are PyTorch's."

RULES: tuple[Rule, ...] = (
    Rule(
        id="rocblas-architecture",
        symptom="rocBLAS has no kernels for this card.",
        cause="rocBLAS reads its matrix kernels from files, one set an architecture, and there is"
        " none for this card in this ROCm or HIP SDK.",
        do="{wheels}",
        windows="Put the rocBLAS files for your card and exactly your HIP SDK's version into its"
        " bin\\rocblas\\library: https://github.com/likelovewant/ROCmLibs-for-gfx1103-AMD780M-APU",
        beside=_HIDE_IT,
        here="Convolutions can go by Triton instead, matrix products of the model can't.",
        otherwise="A ROCm or HIP SDK that supports the card.",
        linux="{override}",
        source="https://github.com/ROCm/rocBLAS/issues/1339",
        words=("tensilelibrary", "tensile host"),
        patterns=(
            r"(?:Cannot read|Could not load) \S.{0,160}TensileLibrary",
            r"Could not initialize Tensile host",
        ),
        unless=(r"rocblaslt|hipblaslt|_rocm_sdk",),
        follows=("integrated-gpu", "rocblas-files-missing"),
    ),
    Rule(
        id="rocblas-files-missing",
        symptom="ROCm's wheels have no rocBLAS kernels for this card.",
        cause="rocBLAS comes with ROCm's Python packages here and finds no file for the card in"
        " their folder: the part for this card is not installed, or of another version. Files made"
        " for a HIP SDK do not belong there.",
        do="{wheels}",
        beside=_HIDE_IT,
        here="Convolutions can go by Triton instead, matrix products of the model can't.",
        source="https://github.com/patientx-cfz/comfyui-rocm/issues/44",
        words=("tensilelibrary",),
        patterns=(r"(?:Cannot read|Could not load) \S.{0,200}_rocm_sdk.{0,200}TensileLibrary",),
        unless=(r"rocblaslt|hipblaslt",),
        follows=("integrated-gpu",),
    ),
    Rule(
        id="int8-matmul",
        symptom="A product of 8-bit integers does not run on this card.",
        cause="The model's weights are int8 (torch._int_mm): hipBLASLt has no such product for the"
        " card and crashes or refuses.",
        do="Load the model's fp16, bf16 or GGUF weights in place of the int8 ones.",
        here=_NOT_OURS,
        otherwise="A newer ROCm.",
        source="https://github.com/ROCm/rocm-libraries/issues/5205",
        words=("_int_mm", "abtype 3"),
        patterns=(r"\bat::(?:cuda|native|_ops)::_int_mm", r"\babType 3 cType 10\b"),
        confidence="likely",
    ),
    Rule(
        id="hipblas-failed",
        symptom="hipBLAS or hipBLASLt refused a matrix product.",
        cause="The library has no kernel for that product, type or card, or could not start."
        " PyTorch prefers hipBLASLt, which knows fewer cards than rocBLAS. It is no lack of memory,"
        " also where it says ALLOC_FAILED.",
        do="export TORCH_BLAS_PREFER_HIPBLASLT=0",
        windows="set TORCH_BLAS_PREFER_HIPBLASLT=0",
        here=_NOT_OURS,
        otherwise="Wheels of another build; a product of millions of small matrices in parts.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/3698",
        words=(
            "rocblas error",
            "rocblas_status",
            "tensile solution",
            "hipblas",
        ),
        patterns=(
            r"rocBLAS error: (?!Cannot read|Could not|.{0,20}TensileLibrary)",
            r"\brocblas_status_\w*(?:error|fail)\w*",
            r"\bHIPBLAS_STATUS_(?!SUCCESS)\w+",
            r"hipblaslt (?:solution )?not (?:found|supported)",
            r"\b[A-Z]\w*(?-i:Error|Exception): (?!.*BLAS_STATUS).{0,80}\bhipblas(?:lt)?\b"
            r"|\bhipblas\w*(?-i:Exception)\b",
        ),
        unless=(
            r"Attempting to use hipBLASLt on an? unsupported architecture",
            r"undefined symbol|cannot open shared object|hipBlasLT failed, falling back",
        ),
        follows=(
            "int8-matmul",
            "wrong-architecture",
            "hip-invalid-image",
            "hipblaslt-architecture",
            "fp8-matmul",
        ),
        confidence="likely",
    ),
    Rule(
        id="hipblaslt-architecture",
        symptom="hipBLASLt has no kernels for this card.",
        cause="hipBLASLt reads its matrix kernels from files of its own (not rocBLAS's), for fewer"
        " cards, and none is there for this one.",
        do="export TORCH_BLAS_PREFER_HIPBLASLT=0",
        windows="set TORCH_BLAS_PREFER_HIPBLASLT=0",
        here=_NOT_OURS,
        otherwise="PyTorch then takes rocBLAS. Under ZLUDA: set DISABLE_ADDMM_CUDA_LT=1. Wheels"
        " that have the card: {wheels}",
        source="https://github.com/ROCm/TheRock/issues/754",
        words=("rocblaslt", "hipblaslt"),
        patterns=(
            r"rocblaslt error: ",
            r"hipBLASLt error: ",
            r"Attempting to use hipBLASLt on a unsupported architecture",
            r"hipblaslt\S*TensileLibrary\S*.{0,40}(?:No such file|not found)",
        ),
        excused=("rocblas-fallback-warning",),
    ),
    Rule(
        id="zluda-cublaslt",
        symptom="ZLUDA has no cublasLt for a matrix product.",
        cause="PyTorch asked cuBLASLt for it; behind ZLUDA that is hipBLASLt, which this set-up"
        " has not got.",
        do="set DISABLE_ADDMM_CUDA_LT=1",
        here=_NOT_OURS,
        otherwise="The torch version that your ZLUDA's installer chooses, patched again; or"
        " PyTorch for ROCm in place of ZLUDA.",
        source="https://github.com/patientx/ComfyUI-Zluda/issues/64",
        words=("cublaslt",),
        patterns=(r"CUBLAS_STATUS_\w+ when calling `?cublasLt\w+",),
        follows=("int8-matmul", "hipblaslt-architecture"),
        confidence="likely",
    ),
    Rule(
        id="zluda-cublas",
        symptom="cuBLAS refused a matrix product; on an AMD card ZLUDA stands behind it.",
        cause="ZLUDA's cuBLAS is not in place (an update put NVIDIA's DLL back), or the HIP SDK's"
        " rocBLAS behind it is missing or has nothing for the card.",
        do="Run ZLUDA's patch script again (patchzluda.bat of ComfyUI-Zluda).",
        instead=(("no zluda", _WHICH),),
        here=_NOT_OURS,
        otherwise="The HIP SDK that your ZLUDA asks for, with rocBLAS files for your card; or"
        " PyTorch for ROCm in place of ZLUDA.",
        source="https://github.com/lshqqytiger/ZLUDA/issues/130",
        words=("cublas", "architectural feature"),
        patterns=(
            r"CUBLAS_STATUS_(?:NOT_SUPPORTED|NOT_INITIALIZED|INTERNAL_ERROR|ARCH_MISMATCH"
            r"|ALLOC_FAILED|INVALID_VALUE|EXECUTION_FAILED) when calling `?cublas(?!Lt)\w+",
            r"requires an architectural feature absent from the device",
        ),
        follows=("card-too-old",),
        confidence="possible",
    ),
    Rule(
        id="fp8-matmul",
        symptom="This card or this PyTorch has no products of fp8 numbers.",
        cause="A loader chose the fast fp8 mode (torch._scaled_mm), or a type of fp8 that this card"
        " has not got: MI300 takes the fnuz types, RDNA4 and MI350 the others, older cards none;"
        " and PyTorch's own ROCm counts, not the system's.",
        do="Set the loader's weight_dtype to fp8_e4m3fn (without _fast), and start ComfyUI without"
        " --fast.",
        here=_NOT_OURS,
        otherwise="bf16, fp16 or GGUF weights; on cards that have fp8 a PyTorch for ROCm 7.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/10388",
        words=("_scaled_mm", "float8", "fp8e"),
        patterns=(
            r"_scaled_mm.{0,40}(?:is )?(?:only|not) supported",
            r"Float8_\w+ is only supported for",
            r"Cannot convert ScalarType Float8_\w+ to hip",
            r"\bfp8e\w+ not supported in this architecture",
            r"\bat::(?:cuda|native|_ops)::_scaled_mm",
        ),
    ),
    Rule(
        id="fp8-operator",
        symptom="PyTorch has no such operator for fp8 numbers.",
        cause="A node computes directly on weights that are stored in fp8; PyTorch can store that"
        " type, but adds, averages or copies it with few operators, on any card.",
        do="Load that model in bf16 or fp16 (weight_dtype default) where this node is used.",
        here=_NOT_OURS,
        otherwise="A newer version of the node pack in the traceback.",
        source="https://github.com/ryanontheinside/ComfyUI_RyanOnTheInside/issues/98",
        words=("float8",),
        patterns=(
            r"not implemented for '?Float8_\w+",
            r"Promotion for Float8 Types is not supported",
        ),
    ),
    Rule(
        id="dtype-mismatch",
        symptom="Two tensors that are used together have different number types.",
        cause="A node or model has given a layer numbers of another type (bf16, fp16, float32, fp8)"
        " than its weights have, without a cast. The card and its driver are not at fault.",
        do="Choose the same precision (bf16 or fp32) in the loaders of the model and of the node in"
        " the traceback.",
        otherwise="Update that node pack, or leave the node out.",
        source="https://github.com/kijai/ComfyUI-KJNodes/issues/503",
        words=("same dtype", "should be the same", "scalar type", "same data type"),
        patterns=(
            r"must have the same (?:data type|dtype)",
            r"to have the same dtype",
            r"Input type \((?:struct )?(?:c10::\w+|float|double|\w*(?:Half|Float)\w*)\) and"
            r" (?:bias|weight) type \((?:struct )?(?:c10::\w+|float|double|\w*(?:Half|Float)\w*)\)",
            r"Input type \((?:torch\.cuda\.\w+)\) and (?:weight|bias) type \(torch\.cuda\.\w+\)",
            r"expected scalar type \w+ but found (?!NoneType)\w+",
        ),
    ),
    Rule(
        id="math-library-failed",
        symptom="A mathematical library of the GPU failed (FFT, solver, sparse).",
        cause="The library behind PyTorch's call has nothing for it here: under ZLUDA one that is"
        " not there, with ROCm one of another version or without kernels for the card.",
        do="{wheels}",
        instead=(("zluda", "Run ZLUDA's patch script again (patchzluda.bat of ComfyUI-Zluda)."),),
        here=_NOT_OURS,
        otherwise="Let that operation run on the CPU.",
        source="https://github.com/lshqqytiger/ZLUDA/issues/73",
        words=("cufft", "hipfft", "cusolver", "hipsolver", "cusparse_status", "hipsparse_status"),
        patterns=(
            r"\b(?:cuFFT|hipFFT) error: \w+",
            r"\b(?:CU|HIP)(?:SOLVER|SPARSE)_STATUS_(?!SUCCESS)\w+",
        ),
        confidence="possible",
    ),
    Rule(
        id="rocblas-fallback-warning",
        symptom="rocBLAS takes its older kernels for a product.",
        cause="hipBLASLt had none for it; the result is right.",
        do="Nothing has to be done.",
        source="https://github.com/ROCm/rocm-libraries/issues/780",
        words=("rocblas warning",),
        patterns=(r"rocBLAS warning: hipBlasLT failed, falling back",),
        severity="notice",
        alone=True,
    ),
    Rule(
        id="hipblaslt-unsupported-warning",
        symptom="hipBLASLt is not used on this card.",
        cause="PyTorch says that it takes rocBLAS instead; results are right.",
        do="Nothing has to be done.",
        otherwise="TORCH_BLAS_PREFER_HIPBLASLT=0 keeps it quiet.",
        source="https://github.com/pytorch/pytorch/issues/138067",
        words=("hipblaslt on an unsupported",),
        patterns=(r"Attempting to use hipBLASLt on an unsupported architecture",),
        severity="notice",
    ),
)
