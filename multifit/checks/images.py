"""What the shape of an image says."""

from ..protocols import Shape

CHANNELS_FIRST = (
    "images are (N, C, H, W): give them ToTensor() of gluon.data.vision.transforms, "
    "or transpose((0, 3, 1, 2))"
)


def has_channels_last(shape: Shape) -> bool:
    """Whether a batch of this shape looks like square images (N, H, W, C) of 1, 3 or 4 channels."""
    return len(shape) == 4 and shape[1] == shape[2] > 4 and shape[3] in (1, 3, 4)
