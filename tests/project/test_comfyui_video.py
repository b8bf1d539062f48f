"""The prompts with video of tests/comfyui, and what its runs need; no ComfyUI here."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from places import TESTS

HARNESS = TESTS / "comfyui"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(HARNESS))
    yield
    for name in [name for name in sys.modules if name.startswith(("comfy_harness", "run"))]:
        del sys.modules[name]


def prompts() -> dict[str, Any]:
    from comfy_harness import video_graphs as graphs
    from comfy_harness.graphs import node

    shelf = Path("shelf")
    made = {"framepack": graphs.framepack(shelf)}
    made["ours"] = graphs.framepack(shelf, keep=True, decode=graphs.OURS["decode"])
    for kind in graphs.SIZES:
        made[kind] = graphs.through_vae(kind, graphs.CORE, shelf)
        made[f"checked {kind}"] = graphs.with_encode_check(
            graphs.with_check(made[kind], "decode"), "encode"
        )
    for kind, (loader, nodes) in graphs.WRAPPERS.items():
        first = node("HarnessFaults", faults="current:*:*:nan")
        made[kind] = graphs.through_vae(kind, nodes, shelf, first=first, loader=loader)
    return made


def test_every_link_of_a_prompt_leads_to_a_node_of_it() -> None:
    for name, prompt in prompts().items():
        for one in prompt.values():
            links = [value for value in one["inputs"].values() if isinstance(value, list)]
            assert all(link[0] in prompt for link in links), (name, one)


def test_every_decode_and_encode_is_run_anew_when_only_a_setting_changed() -> None:
    """ComfyUI's cache knows nothing of the settings: one node before each is never cached."""
    anew = {"HarnessFresh", "HarnessFaults"}
    for name, prompt in prompts().items():
        for key, one in prompt.items():
            if "ecode" in one["class_type"] or "VAEEncode" in one["class_type"]:
                assert anew & set(before(prompt, key)), (name, key)


def before(prompt: dict[str, Any], key: str) -> list[str]:
    """The classes of all that node `key` depends on."""
    found = []
    for value in prompt[key]["inputs"].values():
        if isinstance(value, list):
            found += [prompt[value[0]]["class_type"], *before(prompt, value[0])]
    return found


def test_what_a_scenario_needs_is_an_option_and_is_said_where_it_is_missing() -> None:
    import run
    from comfy_harness.context import VIDEO_PACKS
    from comfy_harness.scenarios import NEEDS, SCENARIOS

    assert set(NEEDS) <= set(SCENARIOS)
    assert {option for needed in NEEDS.values() for option in needed} <= {*VIDEO_PACKS, "wheels"}
    given = Namespace(framepack=Path("here"), wan=None, hunyuanvideo=None, wheels=None)
    assert run.lacking("manager", given) == ["wheels"]
    assert run.lacking("growth", given) == []
    assert run.lacking("wrapper_vaes", given) == ["wan", "hunyuanvideo"]
    assert run.lacking("vaes", given) == []


def test_the_injected_faults_are_ones_that_the_library_can_read() -> None:
    from comfy_harness.scenarios import vae_faults, wrapper_vaes

    from hy3d_rocm.conv.faults import parse

    for text in (*vae_faults.FAULTS.values(), vae_faults.LATE_NAN, wrapper_vaes.FAULTS):
        assert len(parse(text)) == 1
    slow = "*:*:*:slow"
    assert parse(slow)[0].effect == "slow"


def test_the_longest_grain_is_the_largest_gap_between_two_movements_of_the_bar() -> None:
    from comfy_harness.scenarios.cancel import _longest

    assert _longest([1.0, 1.5, 4.0, 4.1]) == 2.5
    assert _longest([1.0]) is None
