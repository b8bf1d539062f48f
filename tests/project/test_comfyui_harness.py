"""The parts of tests/comfyui that need no ComfyUI: a check can fail, a result is read right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from places import TESTS

HARNESS = TESTS / "comfyui"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(HARNESS))
    yield
    for name in [name for name in sys.modules if name.startswith("comfy_harness")]:
        del sys.modules[name]


def report() -> Any:
    from comfy_harness.report import Report

    return Report("stage")


def entry(*messages: tuple[str, dict[str, Any]], completed: bool = False) -> dict[str, Any]:
    status = {"completed": completed, "messages": [list(message) for message in messages]}
    return {"outputs": {"hash": {"digest": [{"items": ["a", "b"]}]}}, "status": status}


def test_a_failed_check_is_printed_counted_and_ends_in_exit_code_1(capsys: Any) -> None:
    checks = report()
    assert checks.check("holds", True)
    assert not checks.check("does not", False, "what was seen")
    assert capsys.readouterr().out.splitlines() == [
        "ok     stage: holds",
        "FAILED stage: does not; seen: what was seen",
    ]
    assert checks.summary() == "2 checks, 1 ok, 1 failed"
    assert checks.exit_code() == 1


def test_a_run_without_a_check_is_no_success() -> None:
    assert report().exit_code() == 1


def test_all_checks_ok_is_exit_code_0() -> None:
    checks = report()
    checks.equal("same", ["a"], ["a"])
    assert checks.exit_code() == 0


@pytest.mark.parametrize("seen", [None, [], ["a", "c"], "error RuntimeError"])
def test_equal_fails_for_anything_but_the_expected_hashes(seen: Any) -> None:
    checks = report()
    checks.equal("hashes", seen, ["a", "b"])
    assert checks.failures == ["stage: hashes"]


def test_nothing_seen_equals_nothing_expected_fails() -> None:
    checks = report()
    checks.equal("hashes", None, None)
    assert checks.failures


def test_differing_names_changed_and_missing_pictures() -> None:
    from comfy_harness.report import differing

    assert differing(["a", "b", "c"], ["a", "x", "c"]) == [1]
    assert differing(["a"], ["a", "b", "c"]) == [1, 2]
    assert differing(["a"], ["a"]) == []


def test_growth_counts_from_the_settled_prompt_on() -> None:
    from comfy_harness.report import growth_per_prompt

    assert growth_per_prompt([0, 500, 900, 990, 1000, 1010, 1020], settled=5) == 10.0
    with pytest.raises(ValueError, match="too few"):
        growth_per_prompt([1, 2, 3, 4, 5], settled=5)


def test_results_of_history_entries() -> None:
    from comfy_harness.server import result_of

    good = result_of(entry(("execution_cached", {"nodes": ["pipe"]}), completed=True))
    assert (good.status, good.ok, good.cached, good.items()) == (
        "success", True, ("pipe",), ["a", "b"],
    )  # fmt: skip
    failure = {"exception_type": "X", "exception_message": "y", "node_type": "Node"}
    failed = result_of(entry(("execution_error", failure)))
    assert (failed.status, failed.error, failed.error_node) == ("error", "X: y", "Node")
    assert not failed.ok
    assert result_of(entry(("execution_interrupted", {}))).status == "interrupted"
    assert not result_of({}).ok
    assert result_of({}).items() is None


def test_log_lines_of_the_pack_are_told_from_others() -> None:
    from comfy_harness.server import parse_lines

    texts = (
        '{"level": "WARNING", "logger": "hy3d_rocm", "source": "/x.py", "message": "m"}',
        '{"level": "WARNING", "logger": "root", "source": "/pack/hy3d_rocm/a.py", "message": "m"}',
        '{"level": "ERROR", "logger": "root", "source": "/comfy.py", "message": "cannot import P"}',
        '{"level": "WARNING", "logger": "root", "source": "/comfy.py", "message": "other"}',
        '{"level": "INFO", "logger": "hy3d_rocm", "source": "/x.py", "message": "m"}',
        '{"level": "PYTHON", "logger": "UserWarning", "source": "/pack/b.py", "message": "m"}',
    )
    lines = parse_lines("\n".join(texts))
    ours = [line.is_ours(("/pack/", "import P")) for line in lines]
    assert ours == [True, True, True, False, True, True]
    assert [line.is_bad for line in lines] == [True, True, True, True, False, True]


def test_new_files_are_found(tmp_path: Path) -> None:
    from comfy_harness.layout import new_files, snapshot

    (tmp_path / "old").touch()
    before = snapshot(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/new").touch()
    assert new_files(before, snapshot(tmp_path)) == ["deep/new"]


def test_a_pack_name_is_listed_where_it_is_wanted_or_refused(tmp_path: Path) -> None:
    import os

    from comfy_harness.layout import name_listed

    (tmp_path / "other").mkdir()
    names = [f"{letter}{number}" for number in range(40) for letter in "az"]
    for first in (True, False):
        name = name_listed(tmp_path, "other", first, names)
        (tmp_path / name).touch()
        listing = os.listdir(tmp_path)
        assert (listing.index(name) < listing.index("other")) is first
        (tmp_path / name).unlink()
    with pytest.raises(RuntimeError, match="no candidate"):
        name_listed(tmp_path, "other", True, [])


def test_a_copied_pack_has_no_history_and_no_native_parts(tmp_path: Path) -> None:
    from comfy_harness.layout import NATIVE, copy_pack

    source = tmp_path / "source"
    for file in (".git/HEAD", "hy3d_rocm/_core.abi3.so", "hy3d_rocm/a.py", "tests/t.py"):
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).touch()
    copied = copy_pack(source, tmp_path / "copied", NATIVE)
    assert [str(p.relative_to(copied)) for p in copied.rglob("*.*")] == ["hy3d_rocm/a.py"]


def test_prompts_link_only_to_nodes_that_they_have() -> None:
    from comfy_harness import graphs

    pipe = graphs.upstream_pipe(graphs.DELIGHT, offload="on")
    plain = graphs.delight(pipe, 3, seed_mode="legacy")
    prompts = [
        plain,
        graphs.multiview(graphs.harness_pipe("paint"), 8),
        graphs.mesh(),
        graphs.mesh_multiview(),
        graphs.render(),
        graphs.known_states(),
        graphs.behind(plain, graphs.node("Hy3DRocmSeedMode", seed_mode="per_image")),
        graphs.with_states(plain, "delight", "image"),
        graphs.with_kind(plain),
        graphs.prefixed("d", plain),
    ]
    for prompt in prompts:
        links = [v for one in prompt.values() for v in one["inputs"].values() if type(v) is list]
        assert links
        assert {link[0] for link in links} <= set(prompt)


def test_a_node_put_between_takes_the_pipelines_place() -> None:
    from comfy_harness import graphs

    plain = graphs.delight(graphs.harness_pipe("delight"), 1)
    behind = graphs.behind(plain, graphs.node("Hy3DRocmPipeline", seed_mode="legacy"))
    assert behind["between"]["inputs"]["pipeline"] == ["pipe", 0]
    assert behind["delight"]["inputs"]["delight_pipe"] == ["between", 0]
    assert plain["delight"]["inputs"]["delight_pipe"] == ["pipe", 0]


def test_steps_are_read_from_a_progress_bar() -> None:
    from comfy_harness.scenarios.endurance import steps_made

    bar = "  1%| | 2/200 [00:00<\r  2%|# | 4/200 [00:00<00:12, 15.1it/s]\n"
    assert steps_made(bar, 200) == 4
    assert steps_made("100%|###| 20/20 [00:00<", 200) == 0
    assert steps_made("", 200) == 0


def saved(values: list[Any]) -> dict[str, Any]:
    nodes = [
        {"id": 1, "type": "Load", "widgets_values": ["a.png", "image"]},
        {
            "id": 2,
            "type": "Use",
            "inputs": [{"name": "picture", "link": 5}, {"name": "free", "link": None}],
            "widgets_values": values,
        },
    ]
    return {"nodes": nodes, "links": [[5, 1, 0, 2, 0, "IMAGE"]]}


INFO = {
    "Load": {"input": {"required": {"file": [["a.png"], {"image_upload": True}]}}},
    "Use": {
        "input": {
            "required": {"picture": ["IMAGE"], "seed": ["INT", {}], "size": ["INT", {}]},
            "optional": {"free": ["MASK"], "mode": [["x", "y"]]},
        }
    },
}


def test_saved_values_get_their_names_by_position() -> None:
    from comfy_harness.saved import to_prompt

    prompt = to_prompt(saved([7, "fixed", 64]), INFO)
    assert prompt["1"]["inputs"] == {"file": "a.png"}
    assert prompt["2"]["inputs"] == {"picture": ["1", 0], "seed": 7, "size": 64}
    whole = to_prompt(saved([7, "fixed", 64, "y"]), INFO)
    assert whole["2"]["inputs"]["mode"] == "y"


def test_a_saved_workflow_that_does_not_fit_is_refused() -> None:
    from comfy_harness.saved import to_prompt

    with pytest.raises(ValueError, match="left over"):
        to_prompt(saved([7, "fixed", 64, "y", "more"]), INFO)
    with pytest.raises(KeyError, match="no node Use"):
        to_prompt(saved([7]), {"Load": INFO["Load"]})
