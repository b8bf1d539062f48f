"""VAEs with the names that their authors gave the parts, seen with the names of diffusers.

ComfyUI's own VAEs and the wrappers' have them: Wan's (conv1, middle, upsamples, head), LTX's
(up_blocks of any kind), and those that come from latent diffusion (mid.block_1, up[i].block,
norm_out): images, HunyuanVideo and HunyuanVideo 1.5. A View holds the same modules under other
names and nothing else, so whatever casts or moves them does so here, too.
"""

from __future__ import annotations

from typing import Any

from hy3d_rocm.decode.families.original_latent_diffusion import latent_diffusion_view
from hy3d_rocm.decode.families.original_ltx import ltx_view
from hy3d_rocm.decode.families.original_wan import wan_view
from hy3d_rocm.decode.families.views import View


def view_of(vae: Any) -> View | None:
    """`vae` under diffusers' names, None where its layout is none of these.

    StrangeModuleError or AttributeError where it has a layout's marks and not its parts.
    """
    decoder = vae.decoder
    if all(hasattr(decoder, n) for n in ("conv1", "middle", "upsamples", "head")):
        return wan_view(vae)
    if all(hasattr(decoder, n) for n in ("conv_in", "up_blocks", "causal", "conv_norm_out")):
        return ltx_view(vae)
    if all(hasattr(decoder, n) for n in ("conv_in", "mid", "up", "norm_out", "conv_out")):
        return latent_diffusion_view(vae)
    return None
