"""What the shape of an image says."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ...utils.protocols import Shape
from . import describe

CHANNELS_FIRST = (
    "images are (N, C, H, W): give them ToTensor() of gluon.data.vision.transforms, "
    "or transpose((0, 3, 1, 2))"
)


def has_channels_last(shape: Shape) -> bool:
    """Whether a batch of this shape looks like square images (N, H, W, C) of 1, 3 or 4 channels."""
    return len(shape) == 4 and shape[1] == shape[2] > 4 and shape[3] in (1, 3, 4)


def channels_hint(arguments: Iterable[tuple[str, Any]]) -> str:
    """Return the way out after an error about channels; "" if no argument looks like images."""
    shapes = (tuple(getattr(value, "shape", ())) for _, value in arguments)
    return f"; {CHANNELS_FIRST}" if any(map(has_channels_last, shapes)) else ""


def channel_doubts(images: Mapping[str, Any], channels: Collection[int]) -> Iterator[str]:
    """Yield a warning for each input whose rows a convolution seems to have taken for channels.

    A convolution that learns its size from the first batch takes any number of `channels`. There is no
    warning if a convolution has the size of the last axis: then the net moves the channels itself.
    """
    for name, image in images.items():
        shape = tuple(getattr(image, "shape", ()))
        if has_channels_last(shape) and shape[1] in channels and shape[3] not in channels:
            yield (
                f'the input "{name}" {describe.array(image)} looks like images with the channels last, and a '
                f"convolution takes the {shape[1]} rows for channels; {CHANNELS_FIRST}"
            )
