"""One file over https: capped, timed, resumed, hashed, looked at, then moved into place.

Knows nothing about checkpoints; `catalog` decides what to fetch from where, and how it must look.
"""

import contextlib
import hashlib
import http.client
import io
import json
import os
import re
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler

import filelock

from vit_jax import untrusted
from vit_jax.printable import printable

CHUNK = 1 << 20
MIN_RATE = 10_000  # bytes per second, on the whole; a slower server does not hold us for days
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known


class DownloadError(OSError):
    """A download that did not work, with the reason in words."""


def fetch(
    url: str,
    target: Path,
    *,
    sizes: range,
    look: Callable[[Path], object] | None = None,
    sha256: str | None = None,
    allow_http: bool = False,
    timeout: float = 30.0,
    attempts: int = 3,
    progress: Progress | None = None,
) -> str:
    """Downloads a file and returns its sha256; `target` appears complete and checked, or never.

    It must have one of these `sizes` in bytes, and `look` raises ValueError if its content is not
    what was wanted. What arrived before a connection broke is kept beside the target and continued,
    by this call (`attempts` times) or a later one, if the server still has the same file. `timeout`
    is the longest wait for the server, in seconds; twice that is the grace before MIN_RATE counts.
    """
    check_url(url, allow_http)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    about = target.with_name(f".{target.name}.partial.json")
    with _locked(partial) as file:
        for attempt in range(1, attempts + 1):
            try:
                _transfer(url, file, about, sizes, allow_http, timeout, progress)
                break
            # ValueError and OverflowError come of an address that a redirect gave.
            except (DownloadError, URLError, HTTPException, ValueError, OverflowError) as e:
                if attempt == attempts or not _may_pass(e):
                    raise DownloadError(f"{url}: {_in_words(e, timeout)}") from e
            except OSError as e:  # of our own disk
                kept = f"{e.strerror}; what came before is kept, and the next fetch continues"
                raise OSError(e.errno, kept, str(partial)) from e
        size, found = partial.stat().st_size, file_hash(partial)
        about.unlink(missing_ok=True)
        problem = None
        if size not in sizes:
            problem = f"it has {size:,} bytes, not {_in_range(sizes)}"
        elif sha256 is not None and found != sha256:
            problem = f"its sha256 is {found} instead of {sha256}"
        elif look is not None:
            try:
                look(partial)
            except ValueError as e:
                problem = str(e).replace(str(partial), "the file").rstrip(".")
        if problem:
            file.seek(0)
            begins = file.read(24)
            partial.unlink()
            raise DownloadError(f"{url}: {problem}. It begins with {begins!r} and was deleted.")
        os.fsync(file.fileno())
        partial.replace(target)
    return found


def check_url(url: str, allow_http: bool = False) -> None:
    """https only; http for this machine itself, or where the caller allows it."""
    parts = urllib.parse.urlsplit(url)
    http_too = allow_http or parts.hostname in _LOOPBACK
    if parts.scheme not in (("https", "http") if http_too else ("https",)):
        raise DownloadError(f"{url} is not fetched: only https is (--allow_http allows http).")


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(partial: Path) -> Iterator[io.BufferedRandom]:
    """The partial file, open for this process alone; left empty, it goes."""
    try:
        held = filelock.FileLock(partial.with_suffix(".lock"), timeout=0).acquire()
    except filelock.Timeout:
        raise DownloadError(f"another process is downloading {partial}; wait for it") from None
    with held, partial.open("a+b") as file:
        try:
            yield file
        finally:
            if not os.fstat(file.fileno()).st_size:
                partial.unlink(missing_ok=True)


def _transfer(
    url: str,
    file: io.BufferedRandom,
    about: Path,
    sizes: range,
    allow_http: bool,
    timeout: float,
    progress: Progress | None,
) -> None:
    """Appends what is missing. `about` keeps what shows later whether it is still the same file."""
    have = file.seek(0, os.SEEK_END)
    known = None
    with contextlib.suppress(OSError, ValueError):
        kept = untrusted.read_json(about)
        known = kept.get("validator") if have and kept.get("url") == url else None
    headers = {"User-Agent": "vit_jax", "Accept-Encoding": "identity"}
    if not isinstance(known, str):  # no way to know that it is the same file
        known, have = None, 0
    else:
        headers |= {"Range": f"bytes={have}-", "If-Range": known}
    most = sizes[-1]
    opener = urllib.request.build_opener(_Handler(most, allow_http))
    try:
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except HTTPError as e:
        e.close()
        if e.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            raise _anew(file, about, "the server could not continue the download") from e
        raise
    with response:
        have, total = _start_and_length(response, have)
        validator = _validator(response)
        if have and validator not in (None, known):
            raise _anew(file, about, "the server continued with another file")
        if total is not None and total not in sizes:
            raise DownloadError(
                f"the server announces {total:,} bytes, not {_in_range(sizes)}; they begin with "
                f"{response.read1(24)!r}"
            )
        file.truncate(have)
        about.write_text(json.dumps({"url": url, "validator": validator}))
        while block := response.read1(CHUNK):  # not `read`, which loses what came before a break
            have += len(block)
            if have > (most if total is None else total):
                raise DownloadError(f"more bytes than the {total or most:,} that it may have")
            file.write(block)
            file.flush()
            if progress is not None:
                progress(have, total)
    if total is not None and have < total:
        raise URLError(f"the connection ended after {have:,} of {total:,} bytes")


def _anew(file: io.BufferedRandom, about: Path, reason: str) -> URLError:
    """Drops what was kept, so that the next attempt starts from the beginning."""
    file.truncate(0)
    about.unlink(missing_ok=True)
    return URLError(reason)


def _start_and_length(response: HTTPResponse, have: int) -> tuple[int, int | None]:
    """Where the body starts in the file, and how long the whole is, if the server says so."""
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise DownloadError(f"it came encoded as {encoding!r}, which was not asked for")
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0, response.length  # None in chunks, and where it is not a number
    sent = response.headers.get("Content-Range", "")
    match = re.fullmatch(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)", sent)
    if match is None or int(match[1]) != have:
        raise DownloadError(f"bytes from {have:,} on were requested, but the server sent {sent!r}")
    return have, None if match[2] == "*" else int(match[2])


def _validator(response: HTTPResponse) -> str | None:
    """What shows later whether the server still has the same file."""
    etag = response.headers.get("ETag") or "W/"
    validator = response.headers.get("Last-Modified") if etag.startswith("W/") else etag
    return validator if validator and validator.isprintable() else None


class _Handler(HTTPHandler, HTTPSHandler, HTTPRedirectHandler):
    """As urllib's own three, but responses are paced and redirects go only where we would."""

    def __init__(self, most: int, allow_http: bool):
        super().__init__()
        self._most, self._allow_http = most, allow_http

    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> Any:
        def respond(sock: socket.socket, *args: Any, **kwargs: Any) -> HTTPResponse:
            response = HTTPResponse(sock, *args, **kwargs)
            # Room for headers and the marks between chunks, not for an endless stream of them.
            pace = _Pace(response.fp.detach(), 2 * self._most + CHUNK, 2 * (req.timeout or 30))
            response.fp = io.BufferedReader(pace)
            return response

        def connect(*args: Any, **kwargs: Any) -> http.client.HTTPConnection:
            connection = http_class(*args, **kwargs)
            connection.response_class = respond
            return connection

        return super().do_open(connect, req, **options)

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        check_url(newurl, self._allow_http)
        fp.close()  # or urllib reads all that a redirect may send along
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Pace(io.RawIOBase):
    """What a server sends, as long as it is neither too slow nor too much on the whole.

    A timeout of the socket alone starts anew with every byte.
    """

    def __init__(self, raw: io.RawIOBase, most: int, grace: float):
        self._raw, self._most, self._grace = raw, most, grace
        self._start, self._have = time.monotonic(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        try:
            num_read = self._raw.readinto(buffer)
        except OSError as e:
            raise URLError(e) from e
        self._have += num_read or 0
        if self._have > self._most:
            raise DownloadError(f"more than {self._most:,} bytes came, headers and all")
        seconds = time.monotonic() - self._start
        if seconds > self._grace + self._have / MIN_RATE:
            raise DownloadError(f"only {self._have:,} bytes came in {seconds:.0f} seconds")
        return num_read

    def close(self) -> None:
        self._raw.close()
        super().close()


def _may_pass(error: Exception) -> bool:
    if isinstance(error, HTTPError):
        return error.code in (408, 429, 500, 502, 503, 504)
    return isinstance(error, URLError | HTTPException)


def _in_words(error: Exception, timeout: float) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"nothing came for {timeout:g} seconds (timed out)"
    words = " ".join(str(reason).split()) or type(error).__name__
    if isinstance(error, HTTPError):
        words = f"the server answered {error.code} {words}"
    return printable(words[:300])


def _in_range(sizes: range) -> str:
    return f"{sizes[0]:,} to {sizes[-1]:,}" if sizes[0] else f"at most {sizes[-1]:,}"
