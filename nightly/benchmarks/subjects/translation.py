"""The attention model of tasks/translation.py: two trainers, a masked loss, batches of many shapes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import mxnet as mx
import numpy as np
from gluonnlp.loss import MaskedSoftmaxCELoss
from mxnet import autograd, gluon

from multifit import LossSpec, TaskSpec, TrainerSpec
from multifit.losses import SequenceCELoss

from .subject import Epoch, Subject, task

__all__ = ["NMT", "Translator"]

CLIP = 5.0


@dataclass(frozen=True, eq=False)  # hashed by identity, for the cache of its batches
class Translator(Subject):
    """The translation model with settings of the task."""

    name: str
    settings: tuple[str, ...]
    batch: int = 64
    predicts: str = "sentences"
    optimizer: tuple[str, Mapping[str, float]] = ("adam", {"learning_rate": 3e-3})

    @property
    def _task(self) -> Any:
        return task("translation", "val_count=64", *self.settings)

    def make(self) -> Any:
        """Return the task's net; it is hybridized later."""
        net = self._task.net()
        net.hybridize(False)
        return net

    @cache  # noqa: B019 - there are few of its kind
    def batches(self) -> list[tuple[Any, ...]]:
        """Return batches of sentences that are alike in length."""
        np.random.seed(0)
        return [
            tuple(slot.as_in_context(mx.cpu()) for slot in batch)
            for batch in self._task.bitext().loaders(self.batch)[0]
        ]

    def _inputs(self) -> list[Any]:
        return list(self.batches()[0][:4])

    def spec(self, net: Any) -> TaskSpec:
        """Return the training half of the task's spec, as a training step needs no beam search."""
        return TaskSpec(
            inputs=["source", "target_in", "source_length", "target_length"],
            outputs=["logits", ...],
            labels=["target_out", "target_length"],
            losses={
                "translation": LossSpec(
                    SequenceCELoss(),
                    "logits",
                    ["target_out", "target_length"],
                    normalize_by="target_length",
                )
            },
        )

    def trainers(self, net: Any) -> Any:
        """Return a trainer for the encoder and one for the decoder."""
        name, options = self.optimizer
        return {
            half: TrainerSpec(pattern, name, options, clip_norm=CLIP)
            for half, pattern in (
                ("encoder", r"(src_embed|encoder)\..*"),
                ("decoder", r"(tgt_embed|decoder|tgt_proj)\..*"),
            )
        }

    def hand_written(self) -> Epoch:
        """Return an epoch as in gluonnlp's scripts, which hybridize their loss, with two trainers."""
        net, masked_loss, figure = self.net(), MaskedSoftmaxCELoss(), mx.metric.Loss()
        masked_loss.hybridize(static_alloc=True)
        encoder, decoder = gluon.ParameterDict(), gluon.ParameterDict()
        for held, blocks in (
            (encoder, (net.src_embed, net.encoder)),
            (decoder, (net.tgt_embed, net.decoder, net.tgt_proj)),
        ):
            for block in blocks:
                held.update(block.collect_params())
        trainers = [gluon.Trainer(held, *self.optimizer) for held in (encoder, decoder)]

        def epoch(batches: Any) -> list[float]:
            figure.reset()
            for source, target_in, source_length, target_length, target_out in batches:
                with autograd.record():
                    logits, *_ = net(source, target_in, source_length, target_length)
                    sums = masked_loss(logits, target_out, target_length) * target_out.shape[1]
                    loss = sums.sum() / target_length.sum()  # per token, not per padded position
                loss.backward()
                for held, trainer in zip((encoder, decoder), trainers):
                    grads = [p.grad() for p in held.values() if p.grad_req != "null"]
                    gluon.utils.clip_global_norm(grads, CLIP, check_isfinite=False)
                    trainer.step(1)
                figure.update(0, loss)
            return [figure.get()[1]]

        return epoch


NMT = Translator("NMT", ("train_count=1280",))  # twenty batches
