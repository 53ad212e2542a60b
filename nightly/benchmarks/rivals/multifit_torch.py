"""multifit on PyTorch nets, in an environment without MXNet: the two-head net, and balanced tasks.

With two arguments after the data, it fits the two-head net, an epoch on each request. With three, it answers
each line, the name of a method of balancing, with the seconds of an epoch.
"""

import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Data, Line
from plain_torch import optimizer, two_heads
from torch import nn
from torchjd_balance import body

sys.path.insert(0, str(Path(__file__).parents[3]))

from multifit import Handler, MetricSpec, MultiEstimator, TaskSpec, balance  # noqa: E402

FIGURES = ("train_digit", "train_parity", "train_digit_accuracy", "train_parity_accuracy")
FEATURES = ", features"  # of a method that compares gradients of features


class Turns(Handler):
    """Starts an epoch on request."""

    priority = -1999.0

    def __init__(self) -> None:
        self.line = Line()

    def epoch_begin(self, estimator: Any, **_: Any) -> None:
        """Answer with the figures of the last epoch, and wait for the next request."""
        history = estimator.history
        figures = [history[name][-2] for name in FIGURES] if estimator.state.epoch else []
        if not self.line.turn(figures):
            sys.exit(0)


def fit_two_heads(data: Data, name: str) -> None:
    """Fit while epochs are requested."""
    spec = TaskSpec(
        inputs=["image"],
        outputs=["digit", "parity"],
        labels=["digit", "parity"],
        losses={"digit": nn.CrossEntropyLoss(), "parity": nn.BCEWithLogitsLoss()},
        metrics={
            "digit_accuracy": metric("accuracy", "digit"),
            "parity_accuracy": metric("binary_accuracy", "parity"),
        },
    )
    net = two_heads(data)
    batches = [tuple(map(torch.from_numpy, batch)) for batch in data.batches()]
    estimator = MultiEstimator(net, spec, optimizer(net, name))
    estimator.fit(batches, epochs=10**6, event_handlers=Turns())


def metric(name: str, of: str) -> Any:
    """Return a metric of an output and the label of the same name."""
    return MetricSpec(name, outputs=of, labels=of)


class Tasks(nn.Module):
    """A body, and a dense head for each task."""

    def __init__(self, kind: str, tasks: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, features = body(kind)
        self.heads = nn.ModuleList(nn.Linear(features, 10) for _ in range(tasks))

    def forward(self, image: torch.Tensor) -> list[torch.Tensor]:
        """Return each task's scores."""
        features = self.body(image)
        return [head(features) for head in self.heads]


class Trained:
    """A net that is trained with a method; a batch has an image and each task's classes."""

    def __init__(self, kind: str, name: str, batches: list[tuple[torch.Tensor, ...]]) -> None:
        tasks = [f"task{number}" for number in range(len(batches[0]) - 1)]
        spec = TaskSpec(
            inputs=["image"],
            outputs=tasks,
            labels=tasks,
            losses={task: nn.CrossEntropyLoss() for task in tasks},
            metrics={f"{task}_accuracy": metric("accuracy", task) for task in tasks},
        )
        options = {"on": "features"} if name.endswith(FEATURES) else {}
        name = name.removesuffix(FEATURES)
        method = None if name == "the sum" else getattr(balance, name)(**options)
        net = Tasks(kind, len(tasks))
        sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        self._estimator, self._batches = MultiEstimator(net, spec, sgd, balance=method), batches
        self._estimator.fit(batches, epochs=1, event_handlers=[])

    def epoch(self) -> None:
        """Train for an epoch, and read the figures."""
        for batch in self._batches:
            self._estimator.fit_batch(batch)
        self._estimator.figures("train")


def balanced(path: str, kind: str, batch: int) -> None:
    """Answer until the input ends."""
    with np.load(path) as file:
        image, *labels = (torch.from_numpy(file[name]) for name in file.files)
    batches = list(zip(*(array.split(batch) for array in (image, *(each.long() for each in labels)))))
    line, known = Line(), dict[str, Trained]()
    line.answer("ready")
    while name := line.wait():
        if name not in known:
            known[name] = Trained(kind, name, batches)
        begun = time.perf_counter()
        known[name].epoch()
        line.answer(time.perf_counter() - begun)


if __name__ == "__main__":
    logging.getLogger("multifit").setLevel(logging.ERROR)
    torch.set_num_threads(int(sys.argv[-1]))
    if len(sys.argv) == 4:
        fit_two_heads(Data(sys.argv[1]), sys.argv[2])
    else:
        balanced(sys.argv[1], sys.argv[2], int(sys.argv[3]))
