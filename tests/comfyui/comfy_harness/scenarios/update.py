"""A newer version over an older one, an older one over a newer, then none: what is kept of the
settings, verdicts, captures and workflows, and what is written to."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from comfy_harness import graphs
from comfy_harness.context import OURS, PATCHED, UPSTREAM, Context
from comfy_harness.graphs import harness_pipe, node
from comfy_harness.layout import copy_pack, new_files, replace_in, snapshot
from comfy_harness.scenarios.decode import EXACT
from comfy_harness.scenarios.decode import make_prompt as decode_prompt
from comfy_harness.scenarios.removal import INSIDE, PREVIEWS, files_without
from comfy_harness.server import Server

OLDER, NEWER = "0.0.9", "99.0.0"
STORE = "home/.local/share/hy3d_rocm/knowledge.db"
SETTINGS = "user/default/comfy.settings.json"
CAPTURES = "captures/"
NO_MIGRATIONS = "MIGRATIONS: tuple[tuple[str, ...], ...] = ()"
A_MIGRATION = 'MIGRATIONS = (("ALTER TABLE records ADD COLUMN later TEXT",),)'
CHOSEN = {"hy3d_rocm.offload": "on", "hy3d_rocm.patch.mesh": False}


def run(context: Context) -> None:
    plain = files_without(context)
    base = context.new_base({UPSTREAM: context.wrapper})
    before, core = snapshot(base), snapshot(context.core)
    with _version(context, base, OLDER) as server:
        for name, value in CHOSEN.items():
            server.set(name, value)
        _works(context, server, OLDER)
        kept = _kept(context, server, put="hang")
        _expect(context, OLDER, kept, verdicts={"vendor": "hang", "triton": "hang"}, rows=2)
        context.quiet(server)
    _updated(context, base)
    _taken_back(context, base)
    made = set(new_files(before, snapshot(base))) - set(plain)
    left = sorted(name for name in made if not name.startswith((INSIDE, PREVIEWS)))
    is_ours = [name.startswith((STORE, CAPTURES)) or name == SETTINGS for name in left]
    claim = "files of ours: the store, the captures, ComfyUI's settings"
    context.report.check(claim, all(is_ours) and (base / STORE).is_file(), left)
    _removed(context, base)
    context.report.equal("ComfyUI's own folder is as it was", snapshot(context.core), core)
    shutil.rmtree(base)


def _updated(context: Context, base: Path) -> None:
    """The version at hand over an older one, then one with a new schema over that."""
    with _version(context, base, "") as server:
        _works(context, server, "updated")
        kept = _kept(context, server)
        # The vendor's library is the same; the kernels of ours may not be.
        _expect(context, "updated", kept, verdicts={"vendor": "hang"}, rows=2)
        _chosen(context, server, "updated")
        context.quiet(server)
    with _version(context, base, NEWER, step=True) as server:
        _works(context, server, "a new schema")
        kept = _kept(context, server, put="ok")
        _expect(context, "a new schema", kept, rows=4, written=True)
        server.set("hy3d_rocm.vae", "sharded")  # of that version


def _taken_back(context: Context, base: Path) -> None:
    """The version at hand over the newer one."""
    report, stored = context.report, _stored(base)
    with _version(context, base, "") as server:
        _works(context, server, "taken back")
        kept = _kept(context, server, put="error")
        _expect(context, "taken back", kept, verdicts={"vendor": "error", "triton": "error"},
                rows=2, written=False)  # fmt: skip
        _chosen(context, server, "taken back")
        said = [line.message for line in context.our_lines(server) if line.is_bad]
        store = [text for text in said if "made by a newer version of hy3d_rocm (schema 2" in text]
        mode = [text for text in said if "hy3d_rocm.vae is 'sharded' and is passed over" in text]
        one_each = (len(store), len(mode), len(said)) == (1, 1, 2)
        report.check("taken back: a line for the store and one for the setting", one_each, said)
    report.equal("taken back: the newer store is as it was", _stored(base), stored)


def _stored(base: Path) -> list[str]:
    """All that the store holds. Of its file the bytes may change where a server that was ended left
    a log of writes beside it, which SQLite takes in when the store is next opened."""
    with closing(sqlite3.connect(base / STORE)) as store:
        return list(store.iterdump())


def _removed(context: Context, base: Path) -> None:
    report = context.report
    shutil.rmtree(base / "custom_nodes" / OURS)
    kept = {name: (base / name).read_bytes() for name in (STORE, SETTINGS)}
    before = snapshot(base)
    with context.server(base=base) as server:
        result = server.run(graphs.delight(harness_pipe("delight"), 3))
        expected = context.baseline()["delight 3"]
        report.equal("removed: upstream's bits", result.items() or result.seen(), expected)
        bad = [line for line in server.lines() if line.is_bad and "hy3d" in line.message]
        report.check("removed: nothing in the log asks for the pack", not bad, bad)
    new = [name for name in new_files(before, snapshot(base)) if not name.startswith(PREVIEWS)]
    report.check("removed: no new file", not new, new)
    same = {name: (base / name).read_bytes() for name in kept} == kept
    report.check("removed: the store and the settings are as they were", same)


@contextmanager
def _version(context: Context, base: Path, version: str, step: bool = False) -> Iterator[Server]:
    """A server with a copy of the pack in place of what was there, which says that it is `version`
    ("": the pack's own). step: its store has a schema more."""
    pack = base / "custom_nodes" / OURS
    shutil.rmtree(pack, ignore_errors=True)
    copy_pack(context.pack, pack)
    if version:
        init = pack / "hy3d_rocm" / "__init__.py"
        own = next(line for line in init.read_text().splitlines() if line.startswith("__version__"))
        replace_in(init, own, f'__version__ = "{version}"')
    if step and not replace_in(
        pack / "hy3d_rocm/conv/verdict_store/database.py", NO_MIGRATIONS, A_MIGRATION
    ):
        raise RuntimeError(
            "the store's module has no MIGRATIONS that are empty: update this scenario"
        )
    environ = {**PATCHED, "HY3D_ROCM_CAPTURE": str(base / CAPTURES)}
    with context.server(base=base, environ=environ) as server:
        yield server


def _works(context: Context, server: Server, name: str) -> None:
    """One workflow, saved once: our decode, which is captured."""
    result = server.run(decode_prompt("image", False))
    error = (result.ui("check", "check") or {}).get("error")
    exact = result.ok and error is not None and error <= EXACT
    context.report.check(f"{name}: the workflow runs and is exact", exact, result.seen())


def _kept(context: Context, server: Server, put: str = "") -> dict[str, Any]:
    captures = str(server.base / CAPTURES)
    result = server.run({"kept": node("HarnessKept", put=put, captures=captures)})
    if not result.ok:
        context.report.failed("what is kept can be read", result.seen())
    found: dict[str, Any] = result.ui("kept", "kept") or {}
    return found


def _expect(context: Context, name: str, kept: dict[str, Any], **wanted: Any) -> None:
    """latents: a capture is read, whichever version made it."""
    wanted = {"latents": [1, 4, 1, 3, 2], **wanted}
    seen = {key: kept.get(key) for key in wanted}
    context.report.equal(f"{name}: {', '.join(wanted)}", seen, wanted)


def _chosen(context: Context, server: Server, name: str) -> None:
    told = str(server.run({"told": node("Hy3DRocmStatus")}).ui("told", "text"))
    lines = ("offload: on (ComfyUI's settings)", "switched off in ComfyUI's settings: mesh")
    missing = [line for line in lines if line not in told]
    context.report.check(f"{name}: the settings count", not missing, missing)
