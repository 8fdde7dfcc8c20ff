"""Folders and texts of the surroundings: a temporary folder short enough for sockets, files that must be UTF-8."""

from __future__ import annotations

import codecs
import os
import tempfile
from pathlib import Path

from florilegium.common.errors import ConfigurationError

_SHORT = 28
"""Most bytes of a folder in which Ray and Python put sockets, whose whole path may have 103 to 107 bytes."""
_FALLBACK = "/tmp"


def short_temporary_folder() -> str:
    """Return the folder for temporary files; ``/tmp`` if the path of the usual one is too long for sockets in it.

    Raises:
        ConfigurationError: if the usual one is too long, and there is no ``/tmp`` to write to.
    """
    usual = tempfile.gettempdir()
    size = len(os.fsencode(usual))
    if os.name != "posix" or size <= _SHORT:
        return usual
    if not os.access(_FALLBACK, os.W_OK):
        raise ConfigurationError(
            f"TMPDIR: {usual} has {size} bytes, too many for the sockets that are put there, and {_FALLBACK} cannot be "
            f"written to; set TMPDIR to a folder whose path has at most {_SHORT} bytes"
        )
    return _FALLBACK


def read_utf8(path: Path) -> str:
    """Return the text of a file; a byte-order mark at its start is skipped.

    Raises:
        ConfigurationError: if it is not UTF-8; the message says where, and what it may be instead.
        OSError: if it cannot be read.
    """
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        line = content[: error.start].count(b"\n") + 1
        where = "it is UTF-16" if wide else f"line {line} has the byte 0x{content[error.start]:02x}"
        raise ConfigurationError(f"{path} is not UTF-8: {where}. Save it as UTF-8") from error
