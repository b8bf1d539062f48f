"""The page of all causes that `hy3d-rocm diagnose` knows, from its rules."""

from __future__ import annotations

import re

from hy3d_rocm.diagnose.log.machine import Machine
from hy3d_rocm.diagnose.log.rules import Rule, families

HEAD = """# Every cause it knows

What `hy3d-rocm diagnose LOG` can tell, made from its rules when this page was built. Give it the
log and it finds the one that fits; [Diagnose a log](diagnose.md) says how. "Certain" is what the
text itself says, "likely" and "possible" are told as that.
"""
MACHINE = Machine()  # no card and no system: commands in their general form
CONTAINER = Machine(shown={"container"})
SHOWN = {  # what a log shows (Rule.instead) -> heading
    "windows": "On Windows",
    "wsl": "In WSL",
    "container": "In a container",
    "decode": "In a VAE decode",
    "beside": "With a GPU in the processor beside the card",
    "gfx1151": "On gfx1151 (Strix Halo)",
    "no amd": "Where nothing in the log is AMD's",
    "no comfy": "Where ComfyUI is not in the log",
    "no zluda": "Where ZLUDA is not in the log",
    "stranger": "Where nothing in the log is AMD's or PyTorch's",
    "zluda": "With ZLUDA",
}


def plain(text: str) -> str:
    """Text in which nothing but `code` is Markdown's."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\*_<\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def entry(rule: Rule) -> str:
    lines = [f"### {plain(rule.symptom.rstrip('.'))} {{ #{rule.id} }}", plain(rule.cause)]
    do = [
        ("Do", rule.do),
        ("In a container", CONTAINER.filled(rule.do) if "{access}" in rule.do else ""),
        *((SHOWN[shown], action) for shown, action in rule.instead.items()),
    ]
    lines += [f"**{title}.** {plain(MACHINE.filled(text))}" for title, text in do if text]
    if rule.here:
        lines.append(f"**With this package.** {plain(rule.here)}")
    otherwise = MACHINE.filled(f"{rule.otherwise} {rule.linux}")
    if otherwise:
        lines.append(f"**Otherwise.** {plain(otherwise)}")
    lines.append(f"`{rule.id}`, {rule.confidence}. Read in <{rule.source}>.")
    return "\n\n".join(lines)


def page() -> str:
    parts = [HEAD]
    for title, rules in families().items():
        parts.append(f"## {title}")
        parts += [entry(rule) for rule in rules]
    return "\n\n".join(parts) + "\n"
