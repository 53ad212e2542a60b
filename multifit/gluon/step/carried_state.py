"""State that is carried from batch to batch, such as the hidden state of a language model."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...checks import describe
from ...errors import DataError, SpecError
from ...protocols import Array, Context
from ..compat import mx
from ..data.batch import Batch

States = list[dict[str, Array]]  # of each device


class CarriedState:
    """The outputs of a stage's last batch that are inputs of the next one, on each device, without gradients.

    `shapes` are the shapes of these slots, with 0 for the number of samples; `dtype` is that of the net.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], contexts: Sequence[Context], dtype: str
    ) -> None:
        self.shapes, self._contexts, self._dtype = shapes, list(contexts), dtype
        self._arrays: dict[Context, dict[str, Array]] = {}

    def reset(self) -> None:
        """Begin with zeros again."""
        self.load([])

    def fill_in(self, batch: Batch) -> None:
        """Add the state to a batch's slots; raises DataError if their numbers of samples differ."""
        for context, slots, size in batch.devices():
            slots.update(self._of(context, size))
        batch.signature = None

    def keep(self, batch: Batch, outputs: Sequence[Mapping[str, Any]]) -> None:
        """Remember the outputs of a batch; raises SpecError if one does not have the shape of its slot."""
        for slots, arrays in zip(batch.slots, outputs):
            taken: Mapping[str, Any] = slots
            for name in self.shapes:
                if arrays[name].shape != taken[name].shape:
                    raise SpecError(
                        f'state: "{name}" is {describe.array(slots[name])} as an input, but the output '
                        f'"{name}" is {describe.array(arrays[name])}; declare the shape of the output, with '
                        "0 for the number of samples"
                    )
        for context, arrays in zip(batch.contexts, outputs):
            # copied, because an output that is a parameter changes when that is updated
            self._arrays[context] = {name: arrays[name].copy() for name in self.shapes}

    def state(self) -> States:
        """Return the state of each device that has one, for a checkpoint."""
        return [self._arrays[context] for context in self._contexts if context in self._arrays]

    def load(self, state: Sequence[Mapping[str, Array]]) -> None:
        """Restore what :meth:`state` returned."""
        self._arrays = {
            context: {name: array.as_in_context(context) for name, array in arrays.items()}
            for context, arrays in zip(self._contexts, state)
        }

    def _of(self, context: Context, size: int) -> dict[str, Array]:
        shapes = {name: tuple(n or size for n in shape) for name, shape in self.shapes.items()}
        if context not in self._arrays:
            return {
                name: mx.nd.zeros(shape, ctx=context, dtype=self._dtype) for name, shape in shapes.items()
            }
        for name, array in self._arrays[context].items():
            if array.shape != shapes[name]:
                before = array.shape[self.shapes[name].index(0)]
                raise DataError(
                    f"state: {context} gets {size} samples of a batch, but the state of the previous batch "
                    f'has {before}; make all batches equally large: last_batch="discard"'
                )
        return self._arrays[context]
