"""A server of files on loopback that can be told to misbehave, as old download servers do."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """What is served, what goes wrong, and what was asked for.

    Args:
        files: Path -> content.
        faults: Path -> what happens to the next requests, one after the other: `("status", code)`, `("break", bytes)`
            to end the connection after so many, `("drop", 0)` to end it without an answer.
        ranges: Whether parts of files are served.
        versions: Whether files carry an ETag.
        requests: Every request's path and Range header.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    ranges: bool = True
    versions: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""

    def url(self, path: str) -> str:
        """The URL of a path."""
        return f"{self.address}/{path}"


class Handler(BaseHTTPRequestHandler):
    """Serves one `FileServer`."""

    state: FileServer

    def do_GET(self) -> None:
        path = self.path.lstrip("/")
        asked = self.headers.get("Range")
        self.state.requests.append((path, asked))
        faults = self.state.faults.get(path, [])
        kind, number = faults.pop(0) if faults else ("none", 0)
        content = self.state.files.get(path)
        if kind == "status" or content is None:
            self.send_error(number if kind == "status" else 404)
            return
        if kind == "drop":
            self.close_connection = True
            return
        version = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        start = 0
        if asked and self.state.ranges and self.headers.get("If-Range", version) == version:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        if start >= len(content) > 0:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if self.state.versions:
            self.send_header("ETag", version)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = start + number if kind == "break" else len(content)
        self.wfile.write(content[start:end])

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the test's output clean."""


@contextlib.contextmanager
def serve_files() -> Iterator[FileServer]:
    """Runs a server for as long as the context lasts."""
    state = FileServer()
    handler = type("HandlerOfState", (Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    state.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
