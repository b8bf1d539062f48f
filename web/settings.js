// The pack's settings in ComfyUI's settings dialog. hy3d_rocm/comfy/settings.py reads them from the
// file that the server keeps; environment variables and a node's own input go before them.
import { app } from "../../scripts/app.js";

const PACK = "Hunyuan3D ROCm";

// Names in hy3d_rocm/comfy/settings.py, and what the user reads.
const HUNYUAN3D = [
  ["delight", "Delight Image"],
  ["multiview", "Sample MultiView"],
  ["mesh", "Generate Mesh"],
  ["vae-decode", "VAE Decode"],
  ["loaders", "Pipeline loaders"],
  ["render", "Render MultiView"],
  ["inpaint", "Mesh Vertice Inpaint"],
];

const SERVED = [
  ["raster", "custom_rasterizer where it is missing"],
];

const VAES = [
  ["core-vae", "ComfyUI's VAE nodes"],
  ["wan-vae", "WanVideoWrapper's VAE nodes"],
  ["hunyuan-vae", "HunyuanVideoWrapper's VAE nodes"],
];

const FRAMEPACK = [
  ["framepack-import", "Loading where CUDA queries fail"],
  ["framepack-unload", "Order of unloading"],
  ["framepack-memory", "Preserved memory"],
  ["framepack-preview", "Preview of finished sections"],
];

const patchSwitches = (list, group, first, tooltip) =>
  list.map(([name, title], index) => ({
    id: `hy3d_rocm.patch.${name}`,
    category: [PACK, group, name],
    name: title,
    tooltip,
    type: "boolean",
    defaultValue: true,
    sortOrder: first - index,
  }));

app.registerExtension({
  name: "hy3d_rocm.settings",
  settings: [
    {
      id: "hy3d_rocm.seed_mode",
      category: [PACK, "Pictures", "seed_mode"],
      name: "Seed mode",
      tooltip:
        "stream: one generator for the batch. per_image: image i has a seed of its own, however " +
        "the batch is split. legacy: every image the same noise, as upstream.",
      type: "combo",
      defaultValue: "stream",
      options: ["stream", "per_image", "legacy"],
      sortOrder: 100,
    },
    {
      id: "hy3d_rocm.offload",
      category: [PACK, "Memory", "offload"],
      name: "Model offload",
      tooltip:
        "off: all models of a pipeline stay on the GPU. on: each is there only while it works. " +
        "auto: on if they would not fit.",
      type: "combo",
      defaultValue: "auto",
      options: ["off", "auto", "on"],
      sortOrder: 90,
    },
    {
      id: "hy3d_rocm.vae",
      category: [PACK, "VAE", "vae"],
      name: "VAE nodes of ComfyUI and the wrappers",
      tooltip:
        "off: they run as they are. protect: failing convolutions are computed another way. full: " +
        "that, and decoding and encoding in parts within the budget. cpu: on the CPU, slow, for " +
        "cards on which nothing else ends.",
      type: "combo",
      defaultValue: "protect",
      options: ["off", "protect", "full", "cpu"],
      sortOrder: 100,
    },
    {
      id: "hy3d_rocm.vae_budget",
      category: [PACK, "VAE", "vae_budget"],
      name: "Budget of VAE nodes set to full",
      tooltip: 'auto: by what is free. Or a size or a share of the card: "6GB", "800MB", "80%".',
      type: "text",
      defaultValue: "auto",
      sortOrder: 90,
    },
    {
      id: "hy3d_rocm.vae_devices",
      category: [PACK, "VAE", "vae_devices"],
      name: "GPUs that decode together",
      tooltip:
        'one: ComfyUI\'s own. all: those of its architecture. Or their numbers: "0,1". Of our decode ' +
        "and encode nodes, and of VAE nodes set to full.",
      type: "text",
      defaultValue: "one",
      sortOrder: 85,
    },
    {
      id: "hy3d_rocm.protect_prompts",
      category: [PACK, "VAE", "protect_prompts"],
      name: "Protect every node",
      tooltip:
        "Failing convolutions are computed another way in every node of a prompt: up-scalers, " +
        "ControlNet, video packs.",
      type: "boolean",
      defaultValue: false,
      sortOrder: 80,
    },
    ...patchSwitches(
      HUNYUAN3D, "Corrected nodes", 80,
      "Correct these nodes of ComfyUI-Hunyuan3DWrapper. Off: they run as upstream wrote them.",
    ),
    ...patchSwitches(
      SERVED, "Texture stage", 75,
      "Serve packs this module where it cannot be imported. After a change restart ComfyUI.",
    ),
    ...patchSwitches(
      VAES, "Corrected VAE nodes", 70,
      "Run these as the VAE setting says. Off: they run as they are, whatever it says.",
    ),
    ...patchSwitches(
      FRAMEPACK, "Corrected FramePack nodes", 60,
      "Correct this in ComfyUI-FramePackWrapper. Off: it runs as upstream wrote it.",
    ),
  ],
});
