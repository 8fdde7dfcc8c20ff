"""CIFAR-10-C: images under ten kinds of corruption, each kind a domain (Hendrycks & Dietterich 2019).

The kinds are those of FedL2P (section 4.1.1), at severity 3 with CIFAR-10-C's parameters for 32×32 pixels. They are
computed here from CIFAR-10's test split, from which the benchmark was made, too. "frost" is a substitute: the benchmark
overlays photographs of frost, this module a generated texture with the same weights.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import zoom

from florilegium.common.errors import DataError
from florilegium.common.seeds import numpy_generator

if TYPE_CHECKING:
    from florilegium.partitions.spec import Split

Pictures = NDArray[Any]
"""Images (n, height, width, 3), float32, 0..1."""

DOMAIN = "corruption"
TRAIN_SHARE = 0.8
CHUNK = 1000
"""Number of images corrupted at a time, to limit memory."""
GREY = np.array([0.299, 0.587, 0.114], np.float32)


def brightness(x: Pictures, rng: np.random.Generator) -> Pictures:
    """Raise the brightness, V in the HSV colour space, by 0.15."""
    value = x.max(axis=-1, keepdims=True)
    raised = np.minimum(value + np.float32(0.15), 1)
    return np.where(value > 0, x * (raised / np.maximum(value, 1e-6)), raised)


def saturate(x: Pictures, rng: np.random.Generator) -> Pictures:
    """Multiply the saturation, S in the HSV colour space, by 1.5."""
    value, least = x.max(axis=-1, keepdims=True), x.min(axis=-1, keepdims=True)
    saturation = (value - least) / np.maximum(value, 1e-6)
    factor = np.minimum(1.5 * saturation, 1) / np.maximum(saturation, 1e-6)
    return value - (value - x) * factor


def contrast(x: Pictures, rng: np.random.Generator) -> Pictures:
    """Multiply each pixel's difference from the channel's mean over the image by 0.4."""
    mean = x.mean(axis=(1, 2), keepdims=True)
    return mean + np.float32(0.4) * (x - mean)


def speckle_noise(x: Pictures, rng: np.random.Generator) -> Pictures:
    """Add Gaussian noise proportional to the pixel's value, of standard deviation 0.12."""
    return x + x * rng.normal(scale=0.12, size=x.shape).astype(np.float32)


def jpeg_compression(x: Pictures, rng: np.random.Generator) -> Pictures:
    """Compress to JPEG of quality 58."""

    def compressed(picture: Image.Image) -> Image.Image:
        data = io.BytesIO()
        picture.save(data, "JPEG", quality=58)
        return Image.open(data)

    return _each(x, compressed)


def pixelate(x: Pictures, rng: np.random.Generator) -> Pictures:
    """Shrink to 0.85 of the size and enlarge again, with a box filter."""
    height, width = x.shape[1:3]
    small = int(0.85 * width), int(0.85 * height)
    box = Image.Resampling.BOX
    return _each(x, lambda picture: picture.resize(small, box).resize((width, height), box))


def motion_blur(x: Pictures, rng: np.random.Generator) -> Pictures:
    """Blur along a line within 45° of the horizontal: radius 6, standard deviation 2, in pixels."""
    return _blurred(x, 6, 2, rng.uniform(-45, 45, len(x)))


def fog(x: Pictures, rng: np.random.Generator) -> Pictures:
    """Add 0.75 times a fractal cloud, then rescale to the image's original maximum."""
    most = x.max(axis=(1, 2, 3), keepdims=True)
    clouds = fractal(rng, len(x), x.shape[1], decay=2.5)[..., None]
    return (x + np.float32(0.75) * clouds) * most / (most + np.float32(0.75))


def frost(x: Pictures, rng: np.random.Generator) -> Pictures:
    """Add 0.4 times an icy texture to 0.9 times the image; the texture, ridges of a fractal, replaces photographs."""
    ridges = 1 - np.abs(2 * fractal(rng, len(x), x.shape[1], decay=1.6) - 1)
    ice = ridges[..., None] * np.array([0.80, 0.90, 1.0], np.float32)
    return np.float32(0.9) * x + np.float32(0.4) * ice


def snow(x: Pictures, rng: np.random.Generator) -> Pictures:
    """Whiten by a tenth, then add snowflakes, blurred in their direction of fall, and a copy of them turned by 180°."""
    count, height, width = x.shape[:3]
    scale, threshold = 1.75, 0.55
    inner = -(-height // scale)
    drawn = rng.normal(0.15, 0.3, size=(count, int(inner), int(inner))).astype(np.float32)
    flakes: Pictures = zoom(drawn, (1, scale, scale), order=1)
    top = (flakes.shape[1] - height) // 2
    flakes = flakes[:, top : top + height, top : top + width]
    flakes = np.clip(np.where(flakes < threshold, 0, flakes), 0, 1)[..., None]
    flakes = _blurred(flakes, 10, 4, rng.uniform(-135, -45, (count,)))
    pale = np.maximum(x, (x @ GREY)[..., None] * 1.5 + np.float32(0.5))
    return np.float32(0.9) * x + np.float32(0.1) * pale + flakes + np.rot90(flakes, 2, axes=(1, 2))


CORRUPTIONS: Mapping[str, Callable[[Pictures, np.random.Generator], Pictures]] = {
    function.__name__: function
    for function in (
        brightness, contrast, fog, frost, jpeg_compression, motion_blur, pixelate, saturate, snow, speckle_noise,
    )
}  # fmt: skip


def corrupted(splits: Mapping[str, Split]) -> dict[str, Split]:
    """Return the splits of CIFAR-10-C: every test image of CIFAR-10 once under each corruption.

    Four fifths of the images form the training split, the rest the test split. They are the same images under every
    corruption, so that no image is in both splits.

    Raises:
        DataError: if CIFAR-10's test split is missing.
    """
    if "test" not in splits:
        raise DataError("dataset 'cifar10_c' is made of CIFAR-10's test pictures: cifar10/test.parquet is missing")
    source = splits["test"]
    order = numpy_generator(0, DOMAIN).permutation(len(source))
    cut = int(TRAIN_SHARE * len(source))
    return {"train": _under_all(source, order[:cut], "train"), "test": _under_all(source, order[cut:], "test")}


def _under_all(source: Split, rows: NDArray[np.int64], name: str) -> Split:
    count = len(rows)
    out = np.empty((len(CORRUPTIONS) * count, *source.x.shape[1:]), np.uint8)
    for i, (kind, corrupt) in enumerate(CORRUPTIONS.items()):
        rng = numpy_generator(0, DOMAIN, kind, name)
        for start in range(0, count, CHUNK):
            some = rows[start : start + CHUNK]
            found = corrupt(source.x[some].astype(np.float32) / 255, rng)
            out[i * count + start :][: len(some)] = (255 * np.clip(found, 0, 1)).astype(np.uint8)
    domains = np.repeat(np.array(list(CORRUPTIONS)), count)
    return type(source)(out, np.tile(source.y[rows], len(CORRUPTIONS)), {DOMAIN: domains})


def fractal(rng: np.random.Generator, count: int, side: int, decay: float) -> Pictures:
    """Return random fields (count, side, side) of 0..1 by midpoint displacement (Fournier, Fussell, Carpenter 1982).

    From coarse to fine, each new point is the mean of its four neighbours, edges wrapped around, plus uniform noise
    whose range shrinks by ``decay``² with every halving.

    Args:
        rng: generator of the noise.
        count: number of fields.
        side: their height and width.
        decay: larger values give smoother fields.
    """
    size = 1 << (side - 1).bit_length()
    field = np.zeros((count, size, size), np.float32)
    step, reach = size, 1.0
    while step > 1:
        half = step // 2
        old = field[:, ::step, ::step]
        below, right = np.roll(old, -1, axis=1), np.roll(old, -1, axis=2)

        def near(total: Pictures, reach: float = reach) -> Pictures:
            return total / 4 + rng.uniform(-reach, reach, size=total.shape).astype(np.float32)

        middle = near(old + below + right + np.roll(below, -1, axis=2))
        field[:, half::step, half::step] = middle
        field[:, ::step, half::step] = near(old + right + middle + np.roll(middle, 1, axis=1))
        field[:, half::step, ::step] = near(old + below + middle + np.roll(middle, 1, axis=2))
        step, reach = half, reach / decay**2
    field = field[:, :side, :side]
    field = field - field.min(axis=(1, 2), keepdims=True)
    return field / field.max(axis=(1, 2), keepdims=True)


def _blurred(x: Pictures, radius: int, deviation: float, angles: NDArray[Any]) -> Pictures:
    """Blur each image in a direction of its own, with one half of a Gaussian; edge pixels are repeated.

    Args:
        x: images, (n, height, width, channels).
        radius: the blur is 2·radius + 1 pixels long.
        deviation: standard deviation of the Gaussian, in pixels.
        angles: direction for each image, in degrees from the horizontal, (n,).
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * deviation**2)).astype(np.float32)
    radians = np.deg2rad(angles)
    picture = np.arange(len(x))[:, None, None]
    total = np.zeros_like(x)
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        rows, columns = (
            np.clip(np.arange(size) + np.rint(step * along)[:, None].astype(np.int64), 0, size - 1)
            for size, along in ((x.shape[1], np.sin(radians)), (x.shape[2], np.cos(radians)))
        )
        total += weight * x[picture, rows[:, :, None], columns[:, None, :]]
    return total


def _each(x: Pictures, change: Callable[[Image.Image], Image.Image]) -> Pictures:
    """Apply ``change`` to every image, as a Pillow image."""
    pictures = (Image.fromarray(p) for p in np.rint(255 * x).astype(np.uint8))
    return np.stack([np.asarray(change(picture)) for picture in pictures]).astype(np.float32) / 255
