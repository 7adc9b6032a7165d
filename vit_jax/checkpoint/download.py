"""One file over https, never trusted: resumed, timed out, measured, hashed, then moved into place.

Knows nothing about checkpoints; `catalog` decides what to fetch from where.
"""

import contextlib
import email.message
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
from typing import IO

import filelock

CHUNK = 1 << 20
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known


class DownloadError(OSError):
    """A download that did not work, with the reason in words."""


def fetch(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    size: int | None = None,
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
    total = None
    with _locked(partial) as file:
        for attempt in range(1, attempts + 1):
            try:
                total = _transfer(url, file, about, allow_http, timeout, progress)
                break
            except (DownloadError, urllib.error.URLError, OSError, http.client.HTTPException) as e:
                reason = _in_words(e, timeout)
                # Only failures that may pass are tried again.
                if attempt == attempts or not _is_passing(e):
                    raise DownloadError(f"{url}: {reason}") from e
        found = _hash(file)
        problem = None
        length = file.seek(0, os.SEEK_END)
        if size is not None and length != size:
            problem = f"it has {length:,} bytes instead of {size:,}"
        elif total is not None and length != total:
            problem = f"it has {length:,} bytes, but the server announced {total:,}"
        elif sha256 is not None and found != sha256:
            problem = f"its sha256 is {found} instead of {sha256}"
        if problem:
            partial.unlink()
            about.unlink(missing_ok=True)
            raise DownloadError(f"{url}: {problem}. The file was deleted.")
        os.fsync(file.fileno())
        partial.replace(target)
        about.unlink(missing_ok=True)
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
) -> int | None:
    """Appends what is missing; returns the whole length if the server announces it."""
    have = file.seek(0, os.SEEK_END)
    validator = _stored_validator(about, url) if have else None
    if validator is None:  # no way to know that it is the same file
        file.truncate(0)
        have = 0
    headers = {"User-Agent": "vit_jax", "Accept-Encoding": "identity"}
    if validator is not None:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    opener = urllib.request.build_opener(_CheckedRedirects(allow_http))
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
        have, total = _continue_at(response.status, response.headers, have)
        file.truncate(have)
        about.write_text(json.dumps({"url": url, "validator": _validator(response.headers)}))
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
    return total


class _PassingError(DownloadError):
    """A failure that may pass."""


def _continue_at(status: int, headers: email.message.Message, have: int) -> tuple[int, int | None]:
    """Where the body starts in the file, and how long the whole is."""
    if status == http.HTTPStatus.PARTIAL_CONTENT:
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", headers.get("Content-Range", ""))
        if match is None or int(match[1]) != have:
            raise DownloadError(
                f"bytes from {have:,} on were requested, but the server sent "
                f"{headers.get('Content-Range')!r}"
            )
        return have, None if match[3] == "*" else int(match[3])
    length = headers.get("Content-Length")
    return 0, int(length) if length is not None else None


def _validator(headers: email.message.Message) -> str | None:
    """What shows later whether the server still has the same file: a strong ETag, or a date."""
    etag = headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")


def _stored_validator(about: Path, url: str) -> str | None:
    try:
        known = json.loads(about.read_text())
    except (OSError, ValueError):
        return None
    return known.get("validator") if known.get("url") == url else None


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, allow_http: bool):
        self._allow_http = allow_http

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        check_url(newurl, self._allow_http)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_passing(error: Exception) -> bool:
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
