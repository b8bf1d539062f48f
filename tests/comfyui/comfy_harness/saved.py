"""A workflow as the browser saves it, turned into a prompt as the browser would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from comfy_harness.server import Prompt

WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
AFTER_SEED = ("fixed", "increment", "decrement", "randomize")
Info = Mapping[str, Any]


def to_prompt(workflow: Mapping[str, Any], object_info: Info) -> Prompt:
    """The prompt of a saved workflow; KeyError or ValueError, in words, if it does not fit.

    Saved values are a list by position, so a node whose inputs changed their order would get the
    wrong ones. Values that are not saved are left to the node's defaults.
    """
    links = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
    prompt = {}
    for saved in workflow["nodes"]:
        if saved["type"] not in object_info:
            raise KeyError(f"there is no node {saved['type']}")
        inputs = dict(_values(saved, object_info[saved["type"]]))
        for socket in saved.get("inputs", []):
            if socket.get("link") is not None:
                inputs[socket["name"]] = links[socket["link"]]
        prompt[str(saved["id"])] = {"class_type": saved["type"], "inputs": inputs}
    return prompt


def _values(saved: Mapping[str, Any], info: Info) -> Iterator[tuple[str, Any]]:
    """The saved widget values of one node by name."""
    values = list(saved.get("widgets_values") or [])
    for name, spec in _inputs(info):
        if not values:
            return
        if not is_widget(spec):
            continue
        yield name, values.pop(0)
        options = spec[1] if len(spec) > 1 else {}
        seed = name in ("seed", "noise_seed") and values and values[0] in AFTER_SEED
        if seed or (values and options.get("image_upload")):
            values.pop(0)  # what the browser adds: "fixed" after a seed, "image" after a file
    if values:
        raise ValueError(f"{saved['type']} has values left over: {values}")


def _inputs(info: Info) -> Iterator[tuple[str, Any]]:
    for part in ("required", "optional"):
        yield from info["input"].get(part, {}).items()


def is_widget(spec: Any) -> bool:
    """Whether an input is set in the node itself, not by a link."""
    options = spec[1] if len(spec) > 1 else {}
    return (isinstance(spec[0], list) or spec[0] in WIDGETS) and not options.get("forceInput")


def inputs_in_order(info: Info) -> list[str]:
    return [name for name, _spec in _inputs(info)]
