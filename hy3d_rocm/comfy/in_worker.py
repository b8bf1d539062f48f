"""What a process that decodes with ComfyUI (decoding/workers.py) does first, before anything of
ComfyUI's is imported."""

from __future__ import annotations

from typing import Any


def prepare(options: dict[str, Any]) -> None:
    """ComfyUI's modules, of which VAEs are made, find the options that the server was started with.
    No server is started."""
    import comfy.cli_args

    vars(comfy.cli_args.args).update(options)
