"""hy3d-rocm render: a mesh in, pictures and a video out, sentences for what cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from examples.render import command, made, maps, run
from examples.render.camera import six_views
from examples.render.drawing import draw
from hy3d_rocm import _native, checkout, cli

image = pytest.importorskip("PIL.Image")
av = pytest.importorskip("av")

SIX = ["front", "right", "back", "left", "top", "bottom"]


def render(out: Path, *more: str) -> int:
    return cli.main(["render", "--out", str(out), "--size", "48", "--threads", "1", *more])


def read(path: Path) -> np.ndarray:
    return np.asarray(image.open(path))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_first_command_needs_no_file_and_says_what_it_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "folder"
    assert render(out, "--frames", "5") == 0
    pictures = {f"{name}_{view}.png" for name in maps.MAPS for view in SIX}
    assert names(out) == pictures | {"views.png", "cameras.json", "turntable.mp4"}
    assert read(out / "normal_front.png").shape == (48, 48, 3)
    assert read(out / "depth_top.png").dtype == np.uint16
    told = capsys.readouterr()
    assert "43 pictures, cameras.json, turntable.mp4" in told.out
    assert "6 views of 48x48 samples" in told.out
    assert "5 frames of 48x48 samples" in told.out
    assert "view 6 of 6: bottom" in told.err
    assert "frame 5 of 5" in told.err


def test_help_is_the_examples_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["render", "--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == command.build_parser().format_help()


@pytest.mark.parametrize(
    "words", [["render"], ["render", "--size", "9", "x.glb"], ["demo", "--help"]]
)
def test_an_installation_without_the_example_says_so(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(checkout, "ROOTS", (tmp_path,))
    assert cli.main(words) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        f"hy3d-rocm {words[0]}: its files are missing from this installation: install hy3d-rocm "
        "again, or run it in a clone of the repository\n"
    )


def test_another_programs_examples_do_not_break_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "examples"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "examples", ModuleType("examples"))
    assert cli.main(["render"]) == 1
    assert "its files are missing" in capsys.readouterr().err


def test_a_picture_on_the_disk_is_the_map_of_the_view(tmp_path: Path) -> None:
    assert render(tmp_path, "--mesh", "cube", "--frames", "0", "--rule", "compat",
                  "--normals", "stage", "--background", "#102030") == 0  # fmt: skip
    seen = draw(made.make_mesh("cube"), six_views()[1], (48, 48), rule="compat", threads=1)
    expected = maps.normal_map(seen, "stage", (16, 32, 48))
    assert np.array_equal(read(tmp_path / "normal_right.png"), expected)
    assert np.array_equal(read(tmp_path / "depth_right.png"), maps.depth_map(seen))
    view = json.loads((tmp_path / "cameras.json").read_text())["views"][1]
    assert view["name"] == "right"
    assert view["toward_viewer"] == pytest.approx([1, 0, 0])
    assert (view["depth_white"], view["depth_dark"]) == pytest.approx(maps.depth_range(seen))


def test_the_turntable_has_the_frames_asked_at_the_rate_asked_and_turns(tmp_path: Path) -> None:
    assert render(tmp_path, "--views", "1", "--maps", "mask", "--frames", "8", "--fps", "12.5",
                  "--turntable", "depth", "--background", "none") == 0  # fmt: skip
    with av.open(str(tmp_path / "turntable.mp4")) as video:
        assert float(video.streams.video[0].average_rate) == 12.5
        frames = [frame.to_ndarray(format="gray") for frame in video.decode(video=0)]
    assert len(frames) == 8
    for i in range(8):
        assert frames[i].shape == (48, 48)
        difference = np.abs(frames[i].astype(int) - frames[(i + 1) % 8]).max()
        assert difference > 60, f"frame {i} is the next one's"


def test_maps_and_views_are_those_asked_for(tmp_path: Path) -> None:
    assert render(tmp_path, "--mesh", "torus", "--views", "2", "--elevation", "0", "--maps",
                  "depth,normal,color", "--frames", "0", "--size", "40x24") == 0  # fmt: skip
    assert names(tmp_path) == {
        "depth_front.png",
        "depth_back.png",
        "normal_front.png",
        "normal_back.png",
        "views.png",
        "cameras.json",
    }  # fmt: skip  (a torus has no colours)
    assert read(tmp_path / "depth_front.png").shape == (24, 40)


def test_nothing_is_overwritten_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--views", "1", "--maps", "mask", "--frames", "0")
    (tmp_path / "mine.txt").write_text("kept")
    assert render(tmp_path, *more) == 0
    before = (tmp_path / "mask_azimuth_000.png").read_bytes()
    assert render(tmp_path, *more, "--mesh", "cube") == 1
    assert "2 more would be overwritten: give --force" in capsys.readouterr().err
    assert (tmp_path / "mask_azimuth_000.png").read_bytes() == before
    assert render(tmp_path, *more, "--mesh", "cube", "--force") == 0
    assert (tmp_path / "mask_azimuth_000.png").read_bytes() != before
    assert (tmp_path / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize("place", ["views", "turntable"])
def test_ctrl_c_keeps_complete_files_and_leaves_no_half_ones(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    stop_at = {"views": 4, "turntable": 9}[place]
    drawn = interrupted_at(stop_at)
    monkeypatch.setattr(run, "draw", drawn)
    assert render(tmp_path, "--maps", "mask,depth", "--frames", "6") == 130
    done = SIX[: min(stop_at - 1, 6)]
    kept = {f"{name}_{view}.png" for name in ("mask", "depth") for view in done}
    if place == "turntable":
        kept |= {"views.png", "cameras.json"}
    assert names(tmp_path) == kept
    assert f"{len(kept)} complete files are kept" in capsys.readouterr().err
    for name in kept - {"cameras.json"}:
        read(tmp_path / name)


def interrupted_at(number: int) -> Callable[..., Any]:
    calls = 0

    def drawn(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise KeyboardInterrupt
        return draw(*arguments, **options)

    return drawn


def test_a_full_disk_is_a_sentence_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_file: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hy3d_rocm.frames.output.settle", full)
    assert render(tmp_path, "--frames", "0") == 1
    assert "the disk is full" in capsys.readouterr().err
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["no_such.glb"], "no_such.glb does not exist"),
     (["mesh.glb", "--mesh", "cube"], "give one of them"),
     (["--mesh", "sphere", "--maps", "color"], "neither a texture nor colours"),
     (["--size", "32768", "--supersample", "2"], "32768 a side")],
)  # fmt: skip
def test_what_cannot_be_is_told_in_a_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["render", "--out", str(tmp_path / "out"), "--frames", "0", *arguments]) == 1
    told = capsys.readouterr().err
    assert words in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    "arguments",
    [["--views", "0"], ["--size", "0"], ["--size", "40000"], ["--size", "4x"], ["--maps", "wrong"],
     ["--maps", ""], ["--fov", "0"], ["--fov", "nan"], ["--crease", "181"], ["--fps", "0"],
     ["--elevation", "91"], ["--distance", "-1"], ["--background", "#12"], ["--frames", "-1"],
     ["--threads", "0"], ["--threads", "1025"], ["--fps", "1e-9"], ["--fps", "0.000000001"],
     ["--fps", "1/0"], ["--fps", "1e-999999999"], ["--fps", "1000.1"], ["--supersample", "9"],
     ["--mesh", "teapot"], ["--rule", "wrong"], ["--threads", "x"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_arguments_end_with_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["render", *arguments])
    assert caught.value.code == 2


@pytest.mark.parametrize("rate", ["1/100000", "0.5", "24.", "30000/1001", "1000"])
def test_every_frame_rate_that_is_taken_can_be_written(rate: str, tmp_path: Path) -> None:
    assert render(tmp_path, "--mesh", "cube", "--views", "1", "--maps", "mask", "--frames", "2",
                  "--fps", rate) == 0  # fmt: skip
    assert (tmp_path / "turntable.mp4").stat().st_size > 0


@pytest.mark.parametrize(
    ("asked", "of_torch", "words"),
    [("1000", None, "at most 3 threads"), ("2", None, "at most 2 threads"), ("1", 3, "1 thread"),
     (None, None, "at most 3 threads"), (None, 2, "at most 2 threads"),
     (None, 64, "at most 3 threads")],
)  # fmt: skip
def test_the_threads_told_are_those_that_there_are(
    asked: str | None, of_torch: int | None, words: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    double = None if of_torch is None else SimpleNamespace(
        get_num_threads=lambda: of_torch, Tensor=SimpleNamespace
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", double)
    monkeypatch.setattr(_native, "cpu_info", lambda: {"max_threads": 3})
    more = [] if asked is None else ["--threads", asked]
    assert cli.main(["render", "--out", str(tmp_path), "--size", "8", "--views", "1", "--maps",
                     "mask", "--frames", "0", *more]) == 0  # fmt: skip
    assert f", rule topleft, {words})" in capsys.readouterr().out


def test_a_file_in_the_folders_place_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert render(tmp_path / "file") == 1
    assert "is a file; name a folder" in capsys.readouterr().err


def test_without_pyav_a_turntable_is_refused_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert render(tmp_path) == 1
    assert "pip install av, or give --frames 0" in capsys.readouterr().err
    assert names(tmp_path) == set()
    assert render(tmp_path, "--frames", "0", "--views", "1") == 0


def test_without_pillow_a_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert render(tmp_path) == 1
    assert "pip install Pillow" in capsys.readouterr().err


def test_neither_torch_nor_trimesh_is_needed_to_draw_a_made_mesh(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['trimesh'] = None\n"
        "from hy3d_rocm.cli import main\n"
        f"sys.exit(main(['render', '--out', {str(tmp_path)!r}, '--size', '32', '--views', '1',"
        " '--frames', '2', '--mesh', 'cube']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "turntable.mp4" in done.stdout


def test_the_commands_choices_are_what_the_modules_offer() -> None:
    assert command._MADE == made.MADE
    assert tuple(maps.MAPS) == command._MAPS
    assert command._AXES == maps.NORMAL_AXES
