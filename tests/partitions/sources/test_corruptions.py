"""CIFAR-10-C: each corruption against what it must do to pictures whose answer is known, and the split."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
from PIL import Image

from florilegium.partitions.sources import corruptions
from florilegium.partitions.sources.corruptions import CORRUPTIONS, corrupted, fractal
from florilegium.partitions.spec import Split


def _pictures(count: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(count, 32, 32, 3)).astype(np.float32) / 255


def _rng() -> np.random.Generator:
    return np.random.default_rng(1)


@pytest.mark.parametrize(
    ("name", "change"),
    [("brightness", lambda h, s, v: (h, s, min(v + 0.15, 1))), ("saturate", lambda h, s, v: (h, min(1.5 * s, 1), v))],
)
def test_hue_saturation_value(name, change) -> None:
    """Against Python's own conversion of colours, pixel by pixel."""
    x = _pictures(1)
    x[0, 0, :3] = [[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5]]
    expected = [
        colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*pixel))) for pixel in x.reshape(-1, 3).astype(float).tolist()
    ]
    np.testing.assert_allclose(CORRUPTIONS[name](x, _rng()).reshape(-1, 3), expected, atol=1e-5)


def test_contrast_shrinks_towards_each_channel_mean() -> None:
    x = _pictures()
    y = CORRUPTIONS["contrast"](x, _rng())
    np.testing.assert_allclose(y.mean(axis=(1, 2)), x.mean(axis=(1, 2)), atol=1e-5)
    np.testing.assert_allclose(y.std(axis=(1, 2)), 0.4 * x.std(axis=(1, 2)), rtol=1e-4)


def test_speckle_noise_grows_with_the_value() -> None:
    for value in (0.0, 0.25, 0.5):
        y = CORRUPTIONS["speckle_noise"](np.full((10, 32, 32, 3), value, np.float32), _rng())
        assert y.mean() == pytest.approx(value, abs=0.002)
        assert y.std() == pytest.approx(0.12 * value, rel=0.02)


@pytest.mark.parametrize("name", ["jpeg_compression", "pixelate", "motion_blur"])
def test_a_plain_picture_stays_as_it_is_and_another_does_not(name) -> None:
    plain = np.full((2, 32, 32, 3), 100 / 255, np.float32)
    np.testing.assert_allclose(CORRUPTIONS[name](plain, _rng()), plain, atol=1e-5)
    x = _pictures()
    y = CORRUPTIONS[name](x, _rng())
    assert y.std() < 0.9 * x.std()  # all three smooth
    assert y.mean() == pytest.approx(x.mean(), abs=0.01)


def test_pixelate_is_pillow_at_27_pixels() -> None:
    x = _pictures(1)
    picture = Image.fromarray(np.rint(255 * x[0]).astype(np.uint8))
    expected = picture.resize((27, 27), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
    np.testing.assert_allclose(255 * CORRUPTIONS["pixelate"](x, _rng())[0], np.asarray(expected), atol=1e-3)


def test_motion_blur_of_radius_6_and_deviation_2_lies_nearly_level() -> None:
    """A point becomes 13 pixels at most, of which it keeps a half-Gaussian's first weight."""
    x = np.zeros((200, 32, 32, 3), np.float32)
    x[:, 16, 16] = 1
    y = CORRUPTIONS["motion_blur"](x, _rng())[..., 0]
    weights = np.exp(-(np.arange(13) ** 2) / 8)
    np.testing.assert_allclose(y[:, 16, 16], weights[0] / weights.sum(), rtol=1e-5)
    rows, columns = (np.abs(np.nonzero(y > 1e-9)[axis] - 16).max() for axis in (1, 2))
    assert (rows, columns) == (8, 12)  # 12·sin 45°, and 12
    slopes = [np.ptp(np.nonzero(picture > 1e-9)[0]) / np.ptp(np.nonzero(picture > 1e-9)[1]) for picture in y]
    assert 0.9 < max(slopes) <= 1
    assert min(slopes) < 0.1


@pytest.mark.parametrize(("name", "kept"), [("frost", 0.9), ("snow", None)])
def test_weather_lies_over_pictures_with_a_fixed_weight(name, kept) -> None:
    """Two pictures under the same weather differ by what is kept of their difference."""
    x = 0.2 * _pictures(2)
    first, second = (CORRUPTIONS[name](picture[None], _rng()) for picture in x)
    if kept is None:  # snow: nine tenths of the picture, a tenth of its pale copy, 1.5 times its grey and a half
        grey = x @ np.array([0.299, 0.587, 0.114], np.float32)
        expected = 0.9 * (x[1] - x[0]) + 0.1 * 1.5 * (grey[1] - grey[0])[..., None]
    else:
        expected = kept * (x[1] - x[0])
    np.testing.assert_allclose((second - first)[0], expected, atol=1e-5)


def test_fog_adds_three_quarters_of_a_cloud() -> None:
    """Over a black picture with one white pixel: 0.75·cloud/1.75, the cloud filling 0 to 1."""
    x = np.zeros((20, 32, 32, 3), np.float32)
    x[:, 0, 0] = 1
    y = CORRUPTIONS["fog"](x, _rng())[:, :, :, 0]
    y[:, 0, 0] -= 1 / 1.75
    np.testing.assert_allclose(y.min(axis=(1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(y.max(axis=(1, 2)), 0.75 / 1.75, rtol=1e-5)
    drawn = fractal(_rng(), 20, 32, decay=2.5)
    np.testing.assert_allclose(y, 0.75 / 1.75 * drawn, atol=1e-6)


def test_fractal_noise_shrinks_by_the_square_of_its_decay() -> None:
    """What a finest edge point has beyond its neighbours is the last step's noise; the middle has the first's.

    Fields are scaled to 0..1 one by one, which moves the ratio of the spreads a little.
    """
    fields = fractal(_rng(), 4000, 4, decay=2.0)
    last = fields[:, 0, 1] - (fields[:, 0, 0] + fields[:, 0, 2] + fields[:, 1, 1] + fields[:, 3, 1]) / 4
    first = fields[:, 2, 2] - fields[:, 0, 0]
    assert last.std() / first.std() == pytest.approx(0.25, rel=0.15)


@pytest.mark.parametrize(("angle", "axis"), [(0.0, 1), (90.0, 0)])
def test_motion_blur_smears_a_point_into_half_a_gaussian(angle, axis) -> None:
    x = np.zeros((1, 32, 32, 1), np.float32)
    x[0, 16, 16] = 1
    y = corruptions._blurred(x, 6, 2, np.array([angle]))[0, :, :, 0]
    line = y[16] if axis else y[:, 16]
    assert line.sum() == pytest.approx(y.sum()) == pytest.approx(1)
    np.testing.assert_allclose(line[16:9:-1] / line[16], np.exp(-(np.arange(7) ** 2) / 8), rtol=1e-5)
    assert (line[17:] == 0).all()


def test_fractals_fill_their_range_and_a_larger_decay_makes_them_smoother() -> None:
    rough, smooth = (fractal(_rng(), 20, 32, decay) for decay in (1.2, 2.5))
    for field in (rough, smooth):
        assert (field.min(axis=(1, 2)) == 0).all()
        assert (field.max(axis=(1, 2)) == 1).all()
    assert np.abs(np.diff(smooth, axis=1)).mean() < 0.5 * np.abs(np.diff(rough, axis=1)).mean()


def test_frost_and_snow_whiten() -> None:
    black = np.zeros((50, 32, 32, 3), np.float32)
    ice, flakes = (CORRUPTIONS[name](black, _rng()) for name in ("frost", "snow"))
    assert ice.min() >= 0
    assert 0.3 < ice.max() <= 0.4 + 1e-6
    np.testing.assert_allclose(flakes, np.rot90(flakes, 2, axes=(1, 2)), atol=1e-6)  # flakes fall upside down as well
    assert flakes.min() == pytest.approx(0.05)  # a tenth of the pale picture, which is 0.5 here
    assert flakes.max() > 0.3


def test_every_test_picture_once_under_each_corruption_and_none_in_both_parts() -> None:
    x = (255 * _pictures(50)).astype(np.uint8)
    numbers = np.arange(50)
    splits = {"train": Split(x[:0], numbers[:0], {}), "test": Split(x, numbers, {})}
    made = corrupted(splits)
    parts = {}
    for name, count in (("train", 40), ("test", 10)):
        split = made[name]
        assert split.x.shape == (10 * count, 32, 32, 3)
        assert split.x.dtype == np.uint8
        kinds = split.clients["corruption"]
        parts[name] = set(split.y[kinds == "fog"].tolist())
        for kind in CORRUPTIONS:
            assert set(split.y[kinds == kind].tolist()) == parts[name]
            own = split.x[kinds == kind].astype(float)
            assert np.abs(own - x[split.y[kinds == kind]]).mean() > 1  # corrupted, and of the right picture:
            assert np.corrcoef(own.ravel(), x[split.y[kinds == kind]].ravel())[0, 1] > 0.2
    assert parts["train"] | parts["test"] == set(range(50))
    assert len(parts["train"] & parts["test"]) == 0
    again = corrupted(splits)
    assert all((again[name].x == made[name].x).all() for name in made)
