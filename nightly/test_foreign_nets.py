"""Large nets of gluoncv train as in its scripts; tests/nets has the nets that can be made tiny."""

from typing import Any

import numpy as np

from multifit import LossSpec, TaskSpec
from tests.common.hand_loop import assert_trains_as_by_hand

from gluoncv.loss import ICNetLoss  # isort: skip
from gluoncv.model_zoo.icnet import ICNet  # isort: skip
from mxnet.gluon import nn  # isort: skip

SIDE, CLASSES = 64, 3


def test_icnet() -> None:
    """ICNet has three resolutions (Zhao et al., 2018); its loss ignores the gradients that it receives."""
    random = np.random.RandomState(0)
    loss = ICNetLoss(crop_size=SIDE)
    outputs = ["whole", "quarter", "eighth", "sixteenth"]
    losses = {"map": LossSpec(loss, outputs, "map")}
    spec = TaskSpec(inputs=["image"], outputs=outputs, labels=["map"], losses=losses)
    batches = [
        (random.randn(2, 3, SIDE, SIDE).astype("float32"), random.randint(-1, CLASSES, (2, SIDE, SIDE)) * 1.0)
        for _ in range(3)
    ]

    def make() -> Any:
        net = ICNet(CLASSES, "resnet50", pretrained_base=False, crop_size=SIDE)
        return net.apply(_without_dropout)

    def objective(net: Any, image: Any, labels: Any) -> Any:
        return loss(*net(image), labels)

    assert_trains_as_by_hand(make, spec, batches, objective, None, True, "sgd", {"learning_rate": 1e-4})


def _without_dropout(block: Any) -> None:
    if isinstance(block, nn.Dropout):
        block._rate = 0
