"""The two-head net in Keras 3, compiled and fitted, on the backend that KERAS_BACKEND names."""

import sys

import keras
from common import BATCH, Data, Line
from keras import layers

FIGURES = ("digit_loss", "parity_loss", "digit_sparse_categorical_accuracy", "parity_binary_accuracy")


def two_heads(data: Data) -> keras.Model:
    """Return the net, with the initial parameters of all contenders."""
    image = keras.Input((1, 8, 8))
    features = layers.Flatten()(image)
    features = layers.Dense(128, activation="relu")(features)
    features = layers.Dense(64, activation="relu")(features)
    heads = {"digit": layers.Dense(10, name="digit"), "parity": layers.Dense(1, name="parity")}
    net = keras.Model(image, {name: head(features) for name, head in heads.items()})
    dense = [layer for layer in net.layers if isinstance(layer, layers.Dense)]
    for layer, (weight, bias) in zip(dense, data.parameters):
        layer.set_weights([weight.T, bias])
    return net


class Turns(keras.callbacks.Callback):
    """Starts an epoch on request."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.figures = Line(), []

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Answer with the figures of the last epoch, and wait for the next request."""
        if not self.line.turn(self.figures):
            sys.exit(0)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Store the figures."""
        self.figures = [logs[name] for name in FIGURES]


def main(data: Data, name: str) -> None:
    """Compile the net, and fit it while epochs are requested."""
    net = two_heads(data)
    if name == "adam":
        optimizer = keras.optimizers.Adam(1e-3, epsilon=1e-8)
    else:
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    net.compile(
        optimizer=optimizer,
        loss={
            "digit": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "parity": keras.losses.BinaryCrossentropy(from_logits=True),
        },
        metrics={
            "digit": ["sparse_categorical_accuracy"],
            "parity": [keras.metrics.BinaryAccuracy(threshold=0.0)],
        },
    )
    labels = {"digit": data.kind, "parity": data.odd}
    net.fit(data.image, labels, batch_size=BATCH, epochs=10**9, shuffle=False, verbose=0, callbacks=[Turns()])


if __name__ == "__main__":
    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(int(sys.argv[3]))
    main(Data(sys.argv[1]), sys.argv[2])
