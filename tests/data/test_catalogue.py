import gzip
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from jointensor.cli.app import app
from jointensor.data.catalogue.archives import open_member
from jointensor.data.catalogue.build import BUILDERS
from jointensor.data.catalogue.download import Retries
from jointensor.data.catalogue.get import Fetcher, cache_folder, downloaded, get
from jointensor.data.catalogue.recipes import load, names
from jointensor.data.formats import read_tensor
from jointensor.errors import ConfigError, DataError, JointensorError, RunError

from .server import serving

PAPER = {
    "movielens-25m": ((139357, 57675, 2981), 20260421),
    "facebook-wall": ((42390, 39986, 1506), 738078),
    "healthcare": ((2814, 266, 189, 728), 9002336),
    "enron": ((6066, 5699, 244268, 1176), 54202099),
    "nips": ((2482, 2862, 14036, 17), 3101609),
    "uber": ((183, 24, 1140, 1717), 3309490),
}
FROSTT = ("enron", "nips", "uber")


@pytest.fixture
def publisher():
    with serving() as made:
        yield made


def fetcher(cache, notes=None):
    return Fetcher(cache, (lambda text: None) if notes is None else notes.append, retries=Retries(60.0, 2, 0.0))


def at(recipe, publisher, keep=lambda source: True, sha256=None):
    """The same recipe, with its files on our server."""
    sources = []
    for source in filter(keep, recipe.sources):
        files = [replace(f, url=publisher.url(f.name) if f.url else None, sha256=sha256) for f in source.files]
        sources.append(replace(source, files=tuple(files)))
    return replace(recipe, sources=tuple(sources))


def cells(tensor):
    """Values by labels."""
    columns = [mode.decode(tensor.indices[:, n]) for n, mode in enumerate(tensor.modes)]
    return dict(zip(zip(*columns, strict=True), tensor.values.tolist(), strict=True))


def day(seconds):
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tarred(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:bz2") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def frostt_files(name, rng, entries=40):
    """FROSTT's files, and the cells they should make; a map may have labels past the last that is used."""
    recipe = load(name)
    shape = [3, 4, 5, 6]
    where = [np.unravel_index(i, shape) for i in rng.choice(360, size=entries, replace=False)]
    counts = rng.integers(1, 9, size=entries).tolist()
    lines = [" ".join(str(i + 1) for i in cell) + f" {v}" for cell, v in zip(where, counts, strict=True)]
    files = {recipe.sources[0].main.name: gzip.compress("".join(f"{line}\n" for line in lines).encode())}
    labels = []
    for n, file in enumerate(recipe.sources[0].files[1:]):
        texts = [f"{recipe.modes[n]}{i}" for i in range(shape[n] + n)]
        labels.append(texts)
        files[file.name] = gzip.compress("".join(f"{text}\n" for text in texts).encode())
    expected = {
        tuple(labels[n][i] for n, i in enumerate(cell)): float(v) for cell, v in zip(where, counts, strict=True)
    }
    return files, expected


def ratings_file(rng):
    """MovieLens' ratings, and the cells they should make: few ratings, the usual number, very many."""
    rows, expected = [], {}
    for user, count in ((7, 19), (12, 20), (3, 45), (5, 3007)):
        movies = rng.permutation(4000)[:count] + 1
        times = rng.integers(10**9, 10**9 + 10**7, size=count)
        ratings = rng.integers(1, 11, size=count) / 2
        mine = list(zip(movies.tolist(), ratings.tolist(), times.tolist(), strict=True))
        rows += [(user, *one) for one in mine]
        if count >= 20:
            for movie, rating, time in sorted(mine, key=lambda one: one[2])[:3000]:
                expected[str(user), str(movie), day(time)] = rating
    text = "userId,movieId,rating,timestamp\n" + "".join(f"{u},{m},{r},{t}\n" for u, m, r, t in rows)
    return text.encode(), expected


def posts(rng, count=300):
    """Posts as (poster, wall, time), and how many there are of each cell."""
    made = [(int(p), int(w), int(t)) for p, w, t in rng.integers([1, 1, 11e8], [9, 9, 11e8 + 4e5], size=(count, 3))]
    return made, {k: float(v) for k, v in Counter((str(p), str(w), day(t)) for p, w, t in made).items()}


# recipes


def test_the_papers_six_tensors_have_recipes():
    assert names() == sorted(PAPER)


@pytest.mark.parametrize("name", PAPER)
def test_recipes_are_complete(name):
    recipe = load(name)
    assert (recipe.shape, recipe.entries) == PAPER[name]
    assert len(recipe.modes) == len(set(recipe.modes)) == len(recipe.shape)
    assert all((recipe.title, recipe.licence, recipe.citation, recipe.how, recipe.value))
    assert len(recipe.orders) == len(recipe.modes)
    assert set(recipe.orders) <= {"none", "ordered", "cyclic"}
    assert recipe.public == (name != "healthcare") == (recipe.substitute is None)
    if recipe.public:
        assert recipe.page.startswith("http")
    for source in recipe.sources:
        assert source.format in BUILDERS
        assert not source.main.optional
        for file in source.files:
            assert re.fullmatch(r"\w[\w.+-]*", file.name)  # a name in the folder of the tensor, nothing else
            assert file.url is None or file.url.startswith("https://")
            assert file.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", file.sha256)


# each tensor from its publisher's format


@pytest.mark.parametrize("name", FROSTT)
def test_frostt_tensors_with_their_labels(name, publisher, tmp_path):
    publisher.files, expected = frostt_files(name, np.random.default_rng(0))
    recipe = at(load(name), publisher)
    source, folder = fetcher(tmp_path).fetch(recipe)
    assert source.format == "frostt"
    built = get(name, folder, fetcher(tmp_path))
    assert cells(built.tensor) == expected
    assert built.tensor.mode_names == recipe.modes
    assert [mode.order for mode in built.tensor.modes] == list(recipe.orders)
    assert built.tensor.shape == tuple(built.tensor.indices.max(axis=0) + 1)


def test_labels_that_are_not_there_are_done_without(publisher, tmp_path):
    publisher.files, _ = frostt_files("uber", np.random.default_rng(0))
    del publisher.files["mode-2-hours.map.gz"]
    notes = []
    _, folder = fetcher(tmp_path, notes).fetch(at(load("uber"), publisher))
    tensor = get("uber", folder, fetcher(tmp_path)).tensor
    assert tensor.modes[1].labels is None
    assert tensor.modes[0].labels is not None
    assert any("mode-2-hours.map.gz is no longer published" in note for note in notes)


@pytest.mark.parametrize("packed", [True, False])
def test_movielens(packed, tmp_path):
    text, expected = ratings_file(np.random.default_rng(1))
    if packed:
        other = {"ml-25m/README.txt": b"?", "ml-25m/movies.csv": b"movieId,title,genres\n"}
        (tmp_path / "ml-25m.zip").write_bytes(zipped({**other, "ml-25m/ratings.csv": text}))
    else:
        (tmp_path / "ratings.csv").write_bytes(text)
    built = get("movielens-25m", tmp_path, fetcher(tmp_path / "cache"))
    assert cells(built.tensor) == expected
    assert built.tensor.mode_names == ("user", "movie", "timestamp")
    assert built.tensor.modes[0].labels == ("3", "5", "12")
    assert list(built.tensor.modes[2].labels) == sorted(built.tensor.modes[2].labels)
    assert any("162,541 users" in note for note in built.notes)
    assert any("not the publisher's file" in note for note in built.notes) == packed


def test_movielens_keeps_the_first_of_equal_times_in_file_order(tmp_path):
    rows = "".join(f"1,{movie},3.5,1000000000\n" for movie in range(4000, 900, -1))
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + rows, encoding="utf-8")
    tensor = get("movielens-25m", tmp_path, fetcher(tmp_path)).tensor
    assert len(tensor) == 3000
    assert min(map(int, tensor.modes[1].labels)) == 1001


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_facebook_as_konect_writes_it(separator, publisher, tmp_path):
    made, expected = posts(np.random.default_rng(2))
    lines = [separator.join(map(str, (p, w, 1, t))) for p, w, t in made]
    text = ("% asym positive\n% 300 9 9\n" + "".join(f"{line}\n" for line in lines)).encode()
    inside = {"facebook-wosn-wall/README.facebook-wosn-wall": b"?", "facebook-wosn-wall/out.facebook-wosn-wall": text}
    publisher.files = {"download.tsv.facebook-wosn-wall.tar.bz2": tarred(inside)}
    source, folder = fetcher(tmp_path).fetch(at(load("facebook-wall"), publisher))
    assert source.format == "konect"
    tensor = get("facebook-wall", folder, fetcher(tmp_path)).tensor
    assert cells(tensor) == expected
    assert tensor.mode_names == ("poster", "wall", "date")


@pytest.mark.parametrize("name", ["facebook-wall.txt.gz", "facebook-wall.txt.anon.gz", "facebook-wall.txt.anon"])
def test_facebook_as_its_authors_wrote_it(name, tmp_path):
    made, expected = posts(np.random.default_rng(3))
    text = "".join(f"{wall}\t{poster}\t{time}\n" for poster, wall, time in made).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    for origin in (tmp_path, tmp_path / name):
        assert cells(get("facebook-wall", origin, fetcher(tmp_path)).tensor) == expected


def test_the_next_source_is_tried_where_one_is_gone(publisher, tmp_path):
    made, _ = posts(np.random.default_rng(3))
    text = "".join(f"{wall}\t{poster}\t{time}\n" for poster, wall, time in made).encode()
    publisher.files = {"facebook-wall.txt.gz": gzip.compress(text)}
    source, _ = fetcher(tmp_path).fetch(at(load("facebook-wall"), publisher))
    assert source.format == "mpi-wall"
    publisher.files = {}
    with pytest.raises(DataError, match=r"tar.bz2 does not exist.*facebook-wall.txt.gz does not exist"):
        fetcher(tmp_path / "other").fetch(at(load("facebook-wall"), publisher))


def test_healthcare_takes_a_table_of_the_users_own(tmp_path):
    path = tmp_path / "ours.csv"
    path.write_text(
        "county,disease,procedure,date,claims\n01001,flu,test,2020-01-02,3\n01001,flu,test,2020-01-02,4\n"
        "01003,flu,visit,2020-01-01,1\n",
        encoding="utf-8",
    )
    built = get("healthcare", path, fetcher(tmp_path))
    expected = {("01001", "flu", "test", "2020-01-02"): 7.0, ("01003", "flu", "visit", "2020-01-01"): 1.0}
    assert cells(built.tensor) == expected
    with pytest.raises(ConfigError, match=r"not public.*--from FILE.*county, disease"):
        get("healthcare", None, fetcher(tmp_path))
    path.write_text("county,day\n1,2\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"disease|claims"):
        get("healthcare", path, fetcher(tmp_path))


@pytest.mark.parametrize(
    ("name", "origin", "message"),
    [
        ("uber", "nothing", "no such folder"),
        ("uber", ".", "give one of uber.tns.gz"),
        ("ubr", ".", "did you mean 'uber'"),
        ("uber", "a.csv", "a.csv has no file to build 'uber' from"),
        ("ubr", None, "did you mean 'uber'"),
    ],
)
def test_what_cannot_be_found(name, origin, message, tmp_path):
    (tmp_path / "a.csv").write_text("x\n", encoding="utf-8")
    with pytest.raises(JointensorError, match=message):
        get(name, None if origin is None else tmp_path / origin, fetcher(tmp_path))


# broken files


@pytest.mark.parametrize(
    ("name", "file", "data", "message"),
    [
        ("movielens-25m", "ml-25m.zip", zipped({"ml-25m/ratings.csv": b"userId\n" * 99})[:-30], "cannot be unpacked"),
        ("movielens-25m", "ml-25m.zip", zipped({"ml-25m/movies.csv": b""}), "no files called 'ratings.csv'"),
        ("movielens-25m", "ml-25m.zip", zipped({"../ratings.csv": b"x"}), "outside of the archive"),
        ("movielens-25m", "ml-25m.zip", zipped({"ratings.csv": b"x", "/etc/x": b"x"}), "'/etc/x', a path outside"),
        ("movielens-25m", "ml-25m.zip", zipped({"ratings.csv": b"x", "C:\\x": b"x"}), "outside"),
        ("movielens-25m", "ratings.csv", b"userId,movieId,rating,timestamp\n1,2,3.5,10\n1,3", "rating 2 is incomplete"),
        (
            "movielens-25m",
            "ratings.csv",
            b"userId,movieId,rating,timestamp\n1,2,good,10\n",
            "cannot be read as ratings",
        ),
        ("movielens-25m", "ratings.csv", b"user,movie,rating,time\n1,2,3,4\n", "the columns are user"),
        ("movielens-25m", "ratings.csv", b"userId,movieId,rating,timestamp\n1,2,3,4\n", "no user has 20 ratings"),
        ("facebook-wall", "facebook-wall.txt.gz", gzip.compress(b"1\t2\t3\n" * 999, mtime=0)[:-12], "cut off"),
        ("facebook-wall", "facebook-wall.txt.anon", b"1\t2\t3\n1\t2\n", "cut off"),
        ("facebook-wall", "facebook-wall.txt.anon", b"1 2\n", "2 fields in a line, expected 3"),
        ("facebook-wall", "facebook-wall.txt.anon", b"1 2 nan\n", "post 1"),
        ("facebook-wall", "facebook-wall.txt.anon", b"% nothing\n", "no posts"),
        ("uber", "uber.tns.gz", gzip.compress(b"1 1 1 1 2\n" * 99, mtime=0)[:-9], "cut off"),
        ("uber", "uber.tns.gz", gzip.compress(b"1 1 1 2\n", mtime=0), "has 3 modes; 'uber' has 4"),
    ],
)
def test_broken_files_are_refused_by_name(name, file, data, message, tmp_path):
    (tmp_path / file).write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        get(name, tmp_path, fetcher(tmp_path))
    assert file in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [file]  # nothing was unpacked anywhere
    assert not (tmp_path.parent / "ratings.csv").exists()


@pytest.mark.parametrize("name", ["a.zip", "a.gz", "a.tar.bz2"])
def test_damaged_archives_are_refused(name, tmp_path):
    text = np.random.default_rng(0).bytes(5000)
    whole = {"a.zip": zipped({"x": text}), "a.gz": gzip.compress(text), "a.tar.bz2": tarred({"x": text})}[name]
    path = tmp_path / name
    path.write_bytes(whole)
    with open_member(path, "x") as file:
        assert file.read() == text
    for damaged in (whole[:-40], whole[:2500] + b"????" + whole[2504:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.\w+"), open_member(path, "x") as file:
            file.read()


# checksums and the cache


def test_get_downloads_builds_and_compares(publisher, tmp_path, monkeypatch):
    publisher.files, expected = frostt_files("uber", np.random.default_rng(5))
    publisher.cuts = [100]
    monkeypatch.setattr("jointensor.data.catalogue.get.load", lambda name: at(load(name), publisher))
    built = get("uber", None, fetcher(tmp_path))
    assert cells(built.tensor) == expected
    assert built.to_dict()["entries"] == 40
    assert built.origin == tmp_path / "uber" / "uber.tns.gz"
    assert ("/uber.tns.gz", "bytes=100-") in publisher.asked


def test_first_use_records_a_checksum_that_is_enforced_from_then_on(publisher, tmp_path):
    publisher.files, _ = frostt_files("nips", np.random.default_rng(0))
    recipe = at(load("nips"), publisher)
    assert downloaded(recipe, tmp_path) is None
    notes = []
    _, folder = fetcher(tmp_path, notes).fetch(recipe)
    assert downloaded(recipe, tmp_path) is recipe.sources[0]
    assert any("no checksum of nips.tns.gz is published" in note for note in notes)
    recorded = folder / "nips.tns.gz.sha256"
    assert recorded.read_text(encoding="utf-8").strip() == hashlib.sha256(publisher.files["nips.tns.gz"]).hexdigest()

    asked = len(publisher.asked)
    fetcher(tmp_path).fetch(recipe)
    assert len(publisher.asked) == asked  # all is here

    whole = (folder / "nips.tns.gz").read_bytes()
    (folder / "nips.tns.gz").write_bytes(whole[:-5])  # damaged here: fetched again
    fetcher(tmp_path, notes).fetch(recipe)
    assert (folder / "nips.tns.gz").read_bytes() == whole
    assert any("changed or damaged after its download" in note for note in notes)

    (folder / "nips.tns.gz").unlink()
    publisher.files["nips.tns.gz"] = gzip.compress(b"1 1 1 1 1\n")  # changed there: refused
    with pytest.raises(DataError, match=r"expected .*the publisher changed it"):
        fetcher(tmp_path).fetch(recipe)
    assert [path.name for path in folder.glob("nips.tns.gz*")] == [recorded.name]
    recorded.unlink()
    fetcher(tmp_path).fetch(recipe)  # accepted on request


def test_a_published_checksum_is_enforced(publisher, tmp_path):
    publisher.files = {"ml-25m.zip": zipped({"ml-25m/ratings.csv": b"x"})}
    recipe = at(load("movielens-25m"), publisher, sha256="0" * 64)
    with pytest.raises(DataError, match="expected 0000"):
        fetcher(tmp_path).fetch(recipe)
    assert not list((tmp_path / "movielens-25m").iterdir())


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("JOINTENSOR_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    assert cache_folder(Path("x")) == Path("x")
    monkeypatch.delenv("JOINTENSOR_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "jointensor"


# the command line


def command(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def test_list_shows_every_tensor(tmp_path):
    shown = command("list", "--cache", tmp_path).stdout
    assert all(name in shown for name in PAPER)
    assert "54,202,099" in shown
    assert "not public" in shown
    (tmp_path / "uber").mkdir()
    (tmp_path / "uber" / "uber.tns.gz").write_bytes(b"")
    rows = json.loads(command("list", "--json", "--cache", tmp_path).stdout)
    assert {row["name"]: row["downloaded"] for row in rows} == {name: name == "uber" for name in PAPER}


@pytest.mark.parametrize("name", PAPER)
def test_info_says_where_it_comes_from(name, tmp_path):
    shown = command("info", name, "--cache", tmp_path).stdout
    recipe = load(name)
    assert recipe.licence in shown
    assert recipe.citation in shown
    facts = json.loads(command("info", name, "--json").stdout)
    assert (tuple(facts["paper"]["shape"]), facts["paper"]["entries"]) == PAPER[name]


@pytest.mark.parametrize("out", ["t.npz", "t.csv", "t.parquet"])
def test_get_writes_the_tensor_and_compares_it_with_the_paper(out, tmp_path):
    made, expected = posts(np.random.default_rng(4))
    text = "".join(f"{wall}\t{poster}\t{time}\n" for poster, wall, time in made)
    (tmp_path / "facebook-wall.txt.anon").write_text(text, encoding="utf-8")
    done = command("get", "facebook-wall", "--from", tmp_path, "--out", tmp_path / out)
    assert done.exit_code == 0
    assert f"{len(expected)} entries" in done.stdout
    assert "42390 x 39986 x 1506, 738,078 entries: not the same" in done.stdout
    if out == "t.npz":
        assert cells(read_tensor(tmp_path / out).tensor) == expected
    again = command("get", "facebook-wall", "--from", tmp_path, "--out", tmp_path / out)
    assert isinstance(again.exception, RunError)
    assert "exists already" in str(again.exception)


def test_get_quietly_and_as_json(tmp_path):
    text = "county,disease,procedure,date,claims\n01001,flu,test,2020-01-02,3\n01003,flu,visit,2020-01-01,1\n"
    (tmp_path / "mine.csv").write_text(text, encoding="utf-8")
    options = ("get", "healthcare", "--from", tmp_path / "mine.csv", "--out")
    assert command(*options, tmp_path / "a.npz", "--quiet").output == ""
    assert json.loads(command(*options, tmp_path / "b.npz", "--json").stdout)["shape"] == [2, 1, 2, 2]


def test_get_synthetic(tmp_path):
    out = tmp_path / "s.npz"
    plan = ("--shape", "30x20x10x5", "--rank", "3/4", "--noise", 0.1, "--skew", 1.0, "--seed", 0)
    done = command("get", "synthetic", *plan, "--entries", 1000, "--out", out, "--json")
    facts = json.loads(done.stdout)
    tensor = read_tensor(out).tensor
    assert (tensor.shape, len(tensor)) == ((30, 20, 10, 5), 1000) == (tuple(facts["shape"]), facts["entries"])
    command("get", "synthetic", *plan, "--density", 0.01, "--out", tmp_path / "d.csv")
    assert len((tmp_path / "d.csv").read_text(encoding="utf-8").splitlines()) == 301


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("synthetic", "--entries", 5), "--shape"),
        (("synthetic", "--shape", "5x0", "--entries", 5), "--shape 5x0"),
        (("synthetic", "--shape", "5x5"), "--entries N or --density"),
        (("synthetic", "--shape", "5x5", "--entries", 5, "--density", 0.1), "one of them"),
        (("synthetic", "--shape", "5x5", "--density", 2), "between 0 and 1"),
        (("synthetic", "--shape", "5x5", "--entries", 5, "--rank", "3"), "rank '3'"),
        (("synthetic", "--shape", "5x5", "--entries", 5, "--from", "."), "leave out --from"),
        (("uber", "--skew", 1), "--skew is for synthetic"),
        (("uber", "--out", "x.tns"), "write .npz, or a table"),
        (("healthcare",), "not public"),
    ],
)
def test_wrong_usage(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command("get", *arguments)
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_listing_needs_neither_torch_nor_the_net():
    code = """
import socket, sys
socket.socket.connect = None
import jointensor.data.catalogue.get
from jointensor.cli.app import app
app(["data", "list"], standalone_mode=False)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
