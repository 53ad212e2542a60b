"""BLEU of a whole corpus (Papineni et al., 2002), by sacrebleu, from 0 to 1."""

from __future__ import annotations

from typing import Sequence

from mxnet.metric import EvalMetric
from sacrebleu.metrics import BLEU

__all__ = ["Bleu"]


class Bleu(EvalMetric):
    """Gathers translations and references, token by token parted by blanks, and scores them all at once.

    The mean of the batches' BLEU would be another figure, which depends on how the batches were made.
    """

    def __init__(self, name: str = "bleu") -> None:
        self._bleu = BLEU(
            tokenize="none", force=True
        )  # forced: no advice about tokens that are tokens already
        super().__init__(name)

    def reset(self) -> None:
        """Forget all sentences."""
        self._found: list[str] = []
        self._wanted: list[str] = []

    def update(self, translations: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> None:
        """Take the sentences of a batch, a list of them for every device."""
        self._found += [sentence for device in translations for sentence in device]
        self._wanted += [sentence for device in references for sentence in device]

    def get(self) -> tuple[str, float]:
        """Return the name and the score of all sentences; NaN where there are none."""
        if not self._found:
            return self.name, float("nan")
        return self.name, self._bleu.corpus_score(self._found, [self._wanted]).score / 100
