"""ClickHouse over HTTP for tests: the embedded engine behind the interface that the HTTP client speaks.

`python -m tests.operate.clickhouse_shim FOLDER [PORT]` prints its port. Not a server: one query at a time, no logins.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
import zlib
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import lz4.frame

UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress, "lz4": lz4.frame.decompress}


class Answers(BaseHTTPRequestHandler):
    """Queries in the body or in the address, rows to insert behind the first line of the body."""

    protocol_version = "HTTP/1.1"
    connection: Any
    engine: Any

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or self._chunks()
        encoding = self.headers.get("Content-Encoding")
        self._answer(body if encoding is None else UNPACK[encoding](body))

    def _chunks(self) -> bytes:
        body = b""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().strip() or b"0", 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        return body

    def _answer(self, body: bytes) -> None:
        given = dict(parse_qsl(urlsplit(self.path).query))
        if self.path.startswith("/ping"):
            self._send(200, b"Ok.\n")
            return
        try:
            query, _, data = body.partition(b"FORMAT Native\n")
            if "query" in given:
                query, data = given["query"].encode(), body
            if query.lstrip().upper().startswith(b"INSERT"):
                self._send(200, self._insert(query.decode(), data))
            else:
                self._send(200, self._query(body.decode() or query.decode(), given))
        except Exception as error:
            self._send(500, f"Code: 62. DB::Exception: {error}".encode())

    def _query(self, query: str, given: dict[str, str]) -> bytes:
        names = {name.removeprefix("param_"): value for name, value in given.items() if name.startswith("param_")}
        head, _, written = query.rstrip().rstrip(";").rpartition(" FORMAT ")
        form = written.strip() if head and written.strip().isalnum() else given.get("default_format", "TabSeparated")
        found = self.engine.query(head or query, form, params=names)
        return bytes(found.bytes() or b"")

    def _insert(self, query: str, data: bytes) -> bytes:
        with tempfile.NamedTemporaryFile(suffix=".native") as file:
            file.write(data)
            file.flush()
            into = query.split("FORMAT", maxsplit=1)[0]
            self.engine.query(f"{into} FROM INFILE '{file.name}' FORMAT Native", "TabSeparated")
        return b""

    def _send(self, code: int, data: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-ClickHouse-Format", "Native")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


def main() -> None:
    import chdb

    Answers.engine = chdb.connect(sys.argv[1])
    server = HTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0), Answers)
    print(server.server_port, flush=True)  # noqa: T201 - for whoever started it
    server.serve_forever()


if __name__ == "__main__":
    main()
