"""ComfyUI-Manager's own commands: installed with the built C core, updated, removed; and installed
where no wheel fits.

Manager clones a repository that is served here, whose requirements.txt asks for the core as it
will once that is published (tools/registry.py); pip or uv finds it in the folder of --wheels. The
texture stage then runs on what Manager has installed: nothing was compiled.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from comfy_harness.context import OURS, PATCHED, UPSTREAM, Context
from comfy_harness.scenarios.raster import texture_stage

TOOLS = "ComfyUI-Manager is not installed for PYTHON: pip install comfyui-manager"
NO_CORE = "hy3d_rocm: the C core is not there"
# As requirements.txt has it, and the same where no wheel fits.
ASKED = re.compile(r"^# (hy3d-rocm==[^;]+)(;.*)$", re.MULTILINE)
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.autocrlf=false")


class Repository:
    """A clone of the pack's that git and Manager can fetch by HTTP."""

    def __init__(self, pack: Path, folder: Path) -> None:
        self.clone, self.served = folder / "clone", folder / "served"
        self.served.mkdir(parents=True)
        _do("git", "clone", "-q", pack, self.clone)
        _do("git", "clone", "-q", "--bare", self.clone, self.served / f"{OURS}.git")

    def change(self, name: str, text: str) -> str:
        """Commits a file's new text and serves it; the commit."""
        (self.clone / name).write_text(text, encoding="utf-8")
        _do(*GIT, "-C", self.clone, "commit", "-q", "-a", "-m", name)
        at = self.served / f"{OURS}.git"
        _do("git", "-C", self.clone, "push", "-q", at, "HEAD")
        _do("git", "-C", at, "repack", "-a", "-d", "-q")  # one file to fetch
        _do("git", "-C", at, "update-server-info")
        return head(self.clone)

    @contextmanager
    def address(self) -> Iterator[str]:
        handler = partial(Silent, directory=str(self.served))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/{OURS}.git"
            finally:
                server.shutdown()
                thread.join()


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        pass


def run(context: Context) -> None:
    if context.wheels is None or not _has_manager(context):
        context.report.note(f"NOT RUN: {TOOLS}, and give --wheels")
        return
    before = installed(context)
    if "hy3d-rocm" in before:
        context.report.note("NOT RUN: PYTHON has hy3d-rocm, and this removes what it installs")
        return
    managed = context.work / f"managed-{context.core.name}"
    comfyui = managed / "ComfyUI"
    shutil.copytree(context.core, comfyui, ignore=shutil.ignore_patterns(".git", "custom_nodes"))
    (comfyui / "custom_nodes").mkdir()
    repository = Repository(context.pack, managed)
    asked = (repository.clone / "requirements.txt").read_text(encoding="utf-8")
    repository.change("requirements.txt", ASKED.sub(r"\1\2", asked))
    try:
        with repository.address() as url:
            _installed(context, comfyui, url, before)
            _updated(context, comfyui, repository)
            _removed(context, comfyui)
            unfit = ASKED.sub(r'\1; platform_machine == "riscv64"', asked)
            repository.change("requirements.txt", unfit)
            _without_a_wheel(context, comfyui, url)
    finally:
        _pip(context, "uninstall", "-q", "-y", "hy3d-rocm")
    context.report.equal("pip uninstall: as before", installed(context), before)


def _installed(context: Context, comfyui: Path, url: str, before: dict[str, str]) -> None:
    report, folder = context.report, comfyui / "custom_nodes" / OURS
    said = _manager(context, comfyui, "install", url)
    report.check("Manager installs it", (folder / "__init__.py").is_file(), said[-2000:])
    after = installed(context)
    report.check("with the core's wheel", "hy3d-rocm" in after, said[-2000:])
    kept = {name: after.get(name) for name in before}
    report.equal("no package is another one, torch and numpy included", kept, before)
    report.check("the folder has no compiled file", not list(folder.rglob("_core.*so")), folder)
    packs = {UPSTREAM: context.wrapper, OURS: folder}
    with context.server(packs=packs, environ=PATCHED) as server:
        lines = [line.message for line in server.lines()]
        report.check("the core is there", not [t for t in lines if NO_CORE in t], lines)
        result = server.run(texture_stage())
        report.check("the texture stage runs", result.ok, result.seen())
        painted = (result.ui("hash painted", "digest") or {}).get("shape")
        report.check("and paints", bool(painted), painted)
        bad = [line for line in server.lines() if line.is_bad and line.is_ours([str(folder), OURS])]
        report.check("0 warnings and errors of the pack in the log", not bad, bad)


def _updated(context: Context, comfyui: Path, repository: Repository) -> None:
    folder = comfyui / "custom_nodes" / OURS
    newer = repository.change("README.md", "newer\n")
    said = _manager(context, comfyui, "update", OURS)
    context.report.check("Manager updates it", head(folder) == newer, said[-2000:])
    context.report.check("the core stays", "hy3d-rocm" in installed(context), said[-2000:])


def _removed(context: Context, comfyui: Path) -> None:
    report, folder = context.report, comfyui / "custom_nodes" / OURS
    said = _manager(context, comfyui, "uninstall", OURS)
    report.check("Manager removes it", not folder.exists(), said[-2000:])
    report.check(
        "what pip installed stays, and does nothing", "hy3d-rocm" in installed(context), said
    )
    with context.server() as server:
        ours = [line for line in server.lines() if line.is_ours([OURS])]
        report.check("nothing of the pack in ComfyUI's log", not ours, ours)
    _pip(context, "uninstall", "-q", "-y", "hy3d-rocm")


def _without_a_wheel(context: Context, comfyui: Path, url: str) -> None:
    report, folder = context.report, comfyui / "custom_nodes" / OURS
    said = _manager(context, comfyui, "install", url)
    report.check("Manager installs it without a wheel", (folder / "__init__.py").is_file(), said)
    report.check("no core is installed", "hy3d-rocm" not in installed(context), said[-2000:])
    packs = {UPSTREAM: context.wrapper, OURS: folder}
    with context.server(packs=packs, environ=PATCHED) as server:
        told = [line.message for line in server.lines() if NO_CORE in line.message]
        report.equal("one line says so", len(told), 1)
        report.note(f"    {' '.join(told)}")
        loaded = "Hy3DRocmVAEDecode" in server.ask("/object_info")
        report.check("and its nodes are there", loaded, "missing")


def installed(context: Context) -> dict[str, str]:
    """Packages of PYTHON by their names. Manager brings ComfyUI's front end where it is missing."""
    listed = json.loads(_pip(context, "list", "--format=json"))
    found = {item["name"]: item["version"] for item in listed}
    return {name: at for name, at in found.items() if name != "comfyui_frontend_package"}


def head(repository: Path) -> str:
    return _do("git", "-C", repository, "rev-parse", "HEAD").strip()


def _has_manager(context: Context) -> bool:
    code = "import importlib.util as u, sys; sys.exit(not u.find_spec('cm_cli'))"
    return subprocess.run([context.python, "-c", code], check=False).returncode == 0


def _manager(context: Context, comfyui: Path, *words: str) -> str:
    """What `cm-cli` printed. It asks the lists that came with it, not its servers."""
    environ = {
        **os.environ, "COMFYUI_PATH": str(comfyui), "PIP_FIND_LINKS": str(context.wheels),
        "UV_FIND_LINKS": str(context.wheels),
        # What is remembered of a wheel of this version would be taken for the one in the folder.
        "UV_CACHE_DIR": str(context.work / "uv"), "PIP_NO_CACHE_DIR": "1",
    }  # fmt: skip
    command = [context.python, "-m", "cm_cli", *words, "--mode", "local"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
        check=False, env=environ, cwd=comfyui,
    )  # fmt: skip
    logs = context.work / "logs"
    logs.mkdir(exist_ok=True)
    with (logs / f"manager-{context.core.name}.log").open("a", encoding="utf-8") as log:
        log.write(f"## {' '.join(words)}\n{done.stdout}\n")
    return done.stdout


def _pip(context: Context, *words: str) -> str:
    return _do(context.python, "-m", "pip", "--disable-pip-version-check", *words)


def _do(*command: object) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, timeout=600, check=True).stdout
