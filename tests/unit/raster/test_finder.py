"""`import custom_rasterizer` and the mesh processors: ours where, and only where, the real ones
cannot be imported.

The real ones are doubles: folders on sys.path that look as the packs' and their wheels' do.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from places import ROOT

from hy3d_rocm import _native
from hy3d_rocm.diagnose.env import choices
from hy3d_rocm.raster import finder
from hy3d_rocm.raster import served as ours

NAME = "custom_rasterizer"
FAILING = {
    "a missing kernel": "from .render import rasterize",
    "a missing library": "raise OSError('libcudart.so.12: cannot open shared object file')",
    "a driver that is not there": "raise RuntimeError('Found no NVIDIA driver')",
    "a name that torch has lost": "raise AttributeError('module torch has no attribute old')",
    "a syntax of another Python": "print 'hello'",
}


def forget() -> None:
    for name in list(sys.modules):
        if name.split(".")[0] in (*finder.SERVED, "custom_rasterizer_kernel"):
            del sys.modules[name]


@pytest.fixture(name="site")
def empty_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder at the head of sys.path; no module of these names is loaded, before and after."""
    monkeypatch.setattr(_native, "available", True)
    monkeypatch.delenv(finder.VARIABLE, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    finder.uninstall()  # an earlier test's
    forget()
    importlib.invalidate_caches()
    yield tmp_path
    finder.uninstall()
    forget()


def package(site: Path, text: str, name: str = NAME, **files: str) -> Path:
    folder = site / name
    folder.mkdir()
    (folder / "__init__.py").write_text(text)
    for file, content in files.items():
        (folder / f"{file}.py").write_text(content)
    importlib.invalidate_caches()
    return folder


def load(name: str = NAME) -> ModuleType:
    return importlib.import_module(name)


def test_without_it_there_is_none(site: Path) -> None:
    with pytest.raises(ModuleNotFoundError):
        load()


@pytest.mark.parametrize("name", finder.SERVED)
def test_ours_is_served_where_there_is_none(
    site: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    finder.install()
    with caplog.at_level(logging.INFO, logger="hy3d_rocm"):
        module = load(name)
        assert load(name) is module
    assert module.__name__ == name
    if name == NAME:
        assert module.rasterize is ours.rasterize
        assert module.interpolate is ours.interpolate
    else:
        assert module.meshVerticeInpaint is ours.meshVerticeInpaint
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"hy3d_rocm: {name} is not installed: ")
    assert finder.status().served == {name: "is not installed"}
    assert importlib.util.find_spec(name) is not None


def test_the_forms_in_which_packs_import_it(site: Path) -> None:
    finder.install()
    scope: dict[str, object] = {}
    exec(
        "import custom_rasterizer as cr\n"
        "from custom_rasterizer import rasterize, interpolate\n"
        "from mesh_inpaint_processor import meshVerticeInpaint\n"
        "from mesh_processor import meshVerticeInpaint as other\n",
        scope,
    )
    assert scope["rasterize"] is ours.rasterize
    assert scope["other"] is scope["meshVerticeInpaint"]
    with pytest.raises(ModuleNotFoundError):
        load("custom_rasterizer_kernel")


def test_the_real_one_is_imported_as_without_us(site: Path) -> None:
    package(site, "from .render import rasterize\n", render="rasterize = 'theirs'\n")
    before = load()
    expected = {name: vars(before)[name] for name in ("__file__", "__path__", "rasterize")}
    loader = type(before.__loader__)
    forget()
    finder.install()
    module = load()
    assert {name: vars(module)[name] for name in expected} == expected
    assert type(module.__loader__) is loader
    assert type(module.__spec__.loader) is loader  # type: ignore[union-attr]
    assert not finder.status().served
    assert importlib.reload(module) is module
    assert module.rasterize == "theirs"


@pytest.mark.parametrize("reason", FAILING)
def test_ours_takes_the_place_of_one_that_fails(
    site: Path, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = "from . import whole\n" + FAILING[reason]
    package(site, text, render="import custom_rasterizer_kernel", whole="")
    finder.install()
    with caplog.at_level(logging.INFO, logger="hy3d_rocm"):
        module = load()
    assert module is sys.modules[NAME]
    assert module.rasterize is ours.rasterize
    assert not [name for name in sys.modules if name.startswith((f"{NAME}.", f"{NAME}_"))]
    assert not hasattr(module, "whole")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"hy3d_rocm: {NAME} cannot be imported (")


def test_an_extension_made_for_something_else_is_replaced(site: Path) -> None:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    (site / f"mesh_inpaint_processor{suffix}").write_bytes(b"no library")
    importlib.invalidate_caches()
    with pytest.raises(ImportError):
        load("mesh_inpaint_processor")
    finder.install()
    found = load("mesh_inpaint_processor")
    assert found.meshVerticeInpaint is ours.meshVerticeInpaint
    assert sys.modules["mesh_inpaint_processor"] is found


@pytest.mark.parametrize("loaded_before", [False, True])
def test_a_folder_without_code_is_not_the_real_one(site: Path, loaded_before: bool) -> None:
    (site / NAME).mkdir()
    package(site / NAME, "inner = 'theirs'")
    importlib.invalidate_caches()
    if loaded_before:
        assert not hasattr(load(), "rasterize")
    finder.install()
    assert load().rasterize is ours.rasterize
    # What lies in that folder is found as before.
    assert load(f"{NAME}.{NAME}").inner == "theirs"


def test_a_folder_whose_modules_are_in_use_stays_what_it_was(site: Path) -> None:
    (site / NAME).mkdir()
    package(site / NAME, "inner = 'theirs'")
    importlib.invalidate_caches()
    inner = load(f"{NAME}.{NAME}")
    finder.install()
    assert load(f"{NAME}.{NAME}") is inner
    assert load() is sys.modules[NAME]


def test_uninstalled_python_finds_what_has_come_meanwhile(site: Path) -> None:
    finder.install()
    held = load()
    package(site, "rasterize = 'theirs'")
    assert load() is held
    finder.uninstall()
    assert load().rasterize == "theirs"
    assert held.rasterize is ours.rasterize
    assert not any(isinstance(entry, finder._Finder) for entry in sys.meta_path)
    finder.uninstall()  # again is nothing


def test_uninstalled_there_is_none_again(site: Path) -> None:
    finder.install()
    load()
    finder.uninstall()
    with pytest.raises(ModuleNotFoundError):
        load()
    assert finder.status() == finder.Installed(False, "it is not installed", {})


def test_a_reload_takes_the_real_one_once_it_is_there(site: Path) -> None:
    finder.install()
    module = load()
    package(site, "rasterize = 'theirs'")
    assert importlib.reload(module).rasterize == "theirs"


def test_there_is_one_finder(site: Path) -> None:
    finder.install()
    finder.install()
    assert len([entry for entry in sys.meta_path if isinstance(entry, finder._Finder)]) == 1
    assert finder.status() == finder.Installed(True, "it is installed", {})


@pytest.mark.parametrize("value", ["off", " OFF "])
def test_switched_off_by_the_variable_nothing_is_served(
    site: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder.install()
    monkeypatch.setenv(finder.VARIABLE, value)
    with pytest.raises(ModuleNotFoundError):
        load()
    assert finder.status() == finder.Installed(False, "HY3D_RASTER=off", {})
    monkeypatch.setenv(finder.VARIABLE, "on")
    assert load().rasterize is ours.rasterize


def test_a_misspelt_variable_is_one_line_and_what_is_missing_is_served(
    site: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(choices, "_said", set())
    monkeypatch.setenv(finder.VARIABLE, "of")
    with caplog.at_level(logging.WARNING, "hy3d_rocm"):
        finder.install()
        assert load().rasterize is ours.rasterize
    assert caplog.messages == [
        "hy3d_rocm: HY3D_RASTER is 'of' and is passed over; give one of on, off"
    ]


def test_switched_off_by_the_caller_nothing_is_served(site: Path) -> None:
    finder.install(lambda: False)
    with pytest.raises(ModuleNotFoundError):
        load()
    assert not finder.status().active
    finder.install(lambda: True)
    assert load().rasterize is ours.rasterize


def test_a_question_that_fails_is_answered_with_yes(site: Path) -> None:
    def broken() -> bool:
        raise RuntimeError("settings")

    assert finder.install(broken).active
    assert load().rasterize is ours.rasterize


def test_without_the_c_core_nothing_is_served_and_one_line_says_how_to_get_it(
    site: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_native, "available", False)
    finder.install()
    with caplog.at_level(logging.INFO, logger="hy3d_rocm"), pytest.raises(ModuleNotFoundError):
        load()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "pip install ." in line
    package(site, "import custom_rasterizer_kernel")
    with pytest.raises(ModuleNotFoundError, match="custom_rasterizer_kernel"):
        load()
    assert NAME not in sys.modules


def test_if_ours_fails_too_the_real_ones_error_is_seen(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(finder.SERVED, NAME, ("nothing",))
    package(site, "raise OSError('theirs')")
    finder.install()
    with pytest.raises(OSError, match="theirs"):
        load()
    assert NAME not in sys.modules


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "MemoryError"])
def test_what_says_nothing_about_the_module_goes_on(site: Path, error: str) -> None:
    package(site, f"raise {error}()")
    finder.install()
    with pytest.raises((KeyboardInterrupt, MemoryError)):
        load()
    assert NAME not in sys.modules


def test_a_finder_of_others_that_raises_is_not_made_worse(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == NAME:
                raise ValueError("broken finder")

    finder.install()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Broken()])
    with pytest.raises(ValueError, match="broken finder"):
        load()


def test_threads_that_import_at_once_get_one_module(site: Path) -> None:
    package(site, "import time; time.sleep(0.05); raise OSError('no')")
    finder.install()
    found: list[ModuleType] = []
    threads = [threading.Thread(target=lambda: found.append(load())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 8
    assert len({id(module) for module in found}) == 1


def test_a_fresh_process_uses_the_real_one(site: Path) -> None:
    package(site, "rasterize = 'theirs'")
    code = (
        "import sys, hy3d_rocm.raster as r; r.install(); sys.path.insert(0, sys.argv[1]);"
        "import custom_rasterizer as c; assert c.rasterize == 'theirs', c"
    )
    subprocess.run([sys.executable, "-c", code, str(site)], cwd=ROOT, check=True, timeout=60)
