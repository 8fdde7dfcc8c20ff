"""Convert Speech Commands (Warden 2018) to a custom image dataset: spectrograms of words; clients are speakers.

The source's layout is ``<word>/<speaker>_nohash_<number>.wav``, one second at 16 kHz each, and longer recordings
without speech in ``_background_noise_/``. The twelve classes are ten commands, "unknown" for all other words, and
"silence".
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import wavfile

from florilegium.common.errors import DataError
from florilegium.common.seeds import numpy_generator
from florilegium.partitions.sources.picture_dataset import picture_dataset

COMMANDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
UNKNOWN, SILENCE = "unknown", "silence"
LABELS = (*COMMANDS, UNKNOWN, SILENCE)
NOISE = "_background_noise_"
SPEAKER = "speaker"
EXTRA_SHARE = 0.1
"""Number of a speaker's "unknown" examples, and of its "silence" examples, per command; at least one of each."""

RATE = 16_000
BANDS = FRAMES = 32
"""Height and width of a spectrogram in pixels."""
WINDOW, HOP = 1024, RATE // FRAMES
LOWEST, HIGHEST = 20.0, 8000.0
"""Frequency range of the spectrograms, in hertz."""
FLOOR = -100.0
"""Level of a black pixel, in decibels relative to full scale; 0 dB is white."""


def write_speech(source: Path, target: Path) -> None:
    """Convert the recordings in ``source`` to ``train.parquet`` and ``schema.toml`` in ``target``.

    Examples are log-mel spectrograms as grey images of 32×32 pixels. Each speaker keeps all its commands. It also gets
    random examples of its other words ("unknown", if it has any) and random seconds of background noise ("silence"), a
    tenth as many of each as it has commands, and at least one.

    Raises:
        DataError: if the folder has another layout, or a file cannot be read.
    """
    words = [path for path in sorted(source.iterdir()) if path.is_dir()] if source.is_dir() else []
    noises = [_samples(file) for file in sorted((source / NOISE).glob("*.wav"))]
    by_speaker: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for word in words:
        for file in sorted(word.glob("*_nohash_*.wav")):
            label = word.name if word.name in COMMANDS else UNKNOWN
            by_speaker[file.name.split("_nohash_")[0]].append((label, file))
    speakers = {name: files for name, files in sorted(by_speaker.items()) if any(kind in COMMANDS for kind, _ in files)}
    if not speakers or not any(len(noise) >= RATE for noise in noises):
        raise DataError(
            f"{source} is not Speech Commands: it needs {COMMANDS[0]}/<speaker>_nohash_0.wav and so on, and a second "
            f"or more in {NOISE}/*.wav"
        )
    with picture_dataset(target, ("train",), (1, BANDS, FRAMES), LABELS, SPEAKER) as writer:
        for speaker, files in speakers.items():
            rng = numpy_generator(0, "speech", speaker)
            commands = [(label, _samples(file)) for label, file in files if label in COMMANDS]
            others = [file for label, file in files if label == UNKNOWN]
            few = max(1, round(EXTRA_SHARE * len(commands)))
            unknown = [(UNKNOWN, _samples(others[i])) for i in rng.permutation(len(others))[:few]]
            silence = [(SILENCE, _cut(noises, rng)) for _ in range(few)]
            chosen = [*commands, *unknown, *silence]
            pictures = [Image.fromarray(spectrogram(samples)) for _, samples in chosen]
            writer.add("train", pictures, [label for label, _ in chosen], [speaker] * len(chosen))


def spectrogram(samples: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return the log-mel spectrogram of one second of sound, uint8 (bands, frames), low bands first.

    Args:
        samples: sound samples, (RATE,), full scale ±1.
    """
    padded = np.pad(samples, (WINDOW // 2, WINDOW // 2))
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:FRAMES]
    window = np.hanning(WINDOW)
    power = np.square(np.abs(np.fft.rfft(frames * window, axis=1)) * 2 / window.sum())  # 1 for a full-scale sine
    decibels = 10 * np.log10(np.maximum(power @ mel_filters().T, 1e-12))
    scaled = np.clip((decibels - FLOOR) / -FLOOR, 0, 1)
    return np.rint(255 * scaled.T).astype(np.uint8)


def mel_filters() -> NDArray[np.float64]:
    """Return triangular filters, (bands, frequencies), of equal width in mel, which overlap by half.

    The mel of frequency f in hertz is 2595·log₁₀(1 + f/700).
    """
    lowest, highest = (2595 * np.log10(1 + f / 700) for f in (LOWEST, HIGHEST))
    corners = 700 * (10 ** (np.linspace(lowest, highest, BANDS + 2) / 2595) - 1)
    f = np.fft.rfftfreq(WINDOW, 1 / RATE)
    left, middle, right = (corners[i : i + BANDS, None] for i in range(3))
    return np.maximum(0, np.minimum((f - left) / (middle - left), (right - f) / (right - middle)))


def _samples(file: Path) -> NDArray[np.float64]:
    """Read the samples of a recording, full scale ±1; a word is padded or cut to one second, noise is not.

    Raises:
        DataError: if the file is not readable, or is not 16-bit mono at ``RATE``.
    """
    try:
        rate, data = wavfile.read(file)
    except (ValueError, OSError) as error:
        raise DataError(f"{file} is not a readable WAV file: {error}") from error
    if rate != RATE or data.dtype != np.int16 or data.ndim != 1:
        raise DataError(
            f"{file} has {rate} samples a second of type {data.dtype}, {data.ndim} channels; {RATE} of int16 and one "
            "channel are needed"
        )
    samples = data.astype(np.float64) / 2**15
    return samples if file.parent.name == NOISE else np.pad(samples[:RATE], (0, max(0, RATE - len(samples))))


def _cut(noises: list[NDArray[np.float64]], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a random second of a random noise recording, at a random volume."""
    long = [noise for noise in noises if len(noise) >= RATE]
    noise = long[rng.integers(len(long))]
    start = rng.integers(len(noise) - RATE + 1)
    return noise[start : start + RATE] * rng.random()
