"""The confusion matrix."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

__all__ = ["confusion"]


def confusion(truth: np.ndarray, predicted: np.ndarray, names: Sequence[str], title: str) -> Figure:
    """Draw how often each class was predicted as which.

    Parameters
    ----------
    truth, predicted : array of int, shape (N,)
        Classes, from 0.
    names : sequence of str
        Names of the classes.
    title : str
        The title; the accuracy is written below it.
    """
    counts = np.zeros((len(names), len(names)), int)
    np.add.at(counts, (truth, predicted), 1)
    side = 2.5 + 0.45 * len(names)
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    # Coloured by the share of the row, so that rare classes are visible too.
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            colour = "white" if share[row, column] > 0.5 else "tab:red" if row != column else "black"
            axes.text(column, row, count, ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(
        f"{title}\n{np.trace(counts)} of {len(truth)} right ({np.mean(truth == predicted):.1%})", fontsize=10
    )
    return figure
