"""The page of the C API is what its script makes of the headers, and holds all of them."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest
from places import ROOT

HEADERS = "\n".join(
    path.read_text("utf-8") for path in sorted((ROOT / "include" / "hy3d").glob("*.h"))
)
PAGE = (ROOT / "docs" / "c_api.md").read_text("utf-8")


@pytest.fixture(scope="module")
def c_api() -> ModuleType:
    spec = importlib.util.spec_from_file_location("c_api", ROOT / "tools/site/c_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_of_the_headers_as_they_are(c_api: ModuleType) -> None:
    assert c_api.page() == PAGE, "make it anew: python tools/site/c_api.py > docs/c_api.md"


def test_every_function_and_type_is_shown_once_with_its_name_above_it() -> None:
    blocks = re.findall(r"^### (.*)\n(?:(?!^```).*\n)*```c\n((?s:.*?))^```", PAGE, re.M)
    names = re.findall(r"HY3D_API [^;(]*?(hy3d_\w+)\(", HEADERS)
    names += re.findall(r"^(?:typedef [^;{]*?|\} )(hy3d_\w+);", HEADERS, re.M)
    assert len(names) > 100
    for name in names:
        shown = [code for title, code in blocks if name in title.split(", ")]
        assert len(shown) == 1, name
        assert re.search(rf"\b{name}(\(|;)", shown[0]), name


def test_every_word_of_the_headers_comments_is_on_the_page() -> None:
    words = re.compile(r"\w+")
    comments = " ".join(re.findall(r"/\*(?s:.*?)\*/", HEADERS))
    assert set(words.findall(comments)) - set(words.findall(PAGE)) == set()


def test_names_are_marked_and_nothing_is_taken_for_markdown(c_api: ModuleType) -> None:
    comment = "/* Of x_out: *y_out = a[0] * b < c,\n *   - one `d_e`\n *   - two\n *\n * End. */"
    assert c_api.prose(comment) == (
        "Of `x_out`: `*y_out` = `a[0]` \\* b \\< c,\n\n- one `d_e`\n\n- two\n\nEnd."
    )
