"""Nodes with upstream's ids, parameters and faults, that compute next to nothing."""

import comfy.model_management as mm
import torch

from .hy3dgen.texgen.hunyuanpaint import pipeline as paint

reports = []


def print_memory(device):
    if torch.device(device).type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    reports.append(device)


def inputs(optional=(), **required):
    types = {"required": {name: ("INT", {"default": 1}) for name in required["names"]}}
    if optional:
        types["optional"] = {name: ("INT", {"default": 1}) for name in optional}
    return types


class Hy3DDelightImage:
    FUNCTION = "process"

    @classmethod
    def INPUT_TYPES(cls):
        return inputs(["scheduler"], names=["delight_pipe", "image", "steps", "width", "height",
                                            "cfg_image", "seed"])  # fmt: skip

    def process(self, delight_pipe, image, width, height, cfg_image, steps, seed, scheduler=None):
        pictures = image.movedim(-1, 1).to(mm.get_torch_device())
        done = []
        for picture in pictures:
            answer = delight_pipe(
                image=picture, generator=torch.manual_seed(seed), num_inference_steps=steps
            )
            done.append(answer.images[0])
        return (torch.stack(done).movedim(1, -1).cpu().float(),)


class Hy3DSampleMultiView:
    FUNCTION = "process"

    @classmethod
    def INPUT_TYPES(cls):
        return inputs(["samples"], names=["pipeline", "ref_image", "normal_maps", "position_maps",
                                          "view_size", "steps", "seed"])  # fmt: skip

    def process(self, pipeline, ref_image, normal_maps, position_maps, view_size, seed, steps,
                samples=None):  # fmt: skip
        mm.unload_all_models()
        torch.manual_seed(seed)
        generator = torch.Generator(device=pipeline.device).manual_seed(seed)
        reference = ref_image.movedim(-1, 1).unsqueeze(0).to(mm.get_torch_device())
        answer = pipeline(
            reference,
            generator=generator,
            num_in_batch=len(normal_maps),
            num_inference_steps=steps,
            callback_on_step_end=mm.steps_of_upstream,
        )
        return (answer.images.movedim(1, -1).cpu().float(),)


class Hy3DGenerateMesh:
    FUNCTION = "process"

    @classmethod
    def INPUT_TYPES(cls):
        return inputs(["mask", "force_offload"], names=["pipeline", "image", "steps", "seed"])

    def process(self, pipeline, image, steps, seed, mask=None, force_offload=True):
        mm.unload_all_models()
        device, offload_device = mm.get_torch_device(), mm.unet_offload_device()
        pipeline.to(device)
        latents = pipeline(
            image=image.to(device), mask=mask, num_inference_steps=steps,
            generator=torch.manual_seed(seed),
        )  # fmt: skip
        print_memory(device)
        if not force_offload:  # the inverted sense is upstream's
            pipeline.to(offload_device)
        return (latents,)


class Hy3DGenerateMeshMultiView:
    FUNCTION = "process"

    @classmethod
    def INPUT_TYPES(cls):
        return inputs(["front"], names=["pipeline", "steps", "seed"])

    def process(self, pipeline, steps, seed, front=None):
        device, offload_device = mm.get_torch_device(), mm.unet_offload_device()
        pipeline.to(device)
        latents = pipeline(
            image=front, num_inference_steps=steps, generator=torch.manual_seed(seed)
        )
        print_memory(device)
        pipeline.to(offload_device)
        return (latents,)


class Hy3DVAEDecode:
    FUNCTION = "process"

    @classmethod
    def INPUT_TYPES(cls):
        return inputs(["force_offload"], names=["vae", "latents"])

    def process(self, vae, latents, force_offload=True):
        device, offload_device = mm.get_torch_device(), mm.unet_offload_device()
        vae.to(device)
        mesh = vae(latents / vae.scale_factor)
        if force_offload:
            vae.to(offload_device)
        return (mesh,)


class DownloadAndLoadHy3DDelightModel:
    FUNCTION = "loadmodel"

    @classmethod
    def INPUT_TYPES(cls):
        return inputs(["compile_args"], names=["model"])

    def loadmodel(self, model, compile_args=None):
        pipeline = paint.loaded[model].to(mm.get_torch_device())
        if compile_args is None:
            pipeline.enable_model_cpu_offload()
        return (pipeline,)


class DownloadAndLoadHy3DPaintModel:
    FUNCTION = "loadmodel"

    @classmethod
    def INPUT_TYPES(cls):
        return inputs(["compile_args"], names=["model"])

    def loadmodel(self, model, compile_args=None):
        pipeline = paint.loaded[model]
        if compile_args is None:
            pipeline.enable_model_cpu_offload()
        return (pipeline,)


class Hy3DRenderMultiView:
    FUNCTION = "process"

    @classmethod
    def INPUT_TYPES(cls):
        return inputs(["camera_config"], names=["trimesh", "render_size"])

    def process(self, trimesh, render_size, camera_config=None):
        from .hy3dgen.texgen.differentiable_renderer.mesh_render import MeshRender

        renderer = MeshRender(default_resolution=render_size)
        return (renderer.drawn(trimesh) + torch.ones(1, device="cuda"), renderer)


class Hy3DRenderSingleView(Hy3DRenderMultiView):
    pass


class Hy3DRenderMultiViewDepth(Hy3DRenderMultiView):
    pass


class Hy3DBakeFromMultiview:
    FUNCTION = "process"

    @classmethod
    def INPUT_TYPES(cls):
        return inputs(["camera_config"], names=["images", "renderer"])

    def process(self, images, renderer, camera_config=None):
        return (images.to("cuda") + renderer.drawn(images),)


class Hy3DNvdiffrastRenderer:
    FUNCTION = "render"

    @classmethod
    def INPUT_TYPES(cls):
        return inputs(names=["trimesh"])

    def render(self, trimesh):
        cameras = torch.ones(2).cuda()  # upstream's utils.py
        return (trimesh.to(mm.get_torch_device()) + cameras,)


NODE_CLASS_MAPPINGS = {
    value.__name__: value
    for value in list(globals().values())
    if isinstance(value, type) and value.__module__ == __name__
}
