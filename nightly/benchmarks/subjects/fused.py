"""The fastest step that one would write by hand: one graph for just this net, its losses and figures."""

from typing import Any

import mxnet as mx
from mxnet import autograd, gluon

from .subject import STATIC, Epoch

__all__ = ["fused"]


class Fused(gluon.HybridBlock):
    """The net, and the loss and the number of correct answers of each head: binary, or of classes."""

    def __init__(self, net: Any, binary: list[bool]) -> None:
        super().__init__()
        self.net, self._binary = net, binary

    def hybrid_forward(self, F: Any, image: Any, *labels: Any) -> Any:
        """Return the objective (1,), and the batch's sums of losses and correct answers (2 K,)."""
        outputs = self.net(image)
        losses, rights = [], []
        for binary, output, label in zip(self._binary, outputs if len(labels) > 1 else [outputs], labels):
            label = F.cast(label, "float32")
            if binary:
                overflow = F.Activation(-F.abs(output), act_type="softrelu")
                losses.append((F.relu(output) - output * label + overflow).sum())
                rights.append(((output > 0) == label).sum())
            else:
                losses.append(-F.pick(F.log_softmax(output), label).sum())
                rights.append((F.argmax(output, axis=1) == label).sum())
        return F.add_n(*losses), F.BlockGrad(F.concat(*losses, *rights, dim=0))


def fused(subject: Any) -> Epoch:
    """Return an epoch that runs one graph per batch; its sums stay on the device until the epoch ends."""
    net = subject.net()
    step = Fused(net, subject.binary)
    step.hybridize(**STATIC)
    trainer = gluon.Trainer(net.collect_params(), *subject.optimizer)

    def epoch(batches: Any) -> list[float]:
        sums, samples = mx.nd.zeros(2 * subject.count), 0
        for image, *labels in batches:
            with autograd.record():
                objective, batch_sums = step(image, *labels)
            objective.backward()
            trainer.step(image.shape[0])
            sums += batch_sums
            samples += image.shape[0]
        return (sums.asnumpy() / samples).tolist()

    return epoch
