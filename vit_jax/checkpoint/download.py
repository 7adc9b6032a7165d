"""One file over https, never trusted: capped, timed, resumed, hashed, looked at, then moved into
place.

Knows nothing about checkpoints; `catalog` decides what to fetch from where, and how it must look.
"""

import contextlib
import functools
import hashlib
import http.client
import io
import json
import os
import re
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock

from vit_jax import untrusted
from vit_jax.printable import printable

CHUNK = 1 << 20
MIN_RATE = 10_000  # bytes per second, on the whole; a slower server does not hold us for days
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known


class DownloadError(OSError):
    """A download that did not work, with the reason in words."""


class _PassingError(DownloadError):
    """A failure that may pass."""


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
            except _FROM_SERVER as e:
                if attempt == attempts or not _may_pass(e):
                    raise DownloadError(f"{url}: {_in_words(e, timeout)}") from e
        found = _hash(file)
        about.unlink(missing_ok=True)
        problem = None
        if file.tell() not in sizes:
            problem = f"it has {file.tell():,} bytes, not {_in_range(sizes)}"
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
    is_local = parts.hostname in _LOOPBACK
    if parts.scheme == "https" or (parts.scheme == "http" and (allow_http or is_local)):
        return
    raise DownloadError(
        f"{url} is not fetched: only https is, and {parts.scheme or 'no scheme'} was given "
        "(--allow_http allows http)."
    )


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return _hash(file)


def _hash(file: io.BufferedIOBase) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(partial: Path) -> Iterator[io.BufferedRandom]:
    """The partial file, open for this process alone; left empty, it goes."""
    try:
        held = filelock.FileLock(partial.with_suffix(".lock"), timeout=0).acquire()
    except filelock.Timeout:
        raise DownloadError(
            f"another process is downloading {partial}; wait for it, or end it"
        ) from None
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
    opener = urllib.request.build_opener(
        _Http(most), _Https(most), _OnlyAllowed(allow_http), _Redirects()
    )
    try:
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as e:
        with e:
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
                announced = (
                    f"{total:,} that it announced" if total else f"{most:,} that it may have"
                )
                raise DownloadError(f"more bytes than the {announced}")
            _append(file, block)
            if progress is not None:
                progress(have, total)
    if total is not None and have < total:
        raise _PassingError(f"the connection ended after {have:,} of {total:,} bytes")


def _append(file: io.BufferedRandom, block: bytes) -> None:
    try:
        file.write(block)
        file.flush()
    except OSError as e:
        kept = f"{e.strerror}; what came before is kept, and the next fetch continues"
        raise OSError(e.errno, kept, file.name) from e


def _anew(file: io.BufferedRandom, about: Path, reason: str) -> _PassingError:
    """Drops what was kept, so that the next attempt starts from the beginning."""
    file.truncate(0)
    about.unlink(missing_ok=True)
    return _PassingError(reason)


def _start_and_length(response: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
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


def _validator(response: http.client.HTTPResponse) -> str | None:
    """What shows later whether the server still has the same file."""
    etag = response.headers.get("ETag") or "W/"
    validator = response.headers.get("Last-Modified") if etag.startswith("W/") else etag
    return validator if validator and validator.isprintable() else None


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
            raise urllib.error.URLError(e) from e
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


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, most: int, **options: Any):
        super().__init__(sock, *args, **options)
        # Room for headers and the marks between chunks, not for an endless stream of them.
        limit, grace = 2 * most + CHUNK, 2 * (sock.gettimeout() or 30)
        self.fp = io.BufferedReader(_Pace(self.fp.detach(), limit, grace))


class _Paced(urllib.request.AbstractHTTPHandler):
    def __init__(self, most: int):
        super().__init__()
        self._most = most

    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> Any:
        def connect(*args: Any, **kwargs: Any) -> http.client.HTTPConnection:
            connection = http_class(*args, **kwargs)
            connection.response_class = functools.partial(_Response, most=self._most)
            return connection

        return super().do_open(connect, req, **options)


class _Http(_Paced, urllib.request.HTTPHandler):
    pass


class _Https(_Paced, urllib.request.HTTPSHandler):
    pass


class _Redirects(urllib.request.HTTPRedirectHandler):
    """As urllib's own, ten at most, but without reading all that a redirect may send along."""

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        if "location" in headers or "uri" in headers:
            fp.close()
            fp = io.BytesIO()
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _OnlyAllowed(urllib.request.BaseHandler):
    """Checks the address of every request, also of those that follow a redirect."""

    def __init__(self, allow_http: bool):
        self._allow_http = allow_http

    def http_request(self, request: urllib.request.Request) -> urllib.request.Request:
        check_url(request.full_url, self._allow_http)
        return request

    ftp_request = http_request


# What comes of a server and its words; other errors of the system are about our own disk.
_FROM_SERVER = (
    *(DownloadError, urllib.error.URLError, http.client.HTTPException),
    *(ValueError, OverflowError),  # an address that a redirect gave
)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 429, 500, 502, 503, 504)
    if isinstance(error, urllib.error.URLError | http.client.HTTPException):
        return True
    return isinstance(error, _PassingError)


def _in_words(error: Exception, timeout: float) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"nothing came for {timeout:g} seconds (timed out)"
    words = " ".join(str(reason).split()) or type(error).__name__
    if isinstance(error, urllib.error.HTTPError):
        words = f"the server answered {error.code} {words}"
    return printable(words[:300])


def _in_range(sizes: range) -> str:
    return f"{sizes[0]:,} to {sizes[-1]:,}" if sizes[0] else f"at most {sizes[-1]:,}"
