"""Tests of partitions.rotation: the angles drawn, and rotation against NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from florilegium.partitions.partitioners.rotation import draw_angles, rotate_images
from tests.support import settings


def _images(side: int = 9) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(2, side, side, 3)).astype(np.float32)


def _rotated(angle: float, images: np.ndarray | None = None) -> np.ndarray:
    return rotate_images(_images() if images is None else images, angle)


class TestRotation:
    @given(st.integers(-8, 8), st.integers(1, 6))
    def test_quarter_turns_move_pixels_and_change_none(self, quarters, side):
        images = _images(side)
        np.testing.assert_array_equal(_rotated(90.0 * quarters, images), np.rot90(images, quarters, axes=(1, 2)))

    @pytest.mark.parametrize("angle", [30.0, 45.0, -20.0, 137.0, 271.5])
    def test_other_angles_are_bilinear_with_zeros_outside(self, angle):
        expected = scipy.ndimage.rotate(
            _images(), angle, axes=(2, 1), reshape=False, order=1, mode="grid-constant", cval=0.0
        )
        np.testing.assert_allclose(_rotated(angle), expected, atol=1e-5)

    def test_both_ways_turn_in_the_same_direction(self):
        np.testing.assert_allclose(_rotated(90.001)[:, 1:-1, 1:-1], _rotated(90.0)[:, 1:-1, 1:-1], atol=1e-3)

    def test_turns_are_counter_clockwise(self):
        image = np.zeros((1, 3, 3, 1), np.float32)
        image[0, 0, 2, 0] = 1  # top right
        assert _rotated(90.0, image)[0, 0, 0, 0] == 1  # is then top left

    @pytest.mark.parametrize("angle", [0.0, 90.0, 30.0])
    def test_bytes_stay_bytes(self, angle):
        images = np.random.default_rng(0).integers(0, 256, (2, 9, 9, 3), dtype=np.uint8)
        assert rotate_images(images, angle).dtype == np.uint8

    def test_the_given_images_are_not_changed(self):
        images = _images()
        rotate_images(images, 30.0)
        np.testing.assert_array_equal(images, _images())


class TestAngles:
    def test_every_client_has_one_of_the_listed_angles(self):
        angles = draw_angles(settings(num_clients=40, angles="0, 15.5, -90"))
        assert angles.shape == (40,)
        assert set(angles.tolist()) == {0.0, 15.5, -90.0}

    def test_they_are_uniform(self):
        """4,000 draws of four angles: 1,000 each expected; χ² at the level 10⁻³."""
        angles = draw_angles(settings(num_clients=4000, angles="0,90,180,270"))
        assert chisquare(np.unique(angles, return_counts=True)[1]).pvalue > 1e-3

    def test_the_seed_decides(self):
        first, second, other = (draw_angles(settings(num_clients=50, seed=seed)).tolist() for seed in (1, 1, 2))
        assert first == second != other
