"""What the tests of the knowledge store share and their child processes do not need."""

from __future__ import annotations

import pytest

from hy3d_rocm.conv.knowledge import store


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """be_patient() for a test; imported by the modules that want it."""
    for name in ("OPEN_S", "READ_S", "TRY_S"):
        monkeypatch.setattr(store, name, 60.0)
