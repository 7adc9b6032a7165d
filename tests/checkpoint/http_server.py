"""A web server on this machine that misbehaves on demand."""

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """`files` by path; `behaviours` by path, one taken a request, then "serve" for ever.

    serve: in full or the range asked for. cut: half of what is left, then the connection ends.
    stall: half, then silence. whole: in full, whatever range is asked for. An int: that status.
    A path: a redirect there. Bytes are sent as they are, headers and all; so is a list of bytes
    and of seconds between them. If it ends in `...`, all but its first part is sent for ever.
    """

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.behaviours: dict[str, list] = defaultdict(list)
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.etag = '"1"'
        self.silence = threading.Event()
        self.url = ""

    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.requests.append((self.path, dict(self.headers)))
            queue = server.behaviours[self.path]
            _answer(self, server, queue.pop(0) if queue else "serve")

        def log_message(self, *args):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.silence.set()
        http.shutdown()
        thread.join()
        http.server_close()


def _send(request: BaseHTTPRequestHandler, server: Server, parts: list) -> None:
    request.close_connection = True
    if parts[-1] is ...:
        parts = itertools.chain(parts[:1], itertools.cycle(parts[1:-1]))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for part in parts:
            if isinstance(part, bytes):
                request.wfile.write(part)
                request.wfile.flush()
            if server.silence.wait(0 if isinstance(part, bytes) else part):
                return


def _answer(request: BaseHTTPRequestHandler, server: Server, behaviour) -> None:
    if isinstance(behaviour, bytes | list):
        _send(request, server, [behaviour] if isinstance(behaviour, bytes) else behaviour)
        return
    if isinstance(behaviour, int):
        request.send_error(behaviour)
        return
    if behaviour.startswith(("/", "http")):
        request.send_response(302)
        request.send_header("Location", behaviour)
        request.end_headers()
        return
    if request.path not in server.files:
        request.send_error(404)
        return
    body, start = server.files[request.path], 0
    asked = request.headers.get("Range")
    if asked and behaviour != "whole" and request.headers.get("If-Range") == server.etag:
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        request.send_response(206)
        request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
    else:
        request.send_response(200)
    request.send_header("Content-Length", str(len(body) - start))
    request.send_header("ETag", server.etag)
    request.end_headers()
    rest = body[start:]
    if behaviour in ("cut", "stall"):
        rest = rest[: len(rest) // 2]
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        request.wfile.write(rest)
        request.wfile.flush()
    if behaviour == "stall":
        server.silence.wait(10)
    request.close_connection = True
