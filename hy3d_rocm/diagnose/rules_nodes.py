"""Nodes, optional packages, pictures, and our own lines."""

from __future__ import annotations

from hy3d_rocm.diagnose.rule import Rule

_WRAPPER = "https://github.com/kijai/ComfyUI-Hunyuan3DWrapper/issues/"

RULES: tuple[Rule, ...] = (
    Rule(
        id="device-mismatch",
        symptom="A model and its input are on different devices.",
        cause="A node has put its input on another device than the model's or the other input's:"
        " mostly under CPU offload, where a model comes to the card for its call and the input does"
        " not; also with --gpu-only. The card is not at fault.",
        do="Update the node pack that the traceback names.",
        here="For Hunyuan3DWrapper's nodes this pack puts inputs on the device that runs (no"
        " change of the workflow); for other pipelines PipelineProxy and resolve_device do.",
        otherwise="Switch the offload of that node off, or report it to its author.",
        source="https://github.com/visualbruno/ComfyUI-Hunyuan3d-2-1/issues/37",
        words=(
            "but expected",
            "meta tensor",
            "either on cpu",
            "same device",
            "should be the same",
            "input type",
        ),
        patterns=(
            r"is on (?:cpu|cuda:?\d*),? but expected",
            r"Cannot copy out of meta tensor",
            r"should be either on cpu or on the same device",
            r"Expected all tensors to be on the same device",
            r"Input type \([^)]{0,40}cuda[^)]{0,40}\) and (?:weight|bias) type \((?![^)]*cuda)",
            r"Input type \((?![^)]*cuda)[^)]{0,40}\) and (?:weight|bias) type \([^)]{0,40}cuda",
        ),
    ),
    Rule(
        id="custom-rasterizer",
        symptom="Hunyuan3D's rasteriser is missing or broken.",
        cause="custom_rasterizer and mesh_processor come as CUDA extensions: their wheels are for"
        " one PyTorch with CUDA each, and building them wants CUDA's tools. On AMD there is none.",
        do="Install this pack (hy3d_rocm) into ComfyUI/custom_nodes and restart ComfyUI.",
        here="It serves modules of its own under both names where upstream's are missing; in Python"
        " that is hy3d_rocm.raster.install().",
        otherwise="Uninstall a custom_rasterizer that is installed and does not load. Meshes"
        " without texture work either way. To build it on an NVIDIA card: the first line with"
        " 'error:' above says what fails.",
        source=_WRAPPER + "84",
        words=("custom_rasterizer", "custom-rasterizer", "mesh_processor", "texture synthesis"),
        patterns=(
            r"No module named '?(?:custom_rasterizer|mesh_processor|mesh_inpaint_processor)",
            r"module 'custom_rasterizer\w*' has no attribute",
            r"No matching distribution found for custom[_-]rasterizer",
            r"custom_rasterizer[\\/]setup\.py",
            r"DLL load failed while importing (?:custom_rasterizer|mesh_processor)",
            r"custom_rasterizer\S*\.(?:so|pyd): undefined symbol",
            r"Building wheel for custom[_-]rasterizer .{0,40}\berror",
            r"Failed (?:building wheel for|to build) custom[_-]rasterizer",
            r"Texture synthesis is disabled? due to missing requirements",
        ),
    ),
    Rule(
        id="cuda-extension-build",
        symptom="A CUDA extension is to be built where it can't be.",
        cause="Its setup wants CUDA's tools (CUDA_HOME, nvcc) or an NVIDIA card's architecture,"
        " which an AMD machine has not got, also where ZLUDA shows it as one; or PyTorch can't"
        " build extensions for ROCm on Windows.",
        do="Leave that package out, or look for its ROCm or Triton version.",
        here="This package needs no such extension.",
        otherwise="Neither CUDA nor a value in TORCH_CUDA_ARCH_LIST helps; on Linux PyTorch can"
        " build some with hipcc. On an NVIDIA card: PyTorch or CUDA is older than the card.",
        source="https://github.com/ROCm/DeepEP/issues/1",
        words=("cuda_home", "building pytorch extensions", "unknown cuda arch", "nvcc", "+ptx"),
        patterns=(
            r"CUDA_HOME environment variable is not set",
            r"Cannot find CUDA_HOME|CUDA_HOME does not exist",
            r"Unknown CUDA arch",
            r"arch_list\[-1\] \+= '\+PTX'",
            r"\bnvcc(?:\.exe)?['\"]?:? ?(?:was )?(?:not found|: No such file|is not recognized)"
            r"|No such file or directory: '\S*nvcc",
            r"Building PyTorch extensions using ROCm and Windows is not supported",
        ),
        follows=("custom-rasterizer",),
    ),
    Rule(
        id="nan-latents",
        symptom="The sampler's result is NaN: the picture comes out black.",
        cause="The latent has no numbers before the VAE sees it: attention or the model in too"
        " narrow a type computed nonsense. Another VAE does not help.",
        do="Start ComfyUI with --use-split-cross-attention",
        here="This package's decode says so in place of making black frames of it.",
        otherwise="--force-upcast-attention; the model in bf16; no SageAttention.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/9046",
        words=("nan", "samples"),
        patterns=(r"samples'?: tensor\(\[+ ?nan",),
        confidence="likely",
    ),
    Rule(
        id="nan-vae",
        symptom="The VAE's result is NaN: pictures come out black.",
        cause="In fp16 a VAE overflows; on AMD a wrong convolution kernel does it as well."
        " Switching the check off only hides it.",
        do="Start with --no-half-vae (ComfyUI: --fp32-vae)",
        here='The node "VAE Decode (ROCm, bounded memory)" checks the result and decodes once'
        " more in a wider type, if the latent itself is finite.",
        otherwise="Another VAE; another attention.",
        source="https://github.com/vladmandic/sdnext/issues/149",
        words=("nan",),
        patterns=(r"A tensor with (?:all )?NaNs was produced in VAE",),
        confidence="likely",
    ),
    Rule(
        id="nan-frames",
        symptom="Pictures or frames are NaN: they come out black.",
        cause="The numbers were not finite before they became pixels: attention (SageAttention,"
        " AMD's AOTriton), or a model or VAE that overflows in fp16.",
        do="Start ComfyUI with --use-split-cross-attention and without --use-sage-attention",
        here='The node "VAE Decode (ROCm, bounded memory)" checks the result, says whether the'
        " latent was NaN already, and decodes once more in a wider type where it was not.",
        otherwise="If the latent is finite it is the VAE: --fp32-vae. --force-upcast-attention;"
        " restart if it began after many runs.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/14379",
        words=("invalid value encountered", "nansexception"),
        patterns=(
            r"RuntimeWarning: invalid value encountered in (?:cast|multiply)",
            r"NansException",
        ),
        unless=(r"produced in VAE",),
        follows=("nan-latents", "nan-vae"),
        confidence="likely",
        rank=2,
    ),
    Rule(
        id="mesh-empty",
        symptom="The shape's volume has no surface, so there is no mesh.",
        cause="Marching cubes found no place where the volume crosses the level: the volume is NaN,"
        " or all on one side. NaN comes from the model or the shape's VAE in fp16 or from"
        " attention; the other from too few steps, an empty image mask, or a wrong level. The log"
        " does not tell which.",
        do="Start ComfyUI with --use-split-cross-attention --force-upcast-attention",
        here="This package does not compute the shape's volume.",
        otherwise="If the mesh stays empty: mc_level 0, the model in fp32 or bf16, an image with"
        " its background removed, another PyTorch for ROCm.",
        source=_WRAPPER + "172",
        words=("surface level", "'mesh_f'", "'mesh_v'", "vertices"),
        patterns=(
            r"Surface level must be within volume data range",
            r"'NoneType' object has no attribute 'mesh_[fv]'",
            r"(?:\bnan\b.{0,40}\bvertices|\bvertices\b.{0,40}\bnan\b)",
        ),
        follows=("nan-latents",),
        confidence="possible",
    ),
    Rule(
        id="decode-stopped",
        symptom="The log ends inside a VAE decode.",
        cause="Nothing came after the decode began: no error, no result. If it stood there for"
        " minutes, MIOpen's find step hangs or times its naive kernel; the GPU then shows 0 to 2"
        " % or 100 %.",
        do="export MIOPEN_FIND_MODE=FAST",
        windows="set MIOPEN_FIND_MODE=FAST",
        here="Under protect() MIOpen is only called for shapes that were proven, and is tried in"
        " a child process with a time limit. `hy3d-rocm tune` proves them ahead.",
        otherwise="It has to be set before torch is imported. Wait once: the first decode at a"
        " resolution is the slow one. `hy3d-rocm miopen clear` starts MIOpen's cache anew.",
        source="https://github.com/Comfy-Org/ComfyUI/issues/5759",
        confidence="possible",
        rank=0,
    ),
    Rule(
        id="decode-recovered",
        symptom="A decode of this package failed in one way and went on in another.",
        cause="The line says why, and which way came next.",
        do="Nothing has to be done: the frames are complete.",
        otherwise="The report of the decode has the details.",
        source="hy3d_rocm/decoding/executor.py",
        words=("starting again",),
        patterns=(r"\[VAE Decode\] .{1,4000}: starting again ",),
        severity="notice",
        alone=True,
    ),
)
