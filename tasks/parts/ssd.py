"""gluoncv's SSD on any body."""

from collections.abc import Sequence
from typing import Any

from gluoncv.model_zoo.ssd import SSD, get_ssd
from parts.pyramid import Pyramid

__all__ = ["Tiny", "ssd_on"]


def ssd_on(features: Any, size: int, classes: Sequence[str]) -> SSD:
    """Return gluoncv's SSD for images of `size` on three maps of strides 8, 16 and 32.

    `features` is the block that computes the maps, or the name of a ResNet.
    """
    options = {
        "ratios": [[1, 2, 0.5]] * 3,
        "sizes": [share * size for share in (0.16, 0.28, 0.44, 0.62)],
        "steps": [8, 16, 32],
        "classes": classes,
        "anchor_alloc_size": size // 4,
        "post_nms": 50,
    }
    if not isinstance(features, str):
        return SSD(None, size, lambda **_: features, None, **options)
    maps = [f"stage{stage}_activation1" for stage in (2, 3, 4)]
    return get_ssd(features, size, maps, filters=[], dataset="", pretrained_base=False, **options)


class Tiny(Pyramid):
    """A small body that computes the three maps that the SSD takes."""

    def hybrid_forward(self, F: Any, image: Any) -> list[Any]:
        """Return three maps."""
        return super().hybrid_forward(F, image)[1:]
