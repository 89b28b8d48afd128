import hashlib
import json
import urllib.request
from email.message import Message

import pytest

from jointensor.data.catalogue.download import NotThereError, Retries, _SafeRedirects, download
from jointensor.errors import ConfigError, DataError, RunError

from .server import serving

CONTENT = bytes(range(256)) * 4000  # 1 MB
SUM = hashlib.sha256(CONTENT).hexdigest()
BRIEF = Retries(timeout=60.0, tries=3, pause=0.0)
"""No test waits for this time-out: a server that breaks off closes its connection."""
LIMIT = 10**8
ONCE = Retries(timeout=60.0, tries=1, pause=0.0)


@pytest.fixture
def publisher():
    with serving() as made:
        made.files["f.bin"] = CONTENT
        yield made


def get(publisher, path, **options):
    return download(publisher.url("f.bin"), path, **{"retries": BRIEF, "max_bytes": LIMIT, **options})


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_a_complete_download_is_the_file_and_nothing_else(publisher, tmp_path):
    seen = []
    path = tmp_path / "new" / "f.bin"
    assert get(publisher, path, sha256=SUM, on_bytes=lambda *at: seen.append(at)) == SUM
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["f.bin"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [here for here, _ in seen] == sorted(here for here, _ in seen)
    assert publisher.asked == [("/f.bin", None)]


def test_a_cut_off_download_goes_on_where_it_stopped(publisher, tmp_path):
    publisher.cuts = [300_000, 700_000]
    assert get(publisher, tmp_path / "f.bin", sha256=SUM) == SUM
    assert [wanted for _, wanted in publisher.asked] == [None, "bytes=300000-", "bytes=700000-"]
    assert (tmp_path / "f.bin").read_bytes() == CONTENT


def test_what_arrived_is_kept_for_the_next_call_and_never_under_the_final_name(publisher, tmp_path):
    publisher.cuts = [300_000]
    with pytest.raises(DataError, match=r"1 tries .*300,000 of 1,024,000.*300,000 bytes are kept.*repeat the command"):
        get(publisher, tmp_path / "f.bin", retries=ONCE)
    assert names(tmp_path) == ["f.bin.part", "f.bin.part.json"]
    assert get(publisher, tmp_path / "f.bin") == SUM
    assert publisher.asked[-1] == ("/f.bin", "bytes=300000-")
    assert names(tmp_path) == ["f.bin"]


def test_a_server_without_ranges_is_asked_from_the_beginning(publisher, tmp_path):
    publisher.ranges, publisher.cuts = False, [300_000]
    assert get(publisher, tmp_path / "f.bin") == SUM
    assert len(publisher.asked) == 2
    assert (tmp_path / "f.bin").read_bytes() == CONTENT


def test_a_file_without_a_version_cannot_be_resumed(publisher, tmp_path):
    publisher.versions, publisher.cuts = False, [300_000]
    assert get(publisher, tmp_path / "f.bin") == SUM
    assert [wanted for _, wanted in publisher.asked] == [None, None]


@pytest.mark.parametrize("heeds", [True, False])
@pytest.mark.parametrize("length", [1_000_000, 200_000])
def test_a_file_that_changed_meanwhile_is_fetched_anew(publisher, tmp_path, heeds, length):
    publisher.cuts, publisher.heed_if_range = [300_000], heeds
    with pytest.raises(DataError):
        get(publisher, tmp_path / "f.bin", retries=ONCE)
    publisher.files["f.bin"] = changed = b"x" * length
    get(publisher, tmp_path / "f.bin")
    assert (tmp_path / "f.bin").read_bytes() == changed


def test_a_part_of_another_address_is_not_built_on(publisher, tmp_path):
    publisher.cuts = [300_000]
    with pytest.raises(DataError):
        get(publisher, tmp_path / "f.bin", retries=ONCE)
    publisher.files["mirror.bin"] = CONTENT
    download(publisher.url("mirror.bin"), tmp_path / "f.bin", max_bytes=LIMIT, retries=BRIEF)
    assert publisher.asked[-1] == ("/mirror.bin", None)


@pytest.mark.parametrize("note", ["", "[]", "{}", '{"url": 1, "version": null, "bytes": "x"}'])
def test_a_damaged_note_starts_anew(publisher, tmp_path, note):
    (tmp_path / "f.bin.part").write_bytes(b"rubbish")
    (tmp_path / "f.bin.part.json").write_text(note, encoding="utf-8")
    assert get(publisher, tmp_path / "f.bin") == SUM
    assert names(tmp_path) == ["f.bin"]


def test_a_part_as_long_as_the_file_starts_anew(publisher, tmp_path):
    (tmp_path / "f.bin.part").write_bytes(b"?" * len(CONTENT))
    note = {"url": publisher.url("f.bin"), "version": f'"{hash(CONTENT)}"', "bytes": len(CONTENT)}
    (tmp_path / "f.bin.part.json").write_text(json.dumps(note), encoding="utf-8")
    assert get(publisher, tmp_path / "f.bin", sha256=SUM) == SUM


def test_a_corrupt_file_is_removed(publisher, tmp_path):
    publisher.files["f.bin"] = CONTENT[:-1] + b"!"
    with pytest.raises(DataError, match=rf"f.bin has the SHA-256 checksum .* expected {SUM}.*was removed"):
        get(publisher, tmp_path / "f.bin", sha256=SUM)
    assert names(tmp_path) == []


def test_what_is_not_there_is_not_asked_for_again(publisher, tmp_path):
    with pytest.raises(NotThereError, match=r"nothing.zip does not exist \(HTTP 404\).*--from"):
        download(publisher.url("nothing.zip"), tmp_path / "f.bin", max_bytes=LIMIT, retries=BRIEF)
    assert len(publisher.asked) == 1
    assert names(tmp_path) == []


def test_what_is_forbidden_is_said(publisher, tmp_path):
    publisher.answers = [403]
    with pytest.raises(DataError, match="HTTP 403 Forbidden"):
        get(publisher, tmp_path / "f.bin")


def test_a_busy_server_is_asked_again_a_few_times(publisher, tmp_path):
    publisher.answers = [503, 429]
    assert get(publisher, tmp_path / "f.bin") == SUM
    publisher.answers = [503] * 9
    with pytest.raises(DataError, match=r"3 tries .HTTP status 503"):
        get(publisher, tmp_path / "g.bin")
    assert len(publisher.asked) == 6


def test_pauses_double(publisher, tmp_path):
    pauses = []
    publisher.answers = [503] * 4
    get(publisher, tmp_path / "f.bin", retries=Retries(timeout=60.0, tries=5, pause=1.5, sleep=pauses.append))
    assert pauses == [1.5, 3.0, 6.0, 12.0]


@pytest.mark.parametrize("lengths", [True, False])
def test_a_file_that_is_too_large_is_not_stored(publisher, tmp_path, lengths):
    publisher.lengths = lengths
    with pytest.raises(
        DataError,
        match=r"f.bin has (1,024,000 bytes, more than the limit of 500,000|more bytes than the limit of 500,000)",
    ):
        get(publisher, tmp_path / "f.bin", max_bytes=500_000)
    assert names(tmp_path) == []
    assert len(publisher.asked) == 1
    assert get(publisher, tmp_path / "f.bin", max_bytes=len(CONTENT)) == SUM


def test_a_resumed_file_that_grows_beyond_the_limit_is_not_stored(publisher, tmp_path):
    publisher.cuts = [300_000]
    with pytest.raises(DataError, match="300,000 bytes are kept"):
        get(publisher, tmp_path / "f.bin", retries=ONCE)
    with pytest.raises(DataError, match="more than the limit of 400,000"):
        get(publisher, tmp_path / "f.bin", max_bytes=400_000)


def test_a_server_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"could not be fetched in 3 tries .*refused"):
        download("http://127.0.0.1:9/f.bin", tmp_path / "f.bin", max_bytes=LIMIT, retries=BRIEF)


def test_a_server_that_does_not_say_how_long_a_file_is(publisher, tmp_path):
    publisher.lengths = False
    assert get(publisher, tmp_path / "f.bin", sha256=SUM) == SUM


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/f", "f.bin", "http://", "https:///x"])
def test_only_addresses_on_the_web(url, tmp_path):
    with pytest.raises(ConfigError, match="not an http or https address"):
        download(url, tmp_path / "f.bin", max_bytes=LIMIT)


def test_redirections_stay_on_the_web(publisher, tmp_path):
    publisher.redirect = "ftp://127.0.0.1/f.bin"
    with pytest.raises(DataError, match=r"f\.bin redirects to ftp://127\.0\.0\.1/f\.bin"):
        get(publisher, tmp_path / "f.bin")


@pytest.mark.parametrize(
    ("before", "after", "followed"),
    [
        ("https://a.org/f", "http://a.org/f", False),
        ("https://a.org/f", "HTTP://b.org/f", False),
        ("https://a.org/f", "https://b.org/f", True),
        ("http://a.org/f", "https://a.org/f", True),
        ("http://a.org/f", "http://b.org/f", True),
    ],
)
def test_redirections_never_leave_encryption(before, after, followed):
    def follow():
        request = urllib.request.Request(before)
        return _SafeRedirects().redirect_request(request, None, 302, "Found", Message(), after)

    if followed:
        assert follow().full_url == after
    else:
        with pytest.raises(DataError, match=r"https://a\.org/f redirects to .*, which is not encrypted"):
            follow()


def test_a_folder_that_cannot_be_made(publisher, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunError, match="cannot be created"):
        get(publisher, tmp_path / "file" / "f.bin")
