"""docs/architecture.md: its table of packages is what their docstrings say."""

from __future__ import annotations

import importlib.util

from places import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
_SPEC = importlib.util.spec_from_file_location("folders", ROOT / "tools/site/folders.py")
assert _SPEC is not None
folders = importlib.util.module_from_spec(_SPEC)
assert _SPEC.loader is not None
_SPEC.loader.exec_module(folders)


def test_the_table_of_packages_is_what_their_docstrings_say() -> None:
    assert folders.page(PAGE) == PAGE, "make it anew: python tools/site/folders.py"


def test_each_package_says_what_it_is_and_the_page_has_room_for_it() -> None:
    rows = [line.strip("| ").split(" | ") for line in folders.table().splitlines()[2:]]
    assert len(rows) > 20
    for folder, text in rows:
        assert 20 <= len(text) <= 110, folder
    assert len(PAGE.splitlines()) <= 120  # two pages
