"""BLEU of a whole corpus (Papineni et al., 2002), by sacrebleu, from 0 to 1."""

from collections.abc import Sequence

from mxnet.metric import EvalMetric
from sacrebleu.metrics import BLEU

__all__ = ["Bleu"]


class Bleu(EvalMetric):
    """Collects translations and references, tokens separated by spaces, and scores them as one corpus.

    The mean of the batches' BLEU would be another figure, which depends on the batches.
    """

    def __init__(self, name: str = "bleu") -> None:
        self._bleu = BLEU(tokenize="none", force=True)  # no warning that the text is tokenized
        super().__init__(name)

    def reset(self) -> None:
        """Forget all sentences."""
        self._translations: list[str] = []
        self._references: list[str] = []

    def update(self, translations: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> None:
        """Add the sentences of a batch, one list per device."""
        self._translations += [sentence for device in translations for sentence in device]
        self._references += [sentence for device in references for sentence in device]

    def get(self) -> tuple[str, float]:
        """Return the name and the score of all sentences, or NaN without any."""
        if not self._translations:
            return self.name, float("nan")
        return self.name, self._bleu.corpus_score(self._translations, [self._references]).score / 100
