"""LivePlot."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from multifit.events import EventDispatcher
from multifit.handlers import MetricHandler, ValidationHandler
from multifit.handlers.live_plot import LivePlot

from .conftest import At

PNG = b"\x89PNG\r\n\x1a\n"


class Cell:
    """A notebook's display: one area for each call, which can be updated."""

    def __init__(self) -> None:
        self.areas: list[list[bytes]] = []

    def __call__(self, picture: Any, display_id: bool = False) -> Any:
        assert display_id
        area = [picture._repr_png_()]
        self.areas.append(area)
        return types.SimpleNamespace(update=lambda picture: area.append(picture._repr_png_()))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Draw tiny pictures, and return the figures of each drawing."""
    from multifit.handlers import live_plot

    names: list[list[str]] = []

    class Picture:
        def savefig(self, file: Any, **options: Any) -> None:
            file.write(PNG + bytes([len(names)]))

    def curves(history: Any) -> Picture:
        names.append(list(history))
        return Picture()

    monkeypatch.setattr(live_plot, "curves", curves)
    return names


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_the_file_is_replaced_at_each_epoch(run: Any, tmp_path: Path) -> None:
    path, seen = tmp_path / "live" / "curves.png", []

    look = At("epoch_end", lambda estimator: seen.append(path.read_bytes()), priority=float("inf"))
    run.fit(MetricHandler(), LivePlot("train_loss", path), look, epochs=2)
    assert len(seen) == len(set(seen)) == 2
    assert all(data.startswith(PNG) for data in seen)
    assert [each.name for each in path.parent.iterdir()] == ["curves.png"]


def test_a_notebook_shows_one_picture_per_fit_and_updates_it(run: Any, drawn: Any) -> None:
    cell = Cell()
    handler = LivePlot(display=cell)
    run.fit(MetricHandler(), handler, epochs=3)
    run.fit(MetricHandler(), handler, epochs=1)
    assert [len(area) for area in cell.areas] == [3, 1]
    assert all(picture.startswith(PNG) for area in cell.areas for picture in area)


def test_without_a_notebook_and_a_path_nothing_happens(
    run: Any, drawn: list[Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    run.fit(MetricHandler(), LivePlot("nothing"), epochs=2)
    assert drawn == [] and warnings(caplog) == []


@pytest.mark.parametrize(("shell", "shown"), [("notebook", 2), ("terminal", 0)])
def test_ipythons_display_is_used_in_notebooks_only(
    run: Any, drawn: Any, shell: str, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell()
    shell_object = types.SimpleNamespace(kernel=None) if shell == "notebook" else types.SimpleNamespace()
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: shell_object  # type: ignore[attr-defined]
    display.display = cell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    run.fit(MetricHandler(), LivePlot(), epochs=2)
    assert sum(map(len, cell.areas)) == shown


def test_figures_can_be_chosen_before_they_are_measured(
    run: Any, drawn: list[list[str]], tmp_path: Path
) -> None:
    handler = LivePlot(["val_.*", "train_loss"], tmp_path / "a.png")
    run.fit(handler, MetricHandler(), ValidationHandler("data", epoch_period=2), epochs=2)
    assert drawn == [["train_loss"], ["train_loss", "val_loss"]]


def test_a_figure_that_is_never_measured_is_a_warning(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run.fit(MetricHandler(), LivePlot("train_los", tmp_path / "a.png"), epochs=2)
    assert warnings(caplog) == [
        'LivePlot: no figure "train_los" (did you mean "train_loss"?); there are "train_loss", "lr"'
    ]


def test_a_fit_without_epochs_does_not_warn(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = EventDispatcher(run, LivePlot("train_loss", tmp_path / "a.png"))
    events.begin()
    events.close()
    assert warnings(caplog) == []


def test_a_file_that_cannot_be_written_is_one_warning(
    run: Any, drawn: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    run.fit(MetricHandler(), LivePlot(path=tmp_path / "file" / "a.png"), epochs=3)
    assert len(drawn) == 1 and len(warnings(caplog)) == 1
    assert warnings(caplog)[0].startswith("LivePlot: ") and "file" in warnings(caplog)[0]


def test_missing_matplotlib_is_one_warning(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run.fit(MetricHandler(), LivePlot(path=tmp_path / "a.png"), epochs=3)
    assert warnings(caplog) == [
        "LivePlot: pictures need matplotlib: pip install matplotlib; training continues without it"
    ]
