"""One file over https, never trusted: resumed, timed out, measured, hashed, then moved into place.

Knows nothing about checkpoints; `catalog` decides what to fetch from where.
"""

import contextlib
import hashlib
import http.client
import io
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

CHUNK = 1 << 20
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
    sha256: str | None = None,
    allow_http: bool = False,
    timeout: float = 30.0,
    attempts: int = 3,
    progress: Progress | None = None,
) -> str:
    """Downloads a file and returns its sha256; `target` appears complete and checked, or never.

    What arrived before a connection broke is kept beside the target and continued, by this call
    (`attempts` times) or a later one, if the server still has the same file. `timeout` is the
    longest wait for the server, in seconds.
    """
    check_url(url, allow_http)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    about = target.with_name(f".{target.name}.partial.json")
    with _locked(partial) as file:
        for attempt in range(1, attempts + 1):
            try:
                _transfer(url, file, about, allow_http, timeout, progress)
                break
            except (OSError, http.client.HTTPException) as e:
                if attempt == attempts or not _may_pass(e):
                    raise DownloadError(f"{url}: {_in_words(e, timeout)}") from e
        found = _hash(file)
        about.unlink(missing_ok=True)
        if sha256 is not None and found != sha256:
            partial.unlink()
            problem = f"its sha256 is {found} instead of {sha256}"
            raise DownloadError(f"{url}: {problem}. The file was deleted.")
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
    """The partial file, open for this process alone."""
    try:
        held = filelock.FileLock(partial.with_suffix(".lock"), timeout=0).acquire()
    except filelock.Timeout:
        raise DownloadError(
            f"another process is downloading {partial}; wait for it, or end it"
        ) from None
    with held, partial.open("a+b") as file:
        yield file


def _transfer(
    url: str,
    file: io.BufferedIOBase,
    about: Path,
    allow_http: bool,
    timeout: float,
    progress: Progress | None,
) -> None:
    """Appends what is missing. `about` keeps what shows later whether it is still the same file."""
    have = file.seek(0, os.SEEK_END)
    validator = None
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(about.read_text())
        validator = known.get("validator") if have and known.get("url") == url else None
    headers = {"User-Agent": "vit_jax", "Accept-Encoding": "identity"}
    if validator is None:  # no way to know that it is the same file
        have = 0
    else:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    opener = urllib.request.build_opener(_OnlyAllowed(allow_http))
    try:
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as e:
        with e:
            if e.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
                file.truncate(0)
                about.unlink(missing_ok=True)
                raise _PassingError("the server could not continue the download") from e
            raise
    with response:
        have, total = _start_and_length(response, have)
        file.truncate(have)
        etag = response.headers.get("ETag")
        is_strong = etag and not etag.startswith("W/")
        validator = etag if is_strong else response.headers.get("Last-Modified")
        about.write_text(json.dumps({"url": url, "validator": validator}))
        while block := response.read(CHUNK):
            file.write(block)
            have += len(block)
            if progress is not None:
                progress(have, total)
            if total is not None and have > total:
                raise DownloadError(f"more than the {total:,} bytes that it announced")
    file.flush()
    if total is not None and have < total:
        raise _PassingError(f"the connection ended after {have:,} of {total:,} bytes")


def _start_and_length(response: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """Where the body starts in the file, and how long the whole is, if the server says so."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        length = response.headers.get("Content-Length")
        return 0, int(length) if length is not None else None
    sent = response.headers.get("Content-Range", "")
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", sent)
    if match is None or int(match[1]) != have:
        raise DownloadError(f"bytes from {have:,} on were requested, but the server sent {sent!r}")
    return have, None if match[3] == "*" else int(match[3])


class _OnlyAllowed(urllib.request.BaseHandler):
    """Checks the address of every request, also of those that follow a redirect."""

    def __init__(self, allow_http: bool):
        self._allow_http = allow_http

    def http_request(self, request: urllib.request.Request) -> urllib.request.Request:
        check_url(request.full_url, self._allow_http)
        return request

    ftp_request = http_request


def _may_pass(error: Exception) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 429, 500, 502, 503, 504)
    return not isinstance(error, DownloadError) or isinstance(error, _PassingError)


def _in_words(error: Exception, timeout: float) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"nothing came for {timeout:g} seconds (timed out)"
    return str(reason) or type(error).__name__
