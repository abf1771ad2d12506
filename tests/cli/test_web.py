"""Where the server listens."""

from __future__ import annotations

import socket

from aaiclick_queue.cli.web import bound


def test_an_answer_does_not_wait_until_its_head_is_acknowledged() -> None:
    with bound("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
