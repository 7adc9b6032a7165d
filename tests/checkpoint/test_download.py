"""A download is complete and checked, or it is not there."""

import hashlib
import os

import pytest

from tests.checkpoint.http_server import serving
from vit_jax.checkpoint import download

BODY = os.urandom(200_000)
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def server():
    with serving() as server:
        server.files["/weights.npz"] = BODY
        yield server


def fetch(server, target, path="/weights.npz", **options):
    return download.fetch(server.url + path, target, timeout=0.5, **options)


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
        fetch(server, tmp_path / "w.npz", attempts=1)
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
        download.fetch(url, tmp_path / "a")


def test_http_is_possible_where_it_is_allowed():
    download.check_url("http://example.com/a", allow_http=True)
    with pytest.raises(download.DownloadError):
        download.check_url("ftp://example.com/a", allow_http=True)


def test_two_processes_do_not_write_the_same_file(server, tmp_path):
    with (
        download._locked(tmp_path / ".w.npz.partial"),
        pytest.raises(download.DownloadError, match="another process"),
    ):
        fetch(server, tmp_path / "w.npz")
