"""Every command and code block of README, CONTRIBUTING and docs: it can be typed as it stands, and
runs, where it needs neither a GPU, nor another checkout, nor minutes. What is not run says why."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import how_much
import pytest
import torch
import warm_start
from bench_results import RESULTS
from decode_doubles import tiny_latents, tiny_vae
from doc_commands import ROOT, Block, Command, blocks, commands
from doctor_machines import torch_says
from warm_start import Server

from examples import demo_vae
from examples.demo import delight as demo_delight
from examples.demo import run as demo
from examples.render.command import build_parser as render_parser
from hy3d_rocm import cli
from hy3d_rocm.conv.probe import process
from hy3d_rocm.diagnose.doctor import examination
from hy3d_rocm.diagnose.doctor.examination import Examination
from tools.dev.bench.__main__ import build_parser as bench_parser

HAS_GPU = torch.cuda.is_available()
COMMANDS = commands()
OURS = [c for c in COMMANDS if c.words[0] == "hy3d-rocm" or c.words[1:3] == ["-m", "hy3d_rocm"]]
BENCHES = [c for c in COMMANDS if c.words[1:3] == ["-m", "tools.dev.bench"]]
PYTHON = [block for block in blocks() if block.is_python]

# Why a command is not run here; the first that matches counts.
NOT_RUN = {
    r"hy3d-rocm( (capture|compare|decode|diagnose|plan|tune|validate|db|db forget|miopen))?$": (
        "names the command; with what it needs it is run"
    ),
    r"hy3d-rocm .*(\[|\.\.\.)": "a synopsis",
    r"hy3d-rocm doctor: ": "what it prints",
    r"hy3d-rocm bench": "minutes (tests/unit/bench runs each in small)",
    r"hy3d-rocm optimize": "minutes (test_decode_tools_optimize.py runs it in small)",
    r"hy3d-rocm (miopen|db) (clear|restore|show) ": "a synopsis",
}
# What is said once more behind a command, to be done sooner.
SMALLER = {
    "render": "--size 32", "validate": "--size 32x32 --frames 5", "demo": "--frames 5",
}  # fmt: skip
# What a command that is run ends with, where that is not 0.
# validate judges: on a GPU torch's reference rounds to TF32.
EXIT_CODES = {
    "validate": {0, 1} if HAS_GPU else 0,
    "tune ": 0 if HAS_GPU else 2,
    "diagnose": 1,
    "doctor": {0, 1, 2},
}


def words_of(command: Command) -> list[str]:
    words = command.words
    return words[3:] if words[0].startswith("python") else words[1:]


@functools.cache
def every_command() -> argparse.ArgumentParser:
    return cli.build_parser()


def parser_of(words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser of the innermost command that `words` name, and those names."""
    if words[:1] == ["render"]:  # in a checkout with a parser of its own
        return render_parser(), ["render"]
    return innermost(every_command(), words)


def innermost(
    parser: argparse.ArgumentParser, words: list[str]
) -> tuple[argparse.ArgumentParser, list[str]]:
    names = []
    for word in words:
        inner = next((a for a in parser._actions if isinstance(a.choices, dict)), None)
        if inner is None or word not in inner.choices:
            break
        parser = inner.choices[word]
        names.append(word)
    return parser, names


def identify(command: Command) -> str:
    return f"{command.page}: {command.text}"


@pytest.mark.parametrize("command", [*OURS, *BENCHES], ids=identify)
def test_a_command_of_ours_is_one_and_has_the_options_that_the_page_gives_it(
    command: Command,
) -> None:
    if re.match(r"hy3d-rocm doctor: ", command.text):
        pytest.skip("what it prints")
    words = words_of(command)
    is_bench = command in BENCHES
    parser, names = innermost(bench_parser(), words) if is_bench else parser_of(words)
    assert names == [w for w in words if re.fullmatch(r"[a-z]+", w)][: len(names)]
    assert names or len(words) == 0 or words[0].startswith("-")
    options = {option for action in parser._actions for option in action.option_strings}
    given = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", " ".join(words)))
    assert given <= options, f"{parser.prog} has no {sorted(given - options)}"


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c.words[0].startswith(("python", "pytest"))], ids=identify
)
def test_a_script_that_a_page_names_is_there_and_knows_its_options(command: Command) -> None:
    paths = [word for word in command.words if re.fullmatch(r"[\w./]+\.py", word)]
    for path in paths:
        if path == "main.py":  # ComfyUI's
            continue
        script = ROOT / path
        assert script.is_file()
        if "pytest" in command.words:
            continue
        texts = "\n".join(map(_text, _with_imported(script)))
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", command.text):
            # Options of a loop are words of a table.
            known = f'"{option}"' in texts or f'"{option[2:]}"' in texts
            assert known or "its own arguments" in command.text, option


@functools.cache
def _text(path: Path) -> str:
    return path.read_text("utf-8")


@functools.cache
def _imported(script: Path) -> frozenset[Path]:
    """What a file imports of this repository."""
    names = re.findall(r"^\s*(?:from|import) ([\w.]+)", _text(script), re.M)
    places = (
        folder / name.replace(".", "/")
        for name in names
        for folder in (script.parent, ROOT, ROOT / "tests/long")
    )
    files = (f for p in places for f in (p.with_name(f"{p.name}.py"), p / "__init__.py"))
    return frozenset(file for file in files if file.is_file())


def _with_imported(script: Path) -> set[Path]:
    """The script, and what it and these import of this repository."""
    seen, new = set(), {script}
    while new:
        seen |= new
        new = set().union(*map(_imported, new)) - seen
    return seen


def test_targets_of_make_are_there() -> None:
    makefiles = [ROOT / "Makefile", *(ROOT / "csrc").glob("*.mk"), *(ROOT / "tests").rglob("*.mk")]
    text = "\n".join(path.read_text("utf-8") for path in makefiles)
    targets = {
        name for line in re.findall(r"^([\w. -]+):(?!=)", text, re.M) for name in line.split()
    }
    named = {c.words[1] for c in COMMANDS if c.words[0] == "make" and len(c.words) > 1}
    assert len(named) > 15
    assert named - targets == set()


class Forked:
    """Stands for subprocess in demo/run.py: children that have its packages imported."""

    PIPE = subprocess.PIPE

    def __init__(self, server: Server) -> None:
        self._server = server

    @contextlib.contextmanager
    def Popen(
        self, command: list[str], *, env: dict[str, str], **_: Any
    ) -> Iterator[SimpleNamespace]:
        _, flag, module, job = command
        assert (flag, module) == ("-m", "examples.demo.child")
        script = ROOT / "examples/demo/child.py"
        child = self._server.run(script, job, stderr=2, environ=env)
        child.stdin.close()
        with io.TextIOWrapper(child.stdout, "utf-8") as said:
            made = SimpleNamespace(stdout=said, kill=child.kill)
            yield made
        made.returncode = child.wait(60)


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The demo with small frames and pictures. Its decodes are in processes forked from one that
    has imported torch and diffusers, which takes longer than what they do."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    server = Server("safetensors.torch", "examples.demo_vae")
    monkeypatch.setattr(demo, "subprocess", Forked(server))
    small = functools.partial(demo_vae.held_out_clip, height=96, width=128)
    monkeypatch.setattr(demo_vae, "held_out_clip", small)
    shown = functools.partial(demo_delight.run_delight_demo, size=32, steps=2)
    monkeypatch.setattr(demo_delight, "run_delight_demo", shown)
    yield
    server.close()


LOG = "Traceback (most recent call last):\nRuntimeError: miopenStatusUnknownError\n"


@functools.cache
def examined(*_: Any, **__: Any) -> Examination:
    """This machine, for each command that tells of it; what children would say of torch and of the
    convolutions is made up, since to ask them takes seconds (doctor/test_facts.py does)."""
    facts = examination.collect(os.environ, torch=torch_says())
    return Examination(facts, tuple(examination.judge(facts)))


@pytest.fixture(scope="module")
def drawer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files whose names the pages use."""
    from safetensors.torch import save_file

    made, vae = tmp_path_factory.mktemp("drawer"), tiny_vae("wan")
    for name in ("DIR", "FILE_OR_DIR"):
        vae.save_pretrained(made / name)
    latents = tiny_latents(vae, 3, 4, 4)
    for name in ("LATENT", "LATENT.safetensors"):
        save_file({"latents": latents}, made / name)
    for name in ("LOG", "comfyui.log"):
        (made / name).write_text("got prompt\n" + LOG)
    for name in ("A.json", "B.json"):
        (made / name).write_text(json.dumps(RESULTS["optimize"]))
    (made / "main.py").write_text("print('a program')\n")
    return made


@pytest.fixture
def desk(drawer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds these files, as home and working folder; `python` is this environment's,
    as where one is active."""
    shutil.copytree(drawer, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(examination, "examine", examined)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"])
    monkeypatch.setenv("HY3D_ROCM_DB", str(tmp_path / "knowledge.db"))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(
        buffer=SimpleNamespace(read=lambda *_: LOG.encode()), read=lambda *_: LOG,
        isatty=lambda: False,
    ))  # fmt: skip
    return tmp_path


def why_not(command: Command) -> str:
    text = " ".join(["hy3d-rocm", *words_of(command)])
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, text)), "")


RUN = {" ".join(words_of(c)): c for c in OURS if not why_not(c)}


@pytest.mark.timeout(600)  # the demo's processes take their time where cores are busy
@pytest.mark.parametrize("line", RUN)
def test_a_command_runs_as_it_stands(
    line: str, desk: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    if line.startswith("demo") and warm_start.IS_THERE and not how_much.FULL:
        request.getfixturevalue("small_demo")
    if HAS_GPU and line.startswith("tune"):
        pytest.skip("minutes on a GPU")
    if line.startswith(("decode", "render")):
        pytest.importorskip("av")
    if "MESH.glb" in line:
        trimesh = pytest.importorskip("trimesh")
        trimesh.creation.box().export(desk / "MESH.glb")
    expected = next((code for start, code in EXIT_CODES.items() if line.startswith(start)), 0)
    smaller = next((words for start, words in SMALLER.items() if line.startswith(start)), "")
    code = cli.main([*line.split(), *smaller.split()])
    said = capsys.readouterr()
    assert code in (expected if isinstance(expected, set) else {expected}), said.out + said.err
    assert "Traceback" not in said.err


class Pipeline:
    """In place of a delight pipeline: a module, and pictures from a generator's noise."""

    def __init__(self) -> None:
        self.unet = torch.nn.Linear(4, 4)
        self.components = {"unet": self.unet}
        self._execution_device = self.device = torch.device("cpu")

    def to(self, *_: Any) -> Pipeline:
        return self

    def __call__(self, *, prompt: str, image: Any, generator: torch.Generator) -> Any:
        noise = torch.randn(image.shape, generator=generator)
        return SimpleNamespace(images=[image + noise])


def readme(names: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    from diffusers import AutoencoderKLHunyuanVideo

    vae = tiny_vae("hunyuan").requires_grad_(True)  # as from_pretrained() gives it
    patch.setattr(AutoencoderKLHunyuanVideo, "from_pretrained", lambda *_, **__: vae)
    patch.setattr(vae, "to", lambda *_, **__: vae)
    images = [torch.zeros(1, 3, 4, 4)] * 2
    names.update(latents=tiny_latents(vae, 3, 4, 4), delight_pipe=Pipeline(), batch=images)


def vae_and_latents(names: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    import hy3d_rocm

    vae = tiny_vae("wan").requires_grad_(True)
    names.update(hy3d_rocm=hy3d_rocm, vae=vae, latents=tiny_latents(vae, 3, 4, 4))


def a_spec(names: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    from tier_calls import make_call

    call = make_call(torch.zeros(1, 2, 3, 4, 4), torch.zeros(2, 2, 3, 3, 3))
    names.update(spec=call.spec, specs=[call.spec])
    if warm_start.IS_THERE:  # a child that tries it need not import torch
        patch.setattr(process, "start", warm_start.start)


def a_mesh(names: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trimesh").creation.box().export("mesh.glb")


def a_pipeline(names: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    import hy3d_rocm

    names.update(hy3d_rocm=hy3d_rocm, pipeline=Pipeline(), free_bytes=1 << 30, total_bytes=2 << 30)


def import_hooks(names: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sys.meta_path", list(sys.meta_path))


# By page and first line: what the block takes for granted, and what it leaves to be looked at.
Prepare = Callable[[dict[str, Any], pytest.MonkeyPatch], None]


def one_rank(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    vae_and_latents(names, monkeypatch)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    names |= {"torch": torch, "leave": dist.destroy_process_group}


BLOCKS: dict[str, tuple[Prepare, Callable[[dict[str, Any]], bool]]] = {
    "README.md: import torch, hy3d_rocm": (
        readme,
        lambda n: n["frames"].shape[:2] == (1, 3)
        and n["guard"].stats.passed_through == 0
        and not n["images"][0].equal(torch.zeros(1, 3, 4, 4)),
    ),
    "docs/router.md: with hy3d_rocm.protect() as guard:": (
        vae_and_latents,
        lambda n: n["guard"].stats.calls > 0 and n["guard"].stats.passed_through == 0,
    ),
    "docs/decode_tools.md: from hy3d_rocm.capture import capturing": (
        vae_and_latents, lambda n: len(n["written"]) > 0
    ),
    "docs/offload.md: import hy3d_rocm.offload": (
        a_pipeline, lambda n: bool(n["decision"].reason)
    ),
    "docs/knowledge.md: from hy3d_rocm.conv.verdict_store.record": (
        a_spec, lambda n: "vendor" in n["store"]().records(n["key"])
    ),
    "docs/probe.md: from hy3d_rocm.conv.probe import Case, n": (
        a_spec, lambda n: [o.verdict in ("ok", "slow-find") for o in n["outcomes"]] == [HAS_GPU]
    ),
    "docs/raster.md: from examples.render import depth_map, d": (
        a_mesh, lambda n: n["depth"].shape[:2] == (1024, 1024)
    ),
    "docs/raster.md: import hy3d_rocm.raster": (import_hooks, lambda n: True),
    "docs/decode.md: frames = hy3d_rocm.decode(vae, latents,": (
        vae_and_latents, lambda n: n["frames"].ndim == 5
    ),
    "docs/scale.md: frames = hy3d_rocm.decode(vae, latents,": (
        one_rank, lambda n: n["leave"]() is None and n["frames"].ndim == 5
    ),
}  # fmt: skip


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.name)
def test_a_block_of_python_runs_as_it_stands(
    block: Block, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert block.name in BLOCKS, "say in BLOCKS what this new block needs"
    prepare, is_right = BLOCKS[block.name]
    names: dict[str, Any] = {}
    prepare(names, monkeypatch)
    exec(compile(block.text, f"{block.page}:{block.line}", "exec"), names)
    assert is_right(names)
