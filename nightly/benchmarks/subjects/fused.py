"""The fastest step that one would write by hand: one graph for just this net, its losses and figures."""

from typing import Any

import mxnet as mx
from mxnet import autograd, gluon

from .subject import STATIC, Epoch

__all__ = ["FusedEach", "FusedStacked", "FusedTwo", "fused"]


class FusedTwo(gluon.HybridBlock):
    """Digit and parity: returns the objective, and the sums for four figures."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def hybrid_forward(self, F: Any, image: Any, kind: Any, odd: Any) -> Any:
        """Return the objective (1,), and the batch's sums of losses and correct answers (4,)."""
        digit, parity = self.net(image)
        kind = F.cast(kind, "float32")
        cross = -F.pick(F.log_softmax(digit), kind).sum()
        binary = (F.relu(parity) - parity * odd + F.Activation(-F.abs(parity), act_type="softrelu")).sum()
        right = (F.argmax(digit, axis=1) == kind).sum(), ((parity > 0) == odd).sum()
        return cross + binary, F.BlockGrad(F.concat(cross, binary, *right, dim=0))


class FusedEach(gluon.HybridBlock):
    """Heads of ten classes, one after the other, in a loop."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def hybrid_forward(self, F: Any, image: Any, *kinds: Any) -> Any:
        """Return the objective (1,), and the batch's sums of losses and correct answers (2 K,)."""
        outputs = self.net(image)
        outputs = outputs if len(kinds) > 1 else [outputs]
        crosses, rights = [], []
        for output, kind in zip(outputs, kinds):
            kind = F.cast(kind, "float32")
            crosses.append(-F.pick(F.log_softmax(output), kind).sum())
            rights.append((F.argmax(output, axis=1) == kind).sum())
        return F.add_n(*crosses), F.BlockGrad(F.concat(*crosses, *rights, dim=0))


class FusedStacked(gluon.HybridBlock):
    """Heads of ten classes whose losses and figures are computed on the stacked outputs."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def hybrid_forward(self, F: Any, image: Any, *kinds: Any) -> Any:
        """Return the objective (1,), and the batch's sums of losses and correct answers (2 K,)."""
        outputs = self.net(image)
        stacked = F.stack(*(outputs if len(kinds) > 1 else [outputs]))
        kind = F.cast(F.stack(*kinds), "float32")
        cross = -F.pick(F.log_softmax(stacked), kind).sum(axis=1)
        right = (F.argmax(stacked, axis=2) == kind).sum(axis=1)
        return cross.sum(), F.BlockGrad(F.concat(cross, right, dim=0))


def fused(subject: Any, block: Any) -> Epoch:
    """Return an epoch that runs one graph per batch; its sums stay on the device until the epoch ends."""
    net = subject.net()
    step = block(net)
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
