"""Warn of images with the channels last, as in Keras and NumPy, if convolutions take the channels first."""

from __future__ import annotations

from typing import Any, Iterator

from ...checks import CHANNELS_FIRST, describe, has_channels_last
from ..compat import mx
from ..execution.recordable import blocks_of
from ..execution.result import StepResult


def channels_last(result: StepResult, net: Any) -> Iterator[str]:
    """Yield a warning for each input whose rows a convolution seems to have taken for channels.

    A convolution with deferred initialisation accepts any number of channels. There is no warning if a
    convolution has the size of the last axis: then the net moves the channels itself.
    """
    convolutions = [block for block in blocks_of(net).values() if isinstance(block, mx.gluon.nn.Conv2D)]
    channels = {
        conv.weight.shape[1] * conv._kwargs["num_group"]
        for conv in convolutions
        if conv._kwargs["layout"] == "NCHW"
    }
    slots: Any = result.batch.slots[0]
    images = {name: slots[name] for name in result.spec.inputs if slots.get(name) is not None}
    for name, image in images.items():
        if has_channels_last(image.shape) and image.shape[1] in channels and image.shape[3] not in channels:
            yield (
                f'the input "{name}" {describe.array(image)} looks like images with the channels last, and a '
                f"convolution takes the {image.shape[1]} rows for channels; {CHANNELS_FIRST}"
            )
