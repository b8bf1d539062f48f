"""What the tests of the verdict store share and their child processes do not need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hy3d_rocm.conv.verdict_store import store as _store
from hy3d_rocm.conv.verdict_store.store import Store


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """be_patient() for a test; imported by the modules that want it."""
    for name in ("OPEN_S", "TRY_S"):
        monkeypatch.setattr(_store, name, 60.0)


@pytest.fixture(name="path")
def new_path(tmp_path: Path) -> Path:
    """Where no file is yet, and no folder."""
    return tmp_path / "new folder" / "knowledge.db"


@pytest.fixture(name="store")
def open_store(path: Path) -> Iterator[Store]:
    """A healthy store on that path."""
    one = Store.open(path)
    assert one.trouble is None
    yield one
    one.close()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the package has logged."""
    return [r.getMessage() for r in caplog.records if r.name == "hy3d_rocm"]
