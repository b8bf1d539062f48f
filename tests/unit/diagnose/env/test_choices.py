"""Settings: environment, then ComfyUI's file, then defaults; whatever is wrong costs one line."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hy3d_rocm.diagnose.env import choices

VARIABLES = (
    "HY3D_ROCM_SEED_MODE", "HY3D_ROCM_OFFLOAD", "HY3D_ROCM_VAE", "HY3D_ROCM_VAE_BUDGET",
    "HY3D_ROCM_VAE_DEVICES", "HY3D_ROCM_PROTECT_PROMPTS",
)  # fmt: skip


def module(name: str, **attributes: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(attributes)
    return made


@pytest.fixture
def args(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """ComfyUI's command line; its user directory is tmp_path."""
    made = SimpleNamespace(multi_user=False)
    for stand_in in (
        module("folder_paths", get_user_directory=lambda: str(tmp_path)),
        module("comfy"), module("comfy.cli_args", args=made),
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(choices, "_said", set())
    sys.modules.pop("hy3d_rocm.comfy.settings", None)
    yield made
    sys.modules.pop("hy3d_rocm.comfy.settings", None)


@pytest.fixture
def settings(args: SimpleNamespace) -> ModuleType:
    return importlib.import_module("hy3d_rocm.comfy.settings")


@pytest.fixture
def save(tmp_path: Path) -> Callable[[object], None]:
    """Writes the settings file as the server does, each time with a later modification time."""
    times = iter(range(1_000_000_000, 2_000_000_000))

    def write(content: object) -> None:
        path = tmp_path / "default" / "comfy.settings.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        os.utime(path, (now := next(times), now))

    return write


Save = Callable[[object], None]


def test_without_a_file_the_defaults_hold(settings: ModuleType) -> None:
    assert settings.current() == settings.Settings("stream", "auto", frozenset())


def test_the_file_of_the_default_user_counts_and_is_read_again_after_a_change(
    settings: ModuleType, save: Save
) -> None:
    save({"hy3d_rocm.seed_mode": "legacy", "hy3d_rocm.offload": "on", "Comfy.Other": 3})
    assert settings.current() == settings.Settings("legacy", "on", frozenset())
    save({"hy3d_rocm.seed_mode": "stream", "hy3d_rocm.patch.mesh": False,
          "hy3d_rocm.patch.render": True})  # fmt: skip
    assert settings.current() == settings.Settings("stream", "auto", frozenset({"mesh"}))


def test_an_unchanged_file_is_not_read_twice(
    settings: ModuleType, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path) or real(path))
    save({"hy3d_rocm.offload": "off"})
    for _ in range(5):
        assert settings.current().offload == "off"
    assert len(reads) == 1


def test_the_environment_goes_before_the_file(
    settings: ModuleType, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    save({"hy3d_rocm.seed_mode": "legacy", "hy3d_rocm.offload": "on"})
    monkeypatch.setenv("HY3D_ROCM_SEED_MODE", " Per_Image ")
    now = settings.current()
    assert (now.seed_mode, now.offload) == ("per_image", "on")
    assert settings.current({"HY3D_ROCM_OFFLOAD": "off"}).offload == "off"
    told = settings.explained()
    assert "seed_mode: per_image (HY3D_ROCM_SEED_MODE in the environment)" in told
    assert "offload: on (ComfyUI's settings)" in told


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"hy3d_rocm.seed_mode": "leg', "cannot be read"),
        ("[1, 2]", "holds no settings but a list"),
        ({"hy3d_rocm.seed_mode": "random"}, "hy3d_rocm.seed_mode is 'random' and is passed over"),
        ({"hy3d_rocm.offload": 1}, "hy3d_rocm.offload is 1 and is passed over"),
        ({"hy3d_rocm.offload": ["on"]}, "hy3d_rocm.offload is ['on'] and is passed over"),
        ({"hy3d_rocm.patch.mesh": "no"}, "give one of true, false"),
        ({"hy3d_rocm.vae": "all"}, "hy3d_rocm.vae is 'all' and is passed over; give one of off"),
        ({"hy3d_rocm.vae_budget": "6 parsecs"}, "hy3d_rocm.vae_budget is passed over: budget"),
        ({"hy3d_rocm.vae_budget": 6}, "hy3d_rocm.vae_budget is 6 and is passed over"),
        ({"hy3d_rocm.protect_prompts": "yes"}, "give one of true, false"),
    ],
)
def test_what_is_broken_or_wrong_is_the_default_and_one_line_once(
    settings: ModuleType, save: Save, caplog: pytest.LogCaptureFixture, content: object, told: str
) -> None:
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            save(content)
            assert settings.current() == settings.Settings("stream", "auto", frozenset())
    assert len(caplog.records) == 1
    assert told in caplog.text


def test_settings_of_a_newer_version_keep_the_rest_as_it_is(
    settings: ModuleType, save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    """A mode that this version lacks costs one line; settings and patches that it lacks, none."""
    save({
        "hy3d_rocm.vae": "sharded", "hy3d_rocm.offload": "on", "hy3d_rocm.patch.mesh": False,
        "hy3d_rocm.patch.of-a-later-version": {"on": True}, "hy3d_rocm.tiles": [1, 2],
        "hy3d_rocm": None, "Comfy.Locale": "zh",
    })  # fmt: skip
    for _ in range(2):
        assert settings.current() == settings.Settings("stream", "on", frozenset({"mesh"}))
    [line] = caplog.records
    assert line.getMessage() == (
        "hy3d_rocm: ComfyUI's setting hy3d_rocm.vae is 'sharded' and is passed over; give one of "
        "off, protect, full, cpu"
    )


def test_a_wrong_variable_falls_back_to_the_file(
    settings: ModuleType, save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    save({"hy3d_rocm.offload": "on"})
    for _ in range(2):
        assert settings.current({"HY3D_ROCM_OFFLOAD": "maybe"}).offload == "on"
    assert len(caplog.records) == 1
    assert "HY3D_ROCM_OFFLOAD is 'maybe' and is passed over; give one of off, auto" in caplog.text


def test_a_file_caught_between_truncation_and_write_keeps_what_was_known(
    settings: ModuleType, save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    save({"hy3d_rocm.offload": "on"})
    assert settings.current().offload == "on"
    save("")
    assert settings.current().offload == "on"
    save({"hy3d_rocm.offload": "off"})
    assert settings.current().offload == "off"
    assert not caplog.records


def test_with_several_users_no_file_is_read_and_one_line_says_so(
    settings: ModuleType, save: Save, args: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    args.multi_user = True
    save({"hy3d_rocm.offload": "on"})
    for _ in range(2):
        assert settings.current().offload == "auto"
    assert settings.current({"HY3D_ROCM_OFFLOAD": "on"}).offload == "on"
    assert len(caplog.records) == 1
    assert "--multi-user" in caplog.text


def test_a_fingerprint_changes_exactly_with_what_it_names(settings: ModuleType, save: Save) -> None:
    before = settings.fingerprint("seed_mode", "mesh")
    save({"hy3d_rocm.offload": "on", "hy3d_rocm.patch.render": False})
    assert settings.fingerprint("seed_mode", "mesh") == before == "seed_mode=stream,mesh=on"
    everything = settings.fingerprint()
    save({"hy3d_rocm.offload": "on", "hy3d_rocm.patch.mesh": False})
    assert settings.fingerprint("seed_mode", "mesh") == "seed_mode=stream,mesh=off"
    assert settings.fingerprint() != everything
    with pytest.raises(KeyError):
        settings.fingerprint("nonsense")


def test_a_nodes_own_choice_goes_before_everything(settings: ModuleType, save: Save) -> None:
    save({"hy3d_rocm.seed_mode": "legacy", "hy3d_rocm.offload": "on"})
    assert settings.seed_mode_for("setting") == "legacy"
    assert settings.seed_mode_for("stream") == "stream"
    assert settings.offload_for("setting") == "on"
    assert settings.offload_for("off") == "off"
    with pytest.raises(ValueError, match="offload is 'maybe'; give one of setting, off"):
        settings.offload_for("maybe")


def test_outside_of_comfyui_the_defaults_hold(
    settings: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "folder_paths", None)
    assert settings.current() == settings.Settings("stream", "auto", frozenset())


def test_the_variables_of_the_settings_are_those_that_this_file_clears(
    settings: ModuleType,
) -> None:
    assert tuple(settings.VARIABLES.values()) == VARIABLES


def test_the_vae_settings_come_from_the_file_and_before_it_from_the_environment(
    settings: ModuleType, save: Save
) -> None:
    save({"hy3d_rocm.vae": "full", "hy3d_rocm.vae_budget": " 6GB ",
          "hy3d_rocm.protect_prompts": True})  # fmt: skip
    now = settings.current()
    assert (now.vae, now.vae_budget, now.protect_prompts) == ("full", "6GB", True)
    environ = {"HY3D_ROCM_VAE": "Off", "HY3D_ROCM_VAE_BUDGET": "80%",
               "HY3D_ROCM_PROTECT_PROMPTS": "0"}  # fmt: skip
    now = settings.current(environ)
    assert (now.vae, now.vae_budget, now.protect_prompts) == ("off", "80%", False)
    told = settings.explained(environ)
    assert "vae_budget: 80% (HY3D_ROCM_VAE_BUDGET in the environment)" in told
    assert "protect_prompts: off (HY3D_ROCM_PROTECT_PROMPTS in the environment)" in told
    assert "protect_prompts: on (ComfyUI's settings)" in settings.explained()


def test_the_devices_of_a_decode_are_a_setting_like_the_budget(
    settings: ModuleType, save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    assert settings.current().vae_devices == "one"
    save({"hy3d_rocm.vae_devices": " 0,1 "})
    assert settings.current().vae_devices == "0,1"
    assert settings.current({"HY3D_ROCM_VAE_DEVICES": "all"}).vae_devices == "all"
    assert settings.current({"HY3D_ROCM_VAE_DEVICES": "both"}).vae_devices == "0,1"
    assert "HY3D_ROCM_VAE_DEVICES is passed over: devices is 'both'" in caplog.text


@pytest.mark.parametrize(("word", "meant"), [("ON", True), ("yes", True), ("false", False)])
def test_a_switch_in_the_environment_takes_the_usual_words(
    settings: ModuleType, word: str, meant: bool
) -> None:
    assert settings.current({"HY3D_ROCM_PROTECT_PROMPTS": word}).protect_prompts is meant


def test_a_wrong_budget_in_the_environment_falls_back_to_the_file_with_one_line(
    settings: ModuleType, save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    save({"hy3d_rocm.vae_budget": "800MB"})
    for _ in range(2):
        assert settings.current({"HY3D_ROCM_VAE_BUDGET": "much"}).vae_budget == "800MB"
    assert settings.current({"HY3D_ROCM_PROTECT_PROMPTS": "maybe"}).protect_prompts is False
    assert len(caplog.records) == 2
    assert "HY3D_ROCM_VAE_BUDGET is passed over: budget is 'much'" in caplog.text
    assert "HY3D_ROCM_PROTECT_PROMPTS is 'maybe' and is passed over; give one of on, true" in (
        caplog.text
    )


def test_a_fingerprint_knows_the_vae_settings(settings: ModuleType, save: Save) -> None:
    names = ("vae", "vae_budget", "protect_prompts", "core-vae")
    assert settings.fingerprint(*names) == (
        "vae=protect,vae_budget=auto,protect_prompts=False,core-vae=on"
    )
    save({"hy3d_rocm.vae": "full", "hy3d_rocm.patch.core-vae": False})
    assert settings.fingerprint("vae", "core-vae") == "vae=full,core-vae=off"
