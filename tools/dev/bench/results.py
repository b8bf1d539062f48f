"""What is in the JSON files of the benches of the checkout, for `hy3d-rocm compare`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hy3d_rocm.bench.compare import Row, Rows, figure, most, numbers, variant_rows


def _case_rows(data: Any) -> Rows:
    for row in data["rows"]:
        failed = row["errors"] and not row["seconds"]
        yield str(row["case"]), Row(
            numbers(row["seconds"]), most(row["peak_bytes"]), figure(row["psnr"]),
            error=str(row["errors"][0]) if failed else "",
        )  # fmt: skip


def _side_rows(data: Any) -> Rows:
    for name, side in data["sides"].items():
        yield str(name), Row(numbers(side["seconds"]), most(side["peaks"]))
    if figure(data["psnr"]) is not None:
        yield "frames", Row(psnr=figure(data["psnr"]))


def _layer_rows(data: Any) -> Rows:
    for row in data["layers"]:
        for name, seconds in row["seconds"].items():
            yield f"{row['text']}, {name}", Row(
                numbers(seconds), most(row["extra_bytes"].get(name)),
                largest=figure(row["errors"].get(name)), error=str(row["reason"] or ""),
            )  # fmt: skip


def _cell_rows(data: Any) -> Rows:
    for cell in data["cells"]:
        layer = " ".join(str(value) for value in cell["layer"].values())
        for name, row in cell["figures"].items():
            yield f"{layer}, {cell['dtype']}, {cell['layout']}, {name}", Row(
                numbers(row["seconds"]), most(row["extra_bytes"]),
                largest=figure(row["worst"]), error=str(row["reason"] or ""),
            )  # fmt: skip


def _raster_rows(data: Any) -> Rows:
    for part in data["parts"]:
        for row in part["rows"]:
            turns = [sum(numbers(list(turn.values()))) for turn in row["seconds"]]
            name = f"{part['scene']}, {part['faces']} faces, {row['kind']}, {row['name']}"
            yield name, Row(turns, error=str(row["reason"] or ""))


ROWS: dict[str, Callable[[Any], Rows]] = {
    "bench decode": variant_rows,
    "bench decode --device cpu": _side_rows,
    "bench decode cases": _case_rows,
    "bench conv": _layer_rows,
    "bench gpu": _cell_rows,
    "bench raster": _raster_rows,
}
