"""The probe's child process. Started by file path with a plain interpreter; nothing imports it.

It loads the very package it lies in, without looking at sys.path: a second, older hy3d_rocm that
stands earlier on the path must not answer for this one, and the folder above must not become
importable.
"""

from __future__ import annotations

import importlib.util
import os
import sys


def load_package() -> None:
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    entry = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(
        "hy3d_rocm", entry, submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{entry} can't be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules["hy3d_rocm"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    load_package()
    from hy3d_rocm.conv.probe import worker

    worker.main()
