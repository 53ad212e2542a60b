"""Run the commands on a task file, as a user does."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from multifit.cli import main

TASKS = Path(__file__).parents[2] / "tasks"


def train(file: Path, folder: Path, *arguments: str) -> dict[str, list[float]]:
    """Train into a folder and return the history. The arguments begin with settings."""
    command = ["train", str(file), "--output", str(folder), "--quiet"]
    assert main([*command, *(["--set"] if arguments else []), *arguments]) == 0
    return json.loads((folder / "history.json").read_text())


def check(file: Path, *settings: str) -> None:
    """Check that net, spec, data and trainers fit; nothing is trained."""
    assert main(["check", str(file), "--quiet", "--set", *settings]) == 0


def predict(file: Path, folder: Path, capsys: Any, *arguments: str) -> list[str]:
    """Return the lines that are printed for the predictions of a trained run."""
    capsys.readouterr()
    assert main(["predict", str(file), "--from", str(folder), "--quiet", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def random_picture(folder: Path) -> str:
    """Write a picture of noise, 40 by 50 pixels, and return its path."""
    path = folder / "any.png"
    cv2.imwrite(str(path), np.random.RandomState(0).randint(0, 256, (50, 40, 3), "uint8"))
    return str(path)


def is_drawn(line: str) -> bool:
    """Return whether a printed line ends with the path of a picture that is not empty."""
    return Path(line.split(": ")[1]).stat().st_size > 3_000
