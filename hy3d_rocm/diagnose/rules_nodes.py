"""Nodes, optional packages, pictures, and our own lines."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_WRAPPER = "https://github.com/kijai/ComfyUI-Hunyuan3DWrapper/issues/"
_OPTIONAL = "This package does not need it."

RULES: tuple[Rule, ...] = (
    Rule(
        id="device-mismatch",
        symptom="A model and its input are on different devices.",
        cause="Under CPU offload a model comes to the card for its call, and its input does not:"
        " a node has put the input where the model was resting.",
        here="For Hunyuan3DWrapper's nodes this pack puts inputs on the device that runs (no"
        " change of the workflow); for other pipelines PipelineProxy and resolve_device do.",
        otherwise="Switch the offload of that node off, or report it to its author.",
        source="https://github.com/visualbruno/ComfyUI-Hunyuan3d-2-1/issues/37",
        words=("same device", "should be the same", "input type"),
        patterns=(
            r"Expected all tensors to be on the same device",
            r"Input type \([^)]{0,40}cuda[^)]{0,40}\) and (?:weight|bias) type \((?![^)]*cuda)",
            r"Input type \((?![^)]*cuda)[^)]{0,40}\) and (?:weight|bias) type \([^)]{0,40}cuda",
        ),
    ),
    Rule(
        id="custom-rasterizer",
        symptom="Hunyuan3D's rasteriser is missing or broken.",
        cause="custom_rasterizer comes as a CUDA extension: its wheels are for one PyTorch with"
        " CUDA each, and building it wants CUDA's tools. On AMD there is none.",
        here="This package has no rasteriser yet. Meshes without texture work.",
        otherwise="Leave the texture nodes out, or make the texture on another machine or in"
        " another program.",
        source=_WRAPPER + "84",
        words=("custom_rasterizer", "custom-rasterizer"),
        patterns=(
            r"No module named '?custom_rasterizer",
            r"module 'custom_rasterizer\w*' has no attribute",
            r"No matching distribution found for custom[_-]rasterizer",
            r"custom_rasterizer[\\/]setup\.py",
            r"DLL load failed while importing custom_rasterizer",
            r"custom_rasterizer\S*\.(?:so|pyd): undefined symbol",
        ),
    ),
    Rule(
        id="cuda-extension-build",
        symptom="A CUDA extension is to be built where it can't be.",
        cause="Its setup wants CUDA's tools (CUDA_HOME), which an AMD machine has not got, or"
        " PyTorch can't build extensions for ROCm on Windows.",
        here="This package needs no such extension.",
        otherwise="Look for a ROCm version of that package; on Linux PyTorch can build some with"
        " hipcc.",
        source="https://github.com/ROCm/DeepEP/issues/1",
        words=("cuda_home", "building pytorch extensions"),
        patterns=(
            r"CUDA_HOME environment variable is not set",
            r"Building PyTorch extensions using ROCm and Windows is not supported",
        ),
        follows=("custom-rasterizer",),
    ),
    Rule(
        id="xformers-operator",
        symptom="xformers has no attention for this card or type.",
        cause="xformers was built without the kernels that this call needs (on AMD: composable"
        " kernels, for some cards, in 16 bits).",
        here=_OPTIONAL,
        otherwise="Start ComfyUI with --use-pytorch-cross-attention, or uninstall xformers.",
        source="https://github.com/utensils/comfyui-nix/issues/57",
        words=("memory_efficient_attention",),
        patterns=(r"No operator found for `?memory_efficient_attention",),
    ),
    Rule(
        id="attention-package-missing",
        symptom="An optional attention package is not there or not usable.",
        cause="SageAttention or FlashAttention was asked for and is not installed for this"
        " Python, or its CUDA part is missing, which does not exist for AMD.",
        here=_OPTIONAL,
        otherwise="Start without --use-sage-attention or --use-flash-attention. On AMD"
        " SageAttention 1 and FlashAttention's Triton back end can work where Triton does.",
        source="https://github.com/thu-ml/SageAttention/issues/126",
        words=("sageatt", "flash_attn", "sage-attention"),
        patterns=(
            r"No module named '?(?:sageattention|flash_attn)\b",
            r"No module named '?flash_attn_(?:2_cuda|interface)",
            r"name 'sageattn\w*' is not defined",
            r"the `?(?:sageattention|flash-attn)`? package must be installed",
        ),
    ),
    Rule(
        id="triton-missing",
        symptom="Triton is missing.",
        cause="torch.compile, or a node, needs Triton, and there is none for this PyTorch, or not"
        " the one that fits it.",
        here=_OPTIONAL + " With it, convolutions on the GPU are faster.",
        otherwise="Switch torch.compile off in that node. Linux: the Triton that comes with the"
        " ROCm wheels of torch. Windows: one that is built for AMD.",
        source="https://github.com/kijai/ComfyUI-WanVideoWrapper/issues/92",
        words=("triton",),
        patterns=(
            r"Cannot find a working triton installation",
            r"No module named '?triton'?(?![\w.])",
            r"\bTritonMissing\b",
        ),
    ),
    Rule(
        id="nan-frames",
        symptom="Pictures or frames are NaN: they come out black.",
        cause="The numbers were not finite before they became pixels. In fp16 a VAE or a model"
        " overflows; on AMD a wrong convolution or attention kernel does it as well.",
        here='The node "VAE Decode (ROCm, bounded memory)" checks the result and decodes once'
        " more in a wider type, if the latent itself is finite.",
        otherwise="--fp32-vae or --bf16-vae for the VAE; if the latents are NaN already, another"
        " attention (--use-pytorch-cross-attention) or --force-upcast-attention.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/9046",
        words=("invalid value encountered", "nansexception", "nan"),
        patterns=(
            r"RuntimeWarning: invalid value encountered in (?:cast|multiply)",
            r"NansException",
            r"A tensor with all NaNs was produced",
        ),
        confidence="likely",
    ),
    Rule(
        id="decode-stopped",
        symptom="The log ends inside a VAE decode.",
        cause="Nothing came after the decode began: no error, no result. If it stood there for"
        " minutes, MIOpen's find step hangs or times its naive kernel; the GPU then shows 0 to 2"
        " % or 100 %.",
        here="Under protect() MIOpen is only called for shapes that were proven, and is tried in"
        " a child process with a time limit. `hy3d-rocm tune` proves them ahead.",
        otherwise="MIOPEN_FIND_MODE=FAST before torch is imported. Wait once: the first decode at a"
        " resolution is the slow one. `hy3d-rocm miopen clear` starts MIOpen's cache anew.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/5759",
        confidence="possible",
    ),
    Rule(
        id="decode-recovered",
        symptom="A decode of this package failed in one way and went on in another.",
        cause="The line says why, and which way came next.",
        here="Nothing has to be done: the frames are complete.",
        otherwise="The report of the decode has the details.",
        source="hy3d_rocm/decode/execution.py",
        words=("starting again",),
        patterns=(r"\[VAE Decode\] .{1,4000}: starting again ",),
        severity="notice",
        alone=True,
    ),
)
