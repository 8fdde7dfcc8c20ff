"""Feature skew: identically distributed clients, each of which sees all its images rotated by its own angle.

As in Ghosh et al. 2020 and FLowDUP (section 5.1): an IID partition, then an angle drawn for every client.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2.functional import InterpolationMode, rotate

from florilegium.common.seeds import numpy_generator
from florilegium.common.settings import parse_numbers
from florilegium.partitions.partitioners.iid import make
from florilegium.partitions.settings import FederationSettings

__all__ = ["draw_angles", "make", "rotate_images", "views"]


def views(settings: FederationSettings) -> dict[str, NDArray[np.float32]]:
    """Return the clients' angles (:func:`draw_angles`)."""
    return {"angles": draw_angles(settings)}


def draw_angles(settings: FederationSettings) -> NDArray[np.float32]:
    """Draw each client's angle in degrees, counter-clockwise, uniformly from ``angles``; shape (num-clients,)."""
    rng = numpy_generator(settings.seed, "federation", "angles")
    return rng.choice(np.array(parse_numbers(settings.angles), dtype=np.float32), size=settings.num_clients)


def rotate_images(images: NDArray[Any], angle: float) -> NDArray[Any]:
    """Rotate decoded images (n, height, width, channels) by ``angle`` degrees counter-clockwise around their centre.

    Multiples of 90° only move pixels; for other angles pixels are interpolated bilinearly, and corners filled black.
    """
    quarters = angle / 90
    if quarters == round(quarters):
        return np.rot90(images, round(quarters), axes=(1, 2))
    rotated = rotate(torch.from_numpy(images).permute(0, 3, 1, 2), angle, interpolation=InterpolationMode.BILINEAR)
    return rotated.permute(0, 2, 3, 1).numpy()
