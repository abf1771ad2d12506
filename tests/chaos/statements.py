"""As much of Postgres' protocol as tells what a client asks, and when the server has answered it."""

from __future__ import annotations

import re

# The kinds of statements whose answer can be lost, by words in them.
KINDS = {
    "claim": re.compile(rb"INSERT INTO \w+\.leases"),
    "end": re.compile(rb"DELETE FROM \w+\.leases"),
    "enqueue": re.compile(rb"INSERT INTO \w+\.tasks"),
    "commit": re.compile(rb"\A\s*COMMIT", re.IGNORECASE),
}
MOST_KEPT = 1 << 22


class Answers:
    """Looks for ReadyForQuery in what the server says, from a point where a message begins."""

    def __init__(self) -> None:
        self._left = b""

    def is_ready_in(self, data: bytes) -> bool:
        """Whether the server has told that it is done and outside of any transaction."""
        self._left += data
        while len(self._left) >= 5:
            size = 1 + int.from_bytes(self._left[1:5])
            if len(self._left) < size:
                break
            kind, body, self._left = self._left[:1], self._left[5:size], self._left[size:]
            if kind == b"Z" and body in (b"I", b"T"):
                return True
        return False


class Statements:
    """Reads what a client sends, and names the kinds of the statements that it carries out."""

    def __init__(self) -> None:
        self._left = b""
        self._greeted = False
        self._lost_track = False
        self._prepared: dict[bytes, list[str]] = {}

    def seen(self, data: bytes) -> list[str]:
        """Kinds of the statements that are carried out by the messages which are whole with this data."""
        if self._lost_track:
            return []
        self._left += data
        self._lost_track = len(self._left) > MOST_KEPT
        found: list[str] = []
        while True:
            head = 5 if self._greeted else 4
            if len(self._left) < head:
                return found
            size = int.from_bytes(self._left[head - 4 : head]) + head - 4
            if len(self._left) < size:
                return found
            message, self._left = self._left[:size], self._left[size:]
            if self._greeted:
                found += self._kinds(message[:1], message[5:])
            else:
                self._greeted = message[4:8] != b"\x04\xd2\x16\x2f"  # that asks for TLS, and the greeting follows

    def _kinds(self, kind: bytes, body: bytes) -> list[str]:
        if kind == b"Q":
            return _kinds_of(body)
        if kind == b"P":
            name, text, *_ = body.split(b"\0", 2)
            self._prepared[name] = _kinds_of(text)
        if kind == b"B":
            _, name, *_ = body.split(b"\0", 2)
            return self._prepared.get(name, [])
        return []


def _kinds_of(text: bytes) -> list[str]:
    return [kind for kind, words in KINDS.items() if words.search(text)]
