"""multifit.handlers.history: one value per figure and epoch."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit.handlers.history import History, figure_text, over_seeds, seed_folders

NAN = math.nan


@pytest.fixture
def history() -> History:
    made = History()
    made.open_row()
    made.record({"train_loss": 2.0})
    made.record({"lr": 1e-05})
    made.open_row()
    made.record({"train_loss": 1.0, "val_loss": 1.5})
    return made


def test_rows_of_one_value_a_figure(history: History) -> None:
    assert dict(history) == {"train_loss": [2.0, 1.0], "lr": [1e-05, NAN], "val_loss": [NAN, 1.5]}
    assert (history.epochs, len(history)) == (2, 3)
    assert history.last == {"train_loss": 1.0, "lr": NAN, "val_loss": 1.5}
    assert repr(history) == "History(2 epochs: train_loss, lr, val_loss)"
    history.record({"val_loss": np.float32(0.5)})  # again
    assert history["val_loss"] == [NAN, 0.5] and type(history["val_loss"][1]) is float
    history["train_loss"].clear()  # a copy
    assert history["train_loss"] == [2.0, 1.0]
    with pytest.raises(RuntimeError, match="no epoch has begun"):
        History().record({"loss": 1.0})


def test_an_unknown_figure_names_the_nearest(history: History) -> None:
    with pytest.raises(KeyError) as caught:
        history["val_los"]
    assert caught.value.args == (
        'no figure "val_los" (did you mean "val_loss"?); there are "train_loss", "lr", "val_loss"',
    )
    assert "val_los" not in history and history.get("val_los") is None
    with pytest.raises(ValueError, match=r"one value per epoch.*\{'a': 1, 'b': 2\}"):
        History({"a": [1.0], "b": [1.0, 2.0]})


def test_json_and_back(history: History, tmp_path: Path) -> None:
    history.record({"train_loss": math.inf, "val_loss": -math.inf})
    path = tmp_path / "runs" / "history.json"
    text = history.to_json(path)
    figures = {"train_loss": [2.0, "Infinity"], "lr": [1e-05, None], "val_loss": [None, "-Infinity"]}
    assert json.loads(text, parse_constant=pytest.fail) == figures
    for source in (text, path, str(path)):
        assert History.from_json(source) == history and History.from_json(source).epochs == 2


@pytest.mark.parametrize(
    "text", ["{", "[1, 2]", '{"a": 1}', '{"a": ["x"]}', '{"a": [[1]]}', '{"a": [1], "b": []}']
)
def test_other_text_is_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="not a history"):
        History.from_json(path)


def test_a_frame_or_what_to_install(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    frame = history.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["train_loss", "lr", "val_loss"]
    assert (frame.index.name, list(frame.index)) == ("epoch", [1, 2])
    assert frame.loc[2, "val_loss"] == 1.5
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        history.to_frame()


@pytest.mark.parametrize(("width", "blocks"), [(None, 1), (38, 1), (37, 2), (1, 3)])
def test_a_table_of_limited_width(history: History, width: int | None, blocks: int) -> None:
    parts = history.table(width).split("\n\n")
    assert len(parts) == blocks
    assert all(part.startswith("epoch  ") and len(part.splitlines()) == 4 for part in parts)
    assert width in (None, 1) or max(map(len, history.table(width).splitlines())) <= width
    assert history.table().splitlines() == [
        "epoch  train_loss         lr  val_loss",
        "-----  ----------  ---------  --------",
        "    1      2.0000  1.000e-05         -",
        "    2      1.0000          -    1.5000",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0,), "0.0000"), ((-1.5,), "-1.5000"), ((9999,), "9999.0000"), ((12345,), "1.234e+04"),
        ((0.00012,), "1.200e-04"), ((NAN,), "-"), ((math.inf,), "inf"), ((1.5, 0.25), "1.5000 ± 0.2500"),
        ((1.5, NAN), "1.5000"), ((2e-5, 1e-6), "2.000e-05 ± 1.000e-06"), ((NAN, 1.0), "-"),
        ((-1.25, 0.25, "+.1f"), "-1.2 ± 0.2"),
    ],
)  # fmt: skip
def test_a_figure_with_or_without_its_spread(arguments: tuple[Any, ...], text: str) -> None:
    assert figure_text(*arguments) == text


def test_the_summary_shows_the_last_epoch_with_training_beside_validation():
    history = History(
        {"train_loss": [1.0, 0.5], "val_loss": [2.0, 1.5], "val_map": [0.1, 0.25], "lr": [0.1, 0.1]}
    )
    assert history.summary().splitlines() == [
        "figure   train     val",
        "------  ------  ------",
        "loss    0.5000  1.5000",
        "map             0.2500",
        "lr      0.1000",
    ]


def test_csv(history: History, tmp_path: Path) -> None:
    history.open_row()
    history.record({'a "quoted", name': 1 / 3, "val_loss": -math.inf})
    path = tmp_path / "runs" / "history.csv"
    text = history.to_csv(path)
    assert path.read_bytes() == text.encode()
    assert text.split("\r\n") == [
        'epoch,train_loss,lr,val_loss,"a ""quoted"", name"',
        "1,2.0,1e-05,,",
        "2,1.0,,1.5,",
        "3,,,-inf,0.3333333333333333",
        "",
    ]


def test_an_empty_history() -> None:
    history = History()
    assert (history.epochs, history.last, dict(history)) == (0, {}, {})
    assert history.table().splitlines() == ["epoch", "-----"] and history.to_csv() == "epoch\r\n"
    assert history.summary().splitlines()[0] == "figure  train  val"


def test_histories_of_several_seeds() -> None:
    """A run that ended early counts with its last figures."""
    one = History({"a": [1.0, 2.0, 4.0], "b": [1.0, 1.0, NAN]})
    other = History({"a": [3.0, 6.0], "c": [1.0, 1.0]})
    mean, spread = over_seeds([one, other])
    assert mean["a"] == [2.0, 4.0, 5.0]
    assert spread["a"] == pytest.approx([2**0.5, 8**0.5, 2**0.5], rel=1e-12)
    assert all(map(math.isnan, [*mean["b"], *mean["c"], *spread["b"], *spread["c"]]))
    mean, spread = over_seeds([one])
    np.testing.assert_equal(dict(mean), dict(one))
    assert all(math.isnan(value) for values in spread.values() for value in values)


def test_the_folders_of_seeds_are_in_their_order(tmp_path: Path) -> None:
    for name in ("seed-10", "seed-9", "seed-x", "seeds", "seed-11"):
        (tmp_path / name).mkdir()
        if name != "seed-11":  # which has not begun
            (tmp_path / name / "settings.json").touch()
    assert [folder.name for folder in seed_folders(tmp_path)] == ["seed-9", "seed-10"]
