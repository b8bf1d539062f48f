"""The demo's report.html: one file, no other file or server needed."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from examples.demo.timeline import TIER_NAMES
from hy3d_rocm.units import MB

STYLE = """
:root { color-scheme: light; --ink: #1e2228; --quiet: #6b7280; --line: #e5e7eb; --good: #0f766e; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: #fafaf8;
       max-width: 1120px; margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { margin-top: 2.4rem; font-size: 1.2rem; }
p.lead, figcaption, .note { color: var(--quiet); }
.figures { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.4rem 0; }
.figure { flex: 1 1 150px; background: #fff; border: 1px solid var(--line); border-radius: 10px;
          padding: .8rem 1rem; }
.figure b { display: block; font-size: 1.45rem; color: var(--good); }
figure { margin: 1rem 0; } img, video { max-width: 100%; border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; padding: .35rem .7rem; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.row { display: flex; gap: .8rem; flex-wrap: wrap; } .row figure { margin: 0; }
code, pre { font-size: .88rem; background: #f1f1ee; border-radius: 6px; }
pre { padding: .8rem 1rem; overflow-x: auto; } code { padding: .1rem .3rem; }
"""


def escape(value: object) -> str:
    return html.escape(str(value))


def data_uri(path: Path) -> str:
    """The file as a data: address; the kind follows its suffix."""
    kinds = {".png": "image/png", ".jpg": "image/jpeg", ".mp4": "video/mp4"}
    return f"data:{kinds[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def figure_box(value: str, caption: str) -> str:
    return f'<div class="figure"><b>{escape(value)}</b>{escape(caption)}</div>'


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """An HTML table; cells that are numbers are set right-aligned."""

    def cell(value: object) -> str:
        number = is_number(value)
        text = f"{value:.2f}" if isinstance(value, float) else escape(value)
        return f'<td class="number">{text}</td>' if number else f"<td>{text}</td>"

    lines = [list(row) for row in rows]
    numeric = [is_number(value) for value in lines[0]] if lines else []
    classes = [' class="number"' if right else "" for right in numeric]
    names = zip(head, classes, strict=True) if lines else ((name, "") for name in head)
    header = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in names)
    body = "".join(f"<tr>{''.join(cell(value) for value in row)}</tr>" for row in lines)
    return f"<table><tr>{header}</tr>{body}</table>"


def headline_figures(report: Mapping[str, Any]) -> str:
    whole, protected, psnr = report["whole"], report["protected"], report["psnr_db"]
    share = protected["peak_bytes"] / whole["peak_bytes"]
    return "".join(
        (
            figure_box(f"{whole['peak_bytes'] / MB:.0f} MB", "peak of the whole decode"),
            figure_box(
                f"{protected['peak_bytes'] / MB:.0f} MB", f"peak protected ({share:.0%} of it)"
            ),
            figure_box(f"{report['budget_bytes'] / MB:.0f} MB", "budget given"),
            figure_box(f"{psnr['protected_vs_whole']:.1f} dB", "protected against whole (PSNR)"),
            figure_box(f"{protected['failures']}", "convolution failures survived"),
            figure_box(
                f"{whole['seconds']:.1f} s / {protected['seconds']:.1f} s",
                "whole / protected decode",
            ),
        )
    )


def ladder_table(protected: Mapping[str, Any]) -> str:
    rows = (
        (TIER_NAMES.get(tier, tier), entry["calls"], entry["failures"], float(entry["seconds"]))
        for tier, entry in protected["tiers"].items()
    )
    return table(("tier", "calls", "failures", "seconds"), rows)


def describe_plan(decode: Mapping[str, Any]) -> str:
    """The plan of a decode report as sentences: what was taken, why, and what it was to take."""
    told = f"{str(decode['strategy']).capitalize()}: {str(decode['reason']).rstrip('.')}."
    if decode.get("estimate_error") is not None:
        told += f" GroupNorm statistics were {decode['estimate_error']:.1%} off at most."
    return told


def delight_section(delight: Mapping[str, Any], pictures: Iterable[Path]) -> str:
    facts = table(("what", "value"), ((key, value) for key, value in delight.items()))
    shown = "".join(
        f'<figure><img src="{data_uri(path)}" alt="{escape(path.stem)}"></figure>'
        for path in pictures
    )
    return (
        "<h2>Hunyuan3D: one device, one generator</h2><p>A tiny InstructPix2Pix pipeline with "
        "<b>random weights</b> (so its pictures are noise on purpose), called through "
        "<code>PipelineProxy</code> on three photographs as Hy3DDelightImage calls the real "
        f'one.</p>{facts}<div class="row">{shown}</div>'
    )


def write_report(path: Path, report: Mapping[str, Any], folder: Path) -> None:
    """Write `path` from the demo's report dictionary and the pictures it made in `folder`."""
    clip, protected = report["clip"], report["protected"]
    events = "".join(f"{escape(line)}\n" for line in protected["log"])
    delight_pictures = [folder / name for name in report["delight"]["files"]]
    path.write_text(
        f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>hy3d_rocm demo</title>
<style>{STYLE}</style></head><body>
<h1>A video decoded through failing convolutions</h1>
<p class="lead">{escape(clip["text"])}. Decoded twice from the same latents, each in a fresh
process: whole, and within {report["budget_bytes"] / MB:.0f} MB while the convolution back-ends
failed with MIOpen's own error texts (injected) and every convolution ended in the C conv3d.</p>
<div class="figures">{headline_figures(report)}</div>
<figure><video src="{data_uri(folder / "comparison.mp4")}" controls loop muted autoplay></video>
<figcaption>source, whole, protected</figcaption></figure>
<figure><img src="{data_uri(folder / "contact_sheet.jpg")}" alt="contact sheet"></figure>
<h2>Where memory and time went</h2>
<figure><img src="{data_uri(folder / "timeline.png")}" alt="timeline"></figure>
{ladder_table(protected)}
<h2>What the router said</h2><pre>{events}</pre>
<h2>The plan</h2><p>{escape(describe_plan(protected["decode"]))}</p>
{delight_section(report["delight"]["facts"], delight_pictures)}
<h2>This machine</h2>{table(("what", "value"), report["machine"].items())}
<p class="note">Memory is the peak above what the process held after loading the model. PSNR is
over pixels in 0..1. No AMD GPU was used: these are CPU figures of this machine.
Made by <code>{escape(report["command"])}</code>.</p>
</body></html>
"""
    )
