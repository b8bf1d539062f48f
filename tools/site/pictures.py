"""Draws docs/images/layers.svg and one_decode.svg, and the icon and the banner for ComfyUI's
registry, for which the package must be built: python tools/site/pictures.py"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
FONT = "font-family='DejaVu Sans, Helvetica, Arial, sans-serif'"
DOOR, LOGIC, BINDING, CORE, DEVICE = "#fde2e0", "#e3ecfa", "#fff3d6", "#dff3e4", "#ece4f7"


class Picture:
    def __init__(self, width: int, height: int) -> None:
        self.size = (width, height)
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: str, size: int = 13, weight: str = "normal") -> None:
        self.parts.append(
            f"<text x='{x:g}' y='{y:g}' font-size='{size}' font-weight='{weight}' fill='#222'"
            f" text-anchor='middle' {FONT}>{escape(words)}</text>"
        )

    def box(self, x: int, y: int, width: int, height: int, colour: str, *lines: str) -> None:
        """A box whose first line is its name, the others in smaller letters below it."""
        self.parts.append(
            f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='{colour}'"
            " stroke='#666'/>"
        )
        top = y + height / 2 - (len(lines) - 1) * 7.5 + 4.5
        for number, line in enumerate(lines):
            size, weight = (13, "bold") if number == 0 else (11, "normal")
            self.text(x + width / 2, top + 15.5 * number, line, size, weight)

    def line(self, x1: int, y1: int, x2: int, y2: int) -> None:
        self.parts.append(
            f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='#444' stroke-width='1.5'/>"
        )

    def arrow(self, x1: int, y1: int, x2: int, y2: int) -> None:
        self.parts.append(
            f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='#444' stroke-width='1.5'"
            " marker-end='url(#head)'/>"
        )

    def write(self, name: str) -> None:
        width, height = self.size
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'"
            f" width='{width}' height='{height}'><defs><marker id='head' viewBox='0 0 8 8' refX='7'"
            " refY='4' markerWidth='7' markerHeight='7' orient='auto'><path d='M0 0L8 4L0 8z'"
            " fill='#444'/></marker></defs>"
            f"<rect width='{width}' height='{height}' fill='white'/>"
        )
        (IMAGES / name).write_text(
            "\n".join([head, *self.parts, "</svg>"]) + "\n", encoding="utf-8"
        )


# fmt: off
def layers() -> None:
    """Who stands on whom: each row uses only the rows below it."""
    p = Picture(960, 500)
    p.box(20, 20, 440, 70, DOOR, "comfy/", "nodes, corrections of other packs, settings",
          "the only place that imports ComfyUI")
    p.box(480, 20, 220, 70, DOOR, "cli/", "hy3d-rocm decode,", "doctor, diagnose, tune ...")
    p.box(720, 20, 220, 70, DOOR, "your Python", "decode(), protect(),", "PipelineProxy")
    p.box(20, 125, 175, 90, LOGIC, "decoding/", "family: a VAE's layers",
          "program: from the C core", "interpreter: a step each")
    p.box(210, 125, 175, 90, LOGIC, "conv/", "router: asks, carries out", "verdict store: SQLite",
          "probe: tried in a child")
    p.box(400, 125, 170, 90, LOGIC, "pipeline, device, seed", "one generator, offload/,",
          "framepack/")
    p.box(585, 125, 170, 90, LOGIC, "raster/", "the texture stage's",
          "modules, drawing a mesh")
    p.box(770, 125, 170, 90, LOGIC, "diagnose/", "logs, doctor, variables:",
          "rules as data, no torch")
    p.box(20, 250, 365, 55, DEVICE, "torch, and Triton kernels",
          "conv/triton, decoding/backends/triton, raster/gpu")
    p.box(400, 250, 540, 55, BINDING, "_native.py -> _core (csrc/python)",
          "arrays without a copy, sentences for errors; twins in _fallback/")
    parts = (("conv3d", "plan, run"), ("moments", "GroupNorm"), ("schedule", "programs"),
             ("route", "tiers, cache"), ("raster", "coverage"), ("seed", "Philox"))
    for number, (name, words) in enumerate(parts):
        p.box(400 + 91 * number, 340, 85, 50, CORE, name, words)
    p.box(400, 410, 265, 70, CORE, "kernels", "ref, AVX2, AVX-512: the same bits",
          "one list drives all three")
    p.box(675, 410, 265, 70, CORE, "base", "context, memory, threads, BLAS,",
          "cancel: one owner each")
    p.text(200, 372, "C core: no Python, no mutable static,", 12)
    p.text(200, 390, "include/hy3d is its public face", 12)
    rows = ((90, 123, (240, 590, 830)), (215, 248, (107, 297, 485, 670)),
            (305, 338, (442, 533, 624, 715, 806, 897)), (390, 408, (532, 807)))
    for top, bottom, columns in rows:
        for x in columns:
            p.arrow(x, top, x, bottom)
    p.write("layers.svg")


def one_decode() -> None:
    """One decode from the outside in, and where it goes when something fails."""
    p = Picture(960, 470)
    p.box(20, 30, 130, 60, DOOR, "latents", "and a budget")
    p.box(190, 20, 190, 80, LOGIC, "family", "the VAE's layers, known", "by structure")
    p.box(420, 20, 220, 80, LOGIC, "schedule", "the C core compiles",
          "candidates to programs")
    p.box(680, 20, 260, 80, LOGIC, "interpreter", "carries the program out,",
          "one step after the other")
    for x in (150, 380, 640):
        p.arrow(x, 60, x + 38, 60)
    p.text(195, 160, "the fastest that fits;", 12)
    p.text(195, 176, "a failure goes one to the right", 12)
    p.arrow(530, 100, 530, 138)
    ways = (("whole", "its own code"), ("streamed", "exact"), ("tiled", "in space, too"),
            ("cpu", "C conv3d"))
    for number, (name, words) in enumerate(ways):
        p.box(363 + 115 * number, 140, 105, 50, BINDING, name, words)
        if number:
            p.arrow(353 + 115 * number, 165, 362 + 115 * number, 165)
    p.arrow(850, 100, 850, 223)
    p.text(888, 165, "a step", 11)
    p.box(680, 225, 260, 60, LOGIC, "backend", "one layer on some frames:",
          "fused (Triton), native (C), torch")
    p.arrow(678, 255, 642, 255)
    p.box(420, 225, 220, 60, LOGIC, "protect()", "routes each convolution")
    p.line(530, 285, 530, 308)
    p.line(90, 308, 870, 308)
    tiers = (("vendor", "MIOpen, cuDNN"), ("triton", "our kernel"), ("gemm", "matrix products"),
             ("conv2d", "2D, summed"), ("native", "in pieces"), ("cpu", "C conv3d"))
    for number, (name, words) in enumerate(tiers):
        p.arrow(90 + 156 * number, 308, 90 + 156 * number, 328)
        p.box(20 + 156 * number, 330, 140, 50, DEVICE, name, words)
        if number:
            p.arrow(4 + 156 * number, 355, 19 + 156 * number, 355)
    notes = ("the cheapest that is healthy and fits comes first; an error, a wrong first result or"
             " too little memory goes to the next",
             "unproven shapes of a vendor library are tried in a child process first, since a hang"
             " cannot be caught",
             "what was measured and what failed is kept for the next decode")
    for number, words in enumerate(notes):
        p.text(480, 405 + 18 * number, words, 12)
    p.write("one_decode.svg")
# fmt: on


def registry() -> None:
    """The knot that `hy3d-rocm render` draws without a file. A banner is 21:9."""
    sys.path.insert(0, str(ROOT))
    from matplotlib import font_manager
    from PIL import Image, ImageDraw, ImageFont

    from examples.render import draw, made, maps, views_around

    side = 400
    drawing = draw(made.make_mesh("knot"), views_around(1, elevation=25, fov=30)[0],
                   (side, side), supersample=4)  # fmt: skip
    kinds = (maps.normal_map, maps.position_map, maps.shaded_map)
    knots = [Image.fromarray(draws(drawing, background=None)) for draws in kinds]
    knots[2].save(IMAGES / "icon.png", optimize=True)
    banner = Image.new("RGB", (1260, 540), "#16181d")
    for number, knot in enumerate(knots):
        small = knot.resize((370, 370), Image.Resampling.LANCZOS)
        banner.paste(small, (55 + 390 * number, 20), small)
    write = ImageDraw.Draw(banner)
    for words, size, bold, top, colour in (
        ("hy3d_rocm", 64, True, 400, "#ffffff"),
        ("Hunyuan3D and FramePack on AMD GPUs", 34, False, 478, "#c8ccd4"),
    ):
        face = font_manager.findfont(
            font_manager.FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")
        )
        font = ImageFont.truetype(face, size)
        write.text((630, top), words, colour, font, anchor="ma")
    banner.save(IMAGES / "banner.png", optimize=True)


if __name__ == "__main__":
    layers()
    one_decode()
    registry()
