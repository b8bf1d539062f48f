"""Fixtures that files of tests ask for by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def nothing_remembered() -> Iterator[None]:
    """The router before and after as a new process has it; one thread, no gradients."""
    import torch
    from router_doubles import one_thread
    from torch.overrides import _get_current_function_mode_stack

    from hy3d_rocm.conv import forget

    forget()
    with one_thread(), torch.inference_mode():
        yield
    forget()
    assert _get_current_function_mode_stack() == [], "a mode was left behind"
