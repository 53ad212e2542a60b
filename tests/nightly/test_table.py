"""The table of floors has every task, and its rows can be run."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from multifit.cli.taskfile import TaskFile  # noqa: E402
from multifit.engines import precision_name  # noqa: E402
from nightly.table import ROWS  # noqa: E402


def test_every_task_has_a_floor_on_a_cpu():
    tasks = {path.stem for path in (ROOT / "tasks").glob("*.py")}
    assert {row.task for row in ROWS if row.device == "cpu"} == tasks


def test_bfloat16_has_the_floors_of_float32():
    full = {(row.task, row.settings, row.device): row for row in ROWS if row.precision == "float32"}
    lowered = [row for row in ROWS if row.precision != "float32"]
    assert {row.task for row in lowered} >= {"digits", "classification", "segmentation"}
    for row in lowered:
        twin = full[row.task, row.settings, row.device]
        assert (row.floors, row.epochs) == (twin.floors, twin.epochs)
        assert row.name == f"{twin.name} {precision_name(row.precision)}"


def test_names_of_rows_are_unique():
    names = [(row.device, row.name) for row in ROWS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.device},{row.name}".replace(" ", ",") for row in ROWS])
def test_rows_use_settings_of_their_task(row):
    if row.library == "torch":
        pytest.importorskip("torch")
    settings = row.settings.split() + ([f"dataset={row.data}", "root=."] if row.data else [])
    TaskFile(ROOT / "tasks" / f"{row.task}.py").set(settings)
    assert row.device in ("cpu", "gpu") and row.epochs > 0
    assert row.floors and all(0 < floor < 1 for floor in row.floors.values())
    assert all(figure.startswith("val_") for figure in row.floors)
