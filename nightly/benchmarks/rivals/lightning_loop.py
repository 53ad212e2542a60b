"""The two-head net in Lightning, with torchmetrics, as its documentation shows."""

import logging
import sys
import warnings
from collections.abc import Iterator

import lightning
import torch
from common import Data, Line
from plain_torch import optimizer, two_heads
from torch.nn import functional as F
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy

FIGURES = ("digit", "parity", "digit_accuracy", "parity_accuracy")


class Module(lightning.LightningModule):
    """Two losses, two accuracies, each logged once an epoch."""

    def __init__(self, data: Data, name: str) -> None:
        super().__init__()
        self.net, self.name = two_heads(data), name
        self.digit_accuracy = MulticlassAccuracy(10, average="micro", validate_args=False)
        self.parity_accuracy = BinaryAccuracy(validate_args=False)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the objective, and log the figures."""
        image, kind, odd = batch
        digit, parity = self.net(image)
        digit_loss = F.cross_entropy(digit, kind)
        parity_loss = F.binary_cross_entropy_with_logits(parity, odd)
        self.digit_accuracy.update(digit, kind)
        self.parity_accuracy.update(parity, odd)
        self.log_dict(
            {
                "digit": digit_loss,
                "parity": parity_loss,
                "digit_accuracy": self.digit_accuracy,
                "parity_accuracy": self.parity_accuracy,
            },
            on_step=False,
            on_epoch=True,
            batch_size=len(image),
        )
        return digit_loss + parity_loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return optimizer(self.net, self.name)


class Batches:
    """Batches made beforehand; Lightning takes a list for several loaders."""

    def __init__(self, batches: list[tuple[torch.Tensor, ...]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


class Turns(lightning.Callback):
    """Starts an epoch on request."""

    def __init__(self) -> None:
        self.line = Line()

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: Module) -> None:
        """Answer with the figures of the last epoch, and wait for the next request."""
        figures = trainer.callback_metrics
        if not self.line.turn([figures[name] for name in FIGURES if name in figures]):
            sys.exit(0)


def main(data: Data, name: str) -> None:
    """Train without progress bar, logger and checkpoints."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        logger=False,
        callbacks=[Turns()],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    batches = Batches([tuple(map(torch.from_numpy, batch)) for batch in data.batches()])
    trainer.fit(Module(data, name), batches)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    main(Data(sys.argv[1]), sys.argv[2])
