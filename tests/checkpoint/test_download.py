"""A download is complete and checked, or it is not there."""

import hashlib
import os
import resource
import signal

import pytest

from tests.checkpoint.http_server import serving
from vit_jax.checkpoint import download

BODY = os.urandom(200_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
SIZES = range(100_000, 300_001)


@pytest.fixture
def server():
    with serving() as server:
        server.files["/weights.npz"] = BODY
        yield server


def fetch(server, target, path="/weights.npz", sizes=SIZES, timeout=9.0, **options):
    return download.fetch(server.url + path, target, sizes=sizes, timeout=timeout, **options)


def files_in(folder):
    """All but the lock, which stays: whoever removed it could let two processes in."""
    return [path.name for path in folder.iterdir() if path.name != ".w.npz.lock"]


def test_a_file_arrives_whole_and_its_hash_is_returned(server, tmp_path):
    told = []
    found = fetch(server, tmp_path / "a" / "w.npz", progress=lambda *args: told.append(args))
    assert (tmp_path / "a" / "w.npz").read_bytes() == BODY
    assert found == SHA256
    assert told[-1] == (len(BODY), len(BODY))
    assert files_in(tmp_path / "a") == ["w.npz"]


def test_a_cut_connection_is_continued_where_it_broke(server, tmp_path):
    server.behaviours["/weights.npz"] = ["cut"]
    assert fetch(server, tmp_path / "w.npz") == SHA256
    (_, first), (_, second) = server.requests
    assert "Range" not in first
    assert second["Range"] == f"bytes={len(BODY) // 2}-"
    assert second["If-Range"] == server.etag


def test_a_later_call_continues_what_an_earlier_one_began(server, tmp_path):
    server.behaviours["/weights.npz"] = ["cut"]
    with pytest.raises(download.DownloadError, match="ended after 100,000 of 200,000 bytes"):
        fetch(server, tmp_path / "w.npz", attempts=1)
    assert not (tmp_path / "w.npz").exists()
    assert fetch(server, tmp_path / "w.npz") == SHA256
    assert server.requests[-1][1]["Range"] == "bytes=100000-"


def test_a_file_that_changed_on_the_server_is_fetched_anew(server, tmp_path):
    server.behaviours["/weights.npz"] = ["cut"]
    with pytest.raises(download.DownloadError):
        fetch(server, tmp_path / "w.npz", attempts=1)
    server.files["/weights.npz"] = BODY[::-1]
    server.etag = '"2"'
    fetch(server, tmp_path / "w.npz")
    assert (tmp_path / "w.npz").read_bytes() == BODY[::-1]


def test_a_server_without_ranges_is_read_from_the_start(server, tmp_path):
    server.behaviours["/weights.npz"] = ["cut", "whole"]
    assert fetch(server, tmp_path / "w.npz") == SHA256


def test_a_wrong_hash_throws_the_file_away(server, tmp_path):
    with pytest.raises(download.DownloadError, match=f"sha256 is {SHA256} instead of {'0' * 64}"):
        fetch(server, tmp_path / "w.npz", sha256="0" * 64)
    assert not files_in(tmp_path)


def test_a_body_that_is_always_cut_short_is_an_error(server, tmp_path):
    server.behaviours["/weights.npz"] = ["cut"] * 9
    with pytest.raises(download.DownloadError, match="the connection ended after"):
        fetch(server, tmp_path / "w.npz")
    assert len(server.requests) == 3
    assert not (tmp_path / "w.npz").exists()


@pytest.mark.parametrize("status", [403, 404])
def test_a_refusal_is_told_and_not_tried_again(server, tmp_path, status):
    server.behaviours["/weights.npz"] = [status]
    with pytest.raises(download.DownloadError, match=f"answered {status}"):
        fetch(server, tmp_path / "w.npz")
    assert len(server.requests) == 1


def test_a_server_that_is_busy_is_tried_again(server, tmp_path):
    server.behaviours["/weights.npz"] = [503]
    assert fetch(server, tmp_path / "w.npz") == SHA256


def test_a_silent_server_times_out(server, tmp_path):
    server.behaviours["/weights.npz"] = ["stall"] * 3
    with pytest.raises(download.DownloadError, match="timed out"):
        fetch(server, tmp_path / "w.npz", timeout=0.5, attempts=1)
    server.silence.set()
    server.behaviours["/weights.npz"] = []
    assert fetch(server, tmp_path / "w.npz") == SHA256  # continues


def test_a_redirect_is_followed(server, tmp_path):
    server.behaviours["/moved"] = ["/weights.npz"]
    assert fetch(server, tmp_path / "w.npz", path="/moved") == SHA256


def test_a_redirect_to_plain_http_elsewhere_is_refused(server, tmp_path):
    server.behaviours["/moved"] = ["http://example.com/weights.npz"]
    with pytest.raises(download.DownloadError, match="only https"):
        fetch(server, tmp_path / "w.npz", path="/moved")
    assert not (tmp_path / "w.npz").exists()


@pytest.mark.parametrize(
    "url", ["http://example.com/a", "ftp://example.com/a", "file:///etc/hosts"]
)
def test_only_https_is_fetched(url, tmp_path):
    with pytest.raises(download.DownloadError, match="only https"):
        download.fetch(url, tmp_path / "a", sizes=SIZES)


def test_http_is_possible_where_it_is_allowed():
    download.check_url("http://example.com/a", allow_http=True)
    with pytest.raises(download.DownloadError):
        download.check_url("ftp://example.com/a", allow_http=True)


def test_a_proxy_in_the_environment_is_used(server, tmp_path, monkeypatch):
    url, target = "http://example.com/weights.npz", tmp_path / "w.npz"
    monkeypatch.setenv("http_proxy", server.url)
    server.files[url] = BODY
    assert download.fetch(url, target, sizes=SIZES, allow_http=True) == SHA256


def test_two_processes_do_not_write_the_same_file(server, tmp_path):
    with (
        download._locked(tmp_path / ".w.npz.partial"),
        pytest.raises(download.DownloadError, match="another process"),
    ):
        fetch(server, tmp_path / "w.npz")


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
# What a server sends to each request, and what is said of it. None of it may hang, fill memory or
# disk, or leave a file.
HOSTILE = {
    "not http": (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH-2.0"),
    "nothing at all": (b"", "closed|reset"),
    "silence": ([9], "timed out"),
    "a byte now and then": ([OK + b"\r\n", 0.2, b"x", ...], "only .* bytes came in"),
    "headers a byte at a time": ([b"HTTP/", 0.1, b"1", ...], "only .* bytes came in"),
    "headers without end": ([OK, b"X: y\r\n", ...], "more than 100 headers"),
    "a line without end": ([b"x", b"x" * 65536, ...], "status line|too long"),
    "continue without end": ([b"", b"HTTP/1.1 100 Go on\r\n\r\n" * 999, ...], "headers and all"),
    "a body without end": ([OK + b"\r\n", b"x" * 65536, ...], "more bytes than the 300,000"),
    "chunks without end": ([CHUNKED, b"400\r\n" + b"x" * 1024 + b"\r\n", ...], "than the 300,000"),
    "trailers without end": ([CHUNKED + b"0\r\n", b"X: y\r\n" * 999, ...], "headers and all"),
    "chunks cut short": (CHUNKED + b"400\r\nxyz", "IncompleteRead"),
    "chunks of no size": (CHUNKED + b"zz\r\nxyz", "IncompleteRead"),
    "too long": (OK + b"Content-Length: 1000000000000\r\n\r\n", "announces 1,000,000,000,000"),
    "too short": (OK + b"Content-Length: 12\r\n\r\n<html>\x1b[31mx", r"html>.x1b\[31mx'"),
    "nothing": (b"HTTP/1.1 204 No Content\r\n\r\n", "announces 0 bytes"),
    "a length in words": (OK + b"Content-Length: many\r\n\r\nshort", "has 5 bytes, not 100,000"),
    "a negative length": (OK + b"Content-Length: -5\r\n\r\nshort", "has 5 bytes, not 100,000"),
    "a length of 5000 digits": (OK + b"Content-Length: %s\r\n\r\nxy" % (b"9" * 5000), "2 bytes"),
    "gzip": (OK + b"Content-Encoding: gzip\r\n\r\n\x1f\x8b", "encoded as 'gzip'"),
    "a part": (b"HTTP/1.1 206 OK\r\nContent-Range: bytes 7-9/10\r\n\r\nxyz", "from 0 on"),
    "no range": (b"HTTP/1.1 206 OK\r\n\r\nxyz", "from 0 on"),
    "a range in words": (b"HTTP/1.1 206 OK\r\nContent-Range: bytes a-b/c\r\n\r\nx", "from 0 on"),
    "status 999": (b"HTTP/1.1 999 \x1b[31mEvil\r\n\r\n", r"answered 999 \\x1b\[31mEvil"),
    "status in words": (b"HTTP/1.1 fine thanks\r\n\r\n", "HTTP/1.1 fine"),
    "a redirect to itself": ("/weights.npz", "302"),
    "a redirect nowhere": (b"HTTP/1.1 302 Found\r\n\r\n", "302"),
    "a redirect to a file": (b"HTTP/1.1 302 F\r\nLocation: file:///x\r\n\r\n", "allowed"),
    "a redirect to ftp": (b"HTTP/1.1 302 F\r\nLocation: ftp://a/x\r\n\r\n", "only https"),
    "a redirect to no address": (b"HTTP/1.1 302 F\r\nLocation: http://[::1/\r\n\r\n", "Invalid"),
    "a redirect to no port": ("http://127.0.0.1:99999/", "port|refused"),
    "a redirect with a body without end": (
        [b"HTTP/1.1 302 F\r\nLocation: /weights.npz\r\n\r\n", b"x" * 65536, ...],
        "302",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_is_one_error_and_leaves_nothing(name, server, tmp_path):
    behaviour, said = HOSTILE[name]
    waits = isinstance(behaviour, list) and not all(
        p is ... or isinstance(p, bytes) for p in behaviour
    )
    timeout = 0.4 if waits else 9.0
    server.behaviours["/weights.npz"] = [behaviour] * 50
    with pytest.raises(download.DownloadError, match=said) as caught:
        fetch(server, tmp_path / "w.npz", timeout=timeout, attempts=2)
    assert str(caught.value).startswith(f"{server.url}/weights.npz: ")
    assert str(caught.value).isprintable()
    assert not (tmp_path / "w.npz").exists()
    kept = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sum(kept) <= SIZES[-1] + 1000
    server.behaviours["/weights.npz"] = []
    assert fetch(server, tmp_path / "w.npz") == SHA256  # what was kept harms nobody


def test_a_slow_but_honest_server_is_waited_for(server, tmp_path):
    parts = [part for i in range(0, len(BODY), 20_000) for part in (BODY[i : i + 20_000], 0.3)]
    server.behaviours["/weights.npz"] = [[OK + b"Content-Length: 200000\r\n\r\n", *parts]]
    assert fetch(server, tmp_path / "w.npz", timeout=1) == SHA256  # 3 s; the grace is 2 s


@pytest.mark.parametrize("range_sent", ["bytes 5-199999/200000", "bytes 100000-199999/200000"])
def test_a_part_of_another_file_is_never_joined(range_sent, server, tmp_path):
    other = f'HTTP/1.1 206 OK\r\nETag: "2"\r\nContent-Range: {range_sent}\r\n\r\n'.encode()
    server.behaviours["/weights.npz"] = ["cut", other + b"x" * 100_000]
    with pytest.raises(download.DownloadError):
        fetch(server, tmp_path / "w.npz", attempts=2)
    assert fetch(server, tmp_path / "w.npz") == SHA256


@pytest.mark.parametrize("kept", ["", "[]", '{"url": 5}', '{"validator": 5}', "[" * 9999, "\x00"])
def test_a_damaged_note_about_a_partial_file_starts_anew(kept, server, tmp_path):
    (tmp_path / ".w.npz.partial").write_bytes(b"something else")
    (tmp_path / ".w.npz.partial.json").write_text(kept)
    assert fetch(server, tmp_path / "w.npz") == SHA256
    assert "Range" not in server.requests[0][1]


def test_a_server_that_is_not_there_leaves_nothing(tmp_path):
    with pytest.raises(download.DownloadError):
        download.fetch("http://127.0.0.1:9/w.npz", tmp_path / "w.npz", sizes=range(1, 10))
    assert not files_in(tmp_path)


def test_a_partial_file_that_is_too_long_starts_anew(server, tmp_path):
    server.behaviours["/weights.npz"] = ["cut", 416]
    assert fetch(server, tmp_path / "w.npz") == SHA256
    assert "Range" not in server.requests[-1][1]


def test_what_does_not_look_right_is_deleted_and_shown(server, tmp_path):
    def look(path):
        raise ValueError(f"{path} is a poem.")

    server.files["/weights.npz"] = b"<html>\x1b[31m" + BODY
    with pytest.raises(download.DownloadError, match=r"the file is a poem. .*b'<html>.x1b") as e:
        fetch(server, tmp_path / "w.npz", look=look)
    assert str(e.value).isprintable()
    assert not files_in(tmp_path)


def test_a_full_disk_is_told_and_what_came_is_kept(server, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, limits[1]))
    try:
        with pytest.raises(OSError, match="the next fetch continues") as caught:
            fetch(server, tmp_path / "w.npz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert not isinstance(caught.value, download.DownloadError)  # no other home will help
    assert caught.value.filename.endswith(".w.npz.partial")
    assert len(server.requests) == 1
    assert fetch(server, tmp_path / "w.npz") == SHA256
    assert server.requests[-1][1]["Range"] == "bytes=120000-"


def test_a_place_that_cannot_be_written_is_an_error_of_the_system(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file") as caught:
        fetch(server, tmp_path / "file" / "w.npz")
    assert not isinstance(caught.value, download.DownloadError)
    assert not server.requests
