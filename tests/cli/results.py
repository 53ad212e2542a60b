"""What a run of the small task leaves in its folder, and changes of its file."""

import json
from pathlib import Path

WRITTEN = [
    "checkpoints", "confusion_kind.png", "curves.png", "final.params", "history.json", "log.txt", "plan.json",
    "plan.txt", "scatter_place.png", "settings.json", "tensorboard",
]  # fmt: skip

PICTURES = """
def pictures(estimator, data, history, output, context):
    from matplotlib.figure import Figure
    assert history.epochs == epochs and output.is_absolute() and context == estimator.context
    figure = Figure(figsize=(2, 2))
    figure.add_subplot().scatter(estimator.predict(data[1])["place"][:, 0], range(10))
    return {"places": figure}
"""

INPUTS = """
def inputs(arguments):
    return np.array([text.split(",") for text in arguments], "float32")
"""

DRAW = """
def show(outputs):
    from matplotlib.figure import Figure
    return [Figure(figsize=(1, 1)) for _ in outputs["kind"]]
"""

MISSPELT = {'outputs=["kind", "place"]': 'outputs=["kind", "plase"]'}


def history_of(folder: str = "runs/small") -> dict:
    return json.loads((Path(folder) / "history.json").read_text())


def record_of(folder: str = "runs/small") -> dict:
    return json.loads((Path(folder) / "settings.json").read_text())


def figures_of(printed: str) -> dict[str, float]:
    """Return the figures that ``evaluate --quiet`` printed."""
    return {name: float(value) for name, value in map(str.split, printed.splitlines())}
