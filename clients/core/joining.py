"""Few objects for a message: its small records as one.

Flower stores every record of a message as an object, and makes a request for each object at each of the four legs of an
exchange with a device; the SuperLink carries out such requests one by one, in some 9 ms each. Messages to and from
devices therefore travel with their small records joined (docs/wire.md), and are taken apart before anything reads them.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from florilegium.common.errors import RunError

RECORD = "florilegium.together"
"""Name of the record that holds the others."""
NAMES = "names"
"""Its field that names them; field f of record r is ``r/f``."""
SMALL = 65_536
"""Bytes of the largest record of a request that is joined; a larger one goes to the SuperLink once for all devices."""
OWN = 1_000_000
"""Bytes of the largest record of a reply that is joined: no two devices share one."""


def together(content: RecordDict, most: int) -> RecordDict:
    """Return the content of a message with its records of at most ``most`` bytes, of plain values, as one."""
    plain = {name: record for name, record in content.items() if isinstance(record, ConfigRecord)}
    small = {name: record for name, record in plain.items() if sum(map(_bytes, record.values())) <= most}
    fields = {f"{name}/{field}": value for name, record in small.items() for field, value in record.items()}
    one = {RECORD: ConfigRecord({NAMES: [*small], **fields})}
    return RecordDict(one | {name: record for name, record in content.items() if name not in small})


def _bytes(value: object) -> int:
    """Return about how many bytes a value of a record takes; Flower's own count fails for empty lists."""
    if isinstance(value, list):
        return sum(map(_bytes, value))
    return len(value) if isinstance(value, str | bytes) else 8


def is_joined(content: RecordDict) -> bool:
    """Return whether the content of a message has joined records."""
    return RECORD in content


def apart(content: RecordDict) -> RecordDict:
    """Return the content of a message with its records apart, as they were before :func:`together`.

    Raises:
        RunError: if the joined record is malformed.
    """
    if RECORD not in content:
        return content
    one = content[RECORD]
    one = one if isinstance(one, ConfigRecord) else ConfigRecord()
    names = one.get(NAMES)
    if not isinstance(names, list) or not all(isinstance(name, str) and name not in content for name in names):
        raise RunError(f"the message's record '{RECORD}' does not name the records in it")
    records = {str(name): ConfigRecord() for name in names}
    for field, value in one.items():
        name, found, own = field.partition("/")
        if found and name not in records:
            raise RunError(f"the message's record '{RECORD}' has the field {field!r} of a record that it does not name")
        if found:
            records[name][own] = value
    return RecordDict(records | {name: record for name, record in content.items() if name != RECORD})
