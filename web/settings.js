// The pack's settings in ComfyUI's settings dialog. hy3d_rocm/comfy/settings.py reads them from the
// file that the server keeps; environment variables and a node's own input go before them.
import { app } from "../../scripts/app.js";

const PACK = "Hunyuan3D ROCm";

// Name in hy3d_rocm/comfy/settings.py, and what the user reads.
const PATCHES = [
  ["delight", "Delight Image"],
  ["multiview", "Sample MultiView"],
  ["mesh", "Generate Mesh"],
  ["vae-decode", "VAE Decode"],
  ["loaders", "Pipeline loaders"],
  ["render", "Render MultiView"],
];

const patchSwitch = ([name, title], index) => ({
  id: `hy3d_rocm.patch.${name}`,
  category: [PACK, "Corrected nodes", name],
  name: title,
  tooltip: "Correct these nodes of ComfyUI-Hunyuan3DWrapper. Off: they run as upstream wrote them.",
  type: "boolean",
  defaultValue: true,
  sortOrder: 80 - index,
});

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
    ...PATCHES.map(patchSwitch),
  ],
});
