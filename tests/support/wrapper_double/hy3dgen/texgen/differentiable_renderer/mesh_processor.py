"""In-painting over a mesh that says who was asked."""

ASKED = []


def meshVerticeInpaint(texture, mask, vtx_pos, vtx_uv, pos_idx, uv_idx, method="smooth"):
    ASKED.append(method)
    return texture + 1, mask
