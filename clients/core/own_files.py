"""Where a client's own files are in a folder of the run: in a folder of its own, or among those of a few others.

Clients 0 to 999 of a simulation, and all clients of devices, have a folder each. The file ``state-….safetensors`` of
client 123456 is ``123000-123999/123450-123459/123456-state-….safetensors``: a folder for each of a million clients
would take as many inodes and disk blocks as their files, and the folder around them a million entries.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

NODE = "_node"
"""Folder of what clients of a node have in common. Names of clients do not begin with an underscore."""
SINGLE = 1_000
"""Clients with lower numbers have a folder each."""
_OUTER, _INNER = 1_000, 10
"""Number of clients of the folders of numbered clients, and of the folders in these.

A client's files are found by listing its folder, which takes 0.5 µs for each file of others.
"""
_DIGITS = 9
"""Numbers with more digits are names of devices rather than clients counted from 0."""


@dataclass(frozen=True)
class OwnFiles:
    """The files of one client.

    Attributes:
        folder: their folder.
        before: the beginning of their names; "" in a folder of the client's own.
        shared: the folder of what all clients of the node have in common.
    """

    folder: Path
    before: str
    shared: Path

    @classmethod
    def alone(cls, folder: Path) -> OwnFiles:
        """Return the files of a client in a folder of its own, beside those of other clients."""
        return cls(folder, "", folder.parent / NODE)

    @classmethod
    def within(cls, root: Path, client: str) -> OwnFiles:
        """Return the files of one of many clients.

        Args:
            root: the folder of all clients.
            client: the client's id. If it has a folder, from a version without folders of several, its files are there.
        """
        shelf = shelf_of(client)
        if not shelf or os.path.isdir(f"{root}/{client}"):
            return cls(root / client, "", root / NODE)
        return cls(root / shelf, f"{client}-", root / NODE)

    def file(self, name: str) -> Path:
        """Return the path of a file."""
        return self.folder / f"{self.before}{name}"


def shelf_of(client: str) -> str:
    """Return the folder that a client's files share with those of others, relative to that of all; "": none."""
    if not client.isdecimal() or not client.isascii() or len(client) > _DIGITS or client.startswith("0"):
        return ""
    number = int(client)
    if number < SINGLE:
        return ""
    outer, inner = number - number % _OUTER, number - number % _INNER
    return f"{outer}-{outer + _OUTER - 1}/{inner}-{inner + _INNER - 1}"
