"""Speech Commands: pure tones in their bands, and a made corpus becomes clients with twelve classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

from florilegium.common.errors import DataError
from florilegium.partitions.federation import federate
from florilegium.partitions.sources.speech import BANDS, FRAMES, LABELS, RATE, mel_filters, spectrogram, write_speech
from tests.support import CACHE, load, settings

WORDS = {"yes": 300, "no": 900, "cat": 2000, "bed": 4000}
"""Pitch of each made word, in hertz."""


def _tone(pitch: float, volume: float = 0.5, seconds: float = 1.0) -> np.ndarray:
    return volume * np.sin(2 * np.pi * pitch * np.arange(int(seconds * RATE)) / RATE)


def _write(file: Path, samples: np.ndarray, rate: int = RATE) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(file, rate, (samples * 2**15).astype(np.int16))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make five speakers who say each word six times, 0.7 seconds long, and a noise; one says no command."""
    folder = tmp_path_factory.mktemp("corpus")
    for speaker in range(5):
        for word, pitch in WORDS.items():
            for number in range(6 if speaker < 4 or word == "cat" else 0):
                _write(folder / word / f"{speaker:08x}_nohash_{number}.wav", _tone(pitch + number, seconds=0.7))
    _write(folder / "_background_noise_" / "hum.wav", 0.1 * np.random.default_rng(1).normal(size=3 * RATE).clip(-5, 5))
    (folder / "_background_noise_" / "README.md").write_text("noise")
    (folder / "testing_list.txt").write_text("")
    return folder


def test_a_pure_tone_is_white_in_its_own_band() -> None:
    f = np.fft.rfftfreq(1024, 1 / RATE)
    for pitch in (250.0, 1000.0, 5000.0):
        picture = spectrogram(_tone(pitch, volume=1.0))
        assert picture.shape == (BANDS, FRAMES)
        weights = mel_filters()[:, np.abs(f - pitch).argmin()]
        assert picture[:, 5].argmax() == weights.argmax()
        assert picture[:, 5].max() > 240  # near full scale
    loud, soft = (spectrogram(_tone(1000.0, volume)).astype(float).max() for volume in (1.0, 0.1))
    assert loud - soft == pytest.approx(255 * 20 / 100, abs=1)  # a tenth of the amplitude: 20 decibels
    assert (spectrogram(np.zeros(RATE)) == 0).all()


def test_mel_bands_share_every_frequency_between_them() -> None:
    total = mel_filters().sum(axis=0)
    f = np.fft.rfftfreq(1024, 1 / RATE)
    inner = (f > 200) & (f < 7000)  # between the middles of the outermost bands
    np.testing.assert_allclose(total[inner], 1, atol=1e-9)


def test_speakers_are_clients_with_commands_unknown_words_and_silence(corpus: Path, tmp_path: Path) -> None:
    write_speech(corpus, tmp_path / "speech")
    dataset = load(str(tmp_path / "speech"), "", str(CACHE))
    assert dataset.spec.labels == LABELS
    assert (dataset.spec.shape, dataset.spec.classes) == ((1, 32, 32), 12)
    assert len(dataset.train) == 4 * (12 + 1 + 1)  # who says no command is no client
    counts = np.bincount(dataset.train.y, minlength=12)
    assert dict(zip(LABELS, counts, strict=True)) == dict.fromkeys(LABELS, 0) | {
        "yes": 24, "no": 24, "unknown": 4, "silence": 4,
    }  # fmt: skip
    heard = np.asarray(dataset.train.x)[:, :, :, 0].astype(float)
    assert (
        heard[dataset.train.y == 0].mean(axis=(0, 2)).argmax() < heard[dataset.train.y == 1].mean(axis=(0, 2)).argmax()
    )
    assert heard[dataset.train.y == 0][:, :, 26:].mean() < 0.2 * heard[dataset.train.y == 0][:, :, :20].mean()  # padded
    keys = {"dataset": str(tmp_path / "speech"), "partitioner": "natural", "num_clients": 0}
    federation, _ = federate(settings(**keys))
    assert sorted(federation.names) == [f"{speaker:08x}" for speaker in range(4)]
    assert federation.test.sizes.tolist() == [3] * 4  # a fifth of 14


def test_the_same_corpus_gives_the_same_dataset(corpus: Path, tmp_path: Path) -> None:
    for name in "ab":
        write_speech(corpus, tmp_path / name)
    for file in ("train.parquet", "schema.toml"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_what_is_no_corpus_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not Speech Commands: it needs yes/<speaker>_nohash_0\.wav"):
        write_speech(tmp_path, tmp_path / "out")
    _write(tmp_path / "yes" / "a_nohash_0.wav", _tone(300))
    with pytest.raises(DataError, match="is not Speech Commands"):  # no noise
        write_speech(tmp_path, tmp_path / "out")
    _write(tmp_path / "_background_noise_" / "hum.wav", _tone(50, seconds=2))
    _write(tmp_path / "yes" / "a_nohash_0.wav", _tone(300), rate=8000)
    with pytest.raises(DataError, match=r"a_nohash_0.wav has 8000 samples a second"):
        write_speech(tmp_path, tmp_path / "out")
    (tmp_path / "yes" / "a_nohash_0.wav").write_text("no sound")
    with pytest.raises(DataError, match=r"a_nohash_0.wav is not a readable WAV file"):
        write_speech(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out" / "train.parquet").exists()
