"""What is fuzzed: for every reader valid files, how they are changed, and how they are read.

A case is a folder: names of files and their bytes. The name of a file says by which rules it is read.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import random
import struct
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.base import Case, Reader
from tests.fuzz.mutate import mutated
from tests.fuzz.npy import HUGE, bomb, lying_array, npy_bomb, pack, plain_array, zip_of_raw
from tests.fuzz.tables import Arrow, JsonLines, Parquet, Streamed


class Tns(Reader):
    """FROSTT's text, with maps."""

    name = "tns"
    modules = ("data/formats/tns.py",)
    texts = (
        b"1 1 1 5.0\n1 2 3 4\n2 2 1 1e-3\n",
        b"# a comment\n1 1 2\n2 1 3.5\n\n3 4 -7\n",
        b"1  1\t1 1 2\n4 3 2 1 0.5 # here too\n2 2 2 2 1\n",
        b"\n".join(b"%d %d %d %g" % (i % 9 + 1, i % 7 + 1, i + 1, i / 3) for i in range(60)),
    )
    maps = (b"a\nb\nc\n", b"2020-01-01\r\n2020-01-02\r\n", "ä\nö\nü".encode(), b"x\nx\n", b"", b"\n\n\n")

    def case(self, rng: random.Random) -> Case:
        """Entries, sometimes gzipped, sometimes with a map beside them."""
        data = mutated(rng, rng.choice(self.texts), self.texts)
        files = {"t.tns": data}
        if rng.random() < 0.15:
            packed = gzip.compress(data, 1, mtime=0)
            files = {"t.tns.gz": mutated(rng, packed, (), text=False) if rng.random() < 0.7 else packed}
        if rng.random() < 0.25:
            name = rng.choice(
                ("mode-1-user", "t.mode-2-day", "mode-3-a%2Fb", "mode-0-x", "mode-99999999999999999999-x")
            )
            files[f"{name}.map"] = mutated(rng, rng.choice(self.maps), self.maps)
        return files

    def read(self, folder: Path) -> None:
        """As a tensor."""
        from jointensor.data.formats import read_tensor

        read_tensor(next(folder.glob("t.tns*")))


class Csv(Reader):
    """Delimited text, as a tensor or as queries."""

    name = "csv"
    modules = (
        "data/formats/delimited.py",
        "data/frames.py",
        "data/times.py",
        "data/expressions.py",
        "data/modes.py",
        "data/queries.py",
    )
    texts = (
        b"user,movie,day,rating\nann,Up,2020-01-01,5\nbob,Up,2020-01-02,3.5\nann,Her,2020-01-02,4\n",
        b'user;movie;day;rating\n"a;b";"say ""hi""";1/2/2020;1\nx;"two\nlines";13/1/2020;2\n',
        b"user\tmovie\tday\trating\n01\t1\t1400000000\t1\n1\t2\t1400086400\t2\n",
        "user,movie,day,rating\nÄnn,Üp,20200101,1e3\nb,c,20200102,-0.5\n".encode(),
        b"user,movie,day,rating,extra\n1,2,2020-01-01T10:00:00Z,7,a\n2,2,2020-01-01T11:30:00+02:00,8,\n",
        b"user,movie,day,rating\n" + b"".join(b"u%d,m%d,%d:%d,%d\n" % (i % 9, i, i, i, i) for i in range(60)),
    )
    kinds = ("plain", "count", "sums", "noheader", "queries", "entries", "jsonl") * 5 + ("dates", "sql")

    def case(self, rng: random.Random) -> Case:
        """A table, sometimes packed."""
        data, kind = mutated(rng, rng.choice(self.texts), self.texts), rng.choice(self.kinds)
        if kind == "jsonl":
            rows = (
                b'{"user":"a","movie":1,"day":"2020-01-01","rating":2.5}\n{"user":"b","movie":2,"day":null,"rating":1}'
            )
            return {"plain.jsonl": mutated(rng, rows)}
        ending = rng.choice(("csv", "csv", "tsv", "txt"))
        if rng.random() < 0.05:
            packed = gzip.compress(data, 1, mtime=0)
            return {f"{kind}.{ending}.gz": mutated(rng, packed, (), text=False) if rng.random() < 0.7 else packed}
        return {f"{kind}.{ending}": data}

    def read(self, folder: Path) -> None:
        """By the rules that the file's name asks for."""
        from jointensor.data.formats import read_tensor
        from jointensor.data.frames import TableSpec
        from jointensor.data.modes import Mode
        from jointensor.data.queries import read_entries, read_queries

        path = next(iter(folder.iterdir()))
        kind, columns = path.name.split(".")[0], ["user", "movie", "day"]
        modes = (Mode("user", 2, ("ann", "bob")), Mode("movie", 5), Mode("day", 2, ("2020-01-01", "2020-01-02")))
        dated = ["user", "day=day(day)", "hour=hour(day)"]
        sql = ["user", "n=ROUND(rating, 1)", "m=LEFT(movie, 2)"]
        specs = {
            "plain": TableSpec.of(columns, "rating"),
            "dates": TableSpec.of(dated, "rating", duplicates="mean"),
            "count": TableSpec.of(columns[:2], "count"),
            "sums": TableSpec.of(columns[:2], "rating", duplicates="sum"),
            "noheader": TableSpec.of(columns, "rating", header=False, columns=(*columns, "rating")),
            "sql": TableSpec.of(sql, "count"),
            "queries": TableSpec.of(columns, "rating"),
            "entries": TableSpec.of(columns, "rating", duplicates="last"),
        }
        if kind == "queries":
            read_queries(path, modes, specs[kind], values=False)
        elif kind == "entries":
            read_entries(path, modes, specs[kind])
        else:
            read_tensor(path, specs[kind])


class Npz(Reader):
    """NumPy archives, as a tensor, as queries, and as labels beside a tensor."""

    name = "npz"
    modules = ("data/formats/npz.py", "data/tensor.py")

    def __init__(self) -> None:
        self.arrays: list[dict[str, np.ndarray]] = [
            {
                "indices": np.array([[0, 0, 1], [1, 2, 0], [3, 1, 1]], dtype=np.int32),
                "values": np.array([1.0, 2.5, -3.0], dtype=np.float32),
                "shape": np.array([4, 3, 2]),
                "mode_names": np.array(["user", "movie", "day"]),
                "orders": np.array(["none", "none", "ordered"]),
                "labels_1": np.array(["a", "b", "ü"]),
            },
            {"indices": np.array([[0.0, 1.0], [5.0, 2.0]]), "values": np.array([1, 2], dtype=np.uint8)},
            {"indices": np.zeros((0, 3), dtype=np.int64), "values": np.zeros(0), "shape": np.array([1, 2, 3])},
            {"indices": np.array([[0, 1]]), "values": np.array([True]), "labels_0": np.array([b"x"], dtype="S3")},
        ]
        self.files = [
            pack([(f"{name}.npy", plain_array(one)) for name, one in arrays.items()], deflated=bool(n % 2))
            for n, arrays in enumerate(self.arrays)
        ]

    def case(self, rng: random.Random) -> Case:
        """Bytes of an archive changed, or an archive made of changed arrays."""
        name = rng.choice(("tensor", "tensor", "queries")) + ".npz"
        if rng.random() < 0.3:
            return {name: mutated(rng, rng.choice(self.files), self.files, text=False)}
        members = self._members(rng)
        if rng.random() < 0.002:
            raw, size = npy_bomb(1 << 27), rng.choice((1 << 27, 1 << 28, 10, 0xFFFFFFFF, 0))
            return {name: zip_of_raw(rng.choice(("indices.npy", "values.npy", "x")), raw, size)}
        if rng.random() < 0.2:
            odd = ("../out.npy", "/tmp/out.npy", "indices.npy", "values", "", "a/b.npy", "..\\x.npy", "\0.npy", "é.npy")
            members.insert(rng.randrange(len(members) + 1), (rng.choice(odd), rng.choice(members)[1]))
        data = pack(members, deflated=rng.random() < 0.3)
        return {name: mutated(rng, data, (), text=False) if rng.random() < 0.1 else data}

    def _members(self, rng: random.Random) -> list[tuple[str, bytes]]:
        arrays = dict(rng.choice(self.arrays))
        touched = rng.choice(list(arrays))
        members = []
        for name, array in arrays.items():
            data = plain_array(array)
            if name == touched:
                data = self._changed(rng, array)
            members.append((f"{name}.npy", data))
        return members

    def _changed(self, rng: random.Random, array: np.ndarray) -> bytes:
        match rng.randrange(6):
            case 0 | 1:
                return lying_array(rng, array)
            case 2:
                return mutated(rng, plain_array(array), (), text=False)
            case 3:
                odd = np.array([{}, None, print], dtype=object)
                return plain_array(odd) if rng.random() < 0.5 else plain_array(array.astype(object))
            case 4:
                kinds = (
                    ("f8", "i8", "u8", "f2", "S5", "U5", "?", "c8", "m8[D]")
                    if array.dtype.kind in "iufb"
                    else ("U9", "U1")
                )
                flat = array.astype(rng.choice(kinds))
                return plain_array(flat.reshape(rng.choice((flat.shape, (-1,), (1, -1), (*flat.shape, 1)))))
            case _:
                wide = array.astype(np.float64) if array.dtype.kind in "iufb" else np.zeros(3)
                if wide.size:
                    wide.flat[rng.randrange(wide.size)] = rng.choice((np.nan, np.inf, -1, 1e300, 0.5, 2.0**63, 1e19))
                return plain_array(wide)

    def read(self, folder: Path) -> None:
        """By the rules that the file's name asks for."""
        from jointensor.data.formats import read_tensor
        from jointensor.data.modes import Mode
        from jointensor.data.queries import read_queries

        path = next(iter(folder.iterdir()))
        if path.stem == "queries":
            modes = (Mode("user", 4), Mode("movie", 3, ("a", "b", "c")), Mode("day", 2))
            read_queries(path, modes, None, values=True)
        else:
            read_tensor(path)


class Weights(Reader):
    """Safetensors: the header changed, or the configuration in it, or numbers; whatever loads must predict."""

    name = "safetensors"
    modules = tuple(
        f"predictors/{name}.py"
        for name in (
            "storage",
            "base",
            "tables",
            "trees",
            "fibers",
            "axes",
            "kriging",
            "knn",
            "interpolation",
            "joint",
            "ensemble",
        )
    )

    def __init__(self) -> None:
        self.files = weight_files()
        self.light = 5
        """The first of them take little time to load."""
        self.parts = [_split(data) for data in self.files]

    def case(self, rng: random.Random) -> Case:
        """A changed file."""
        return {"model.safetensors": self.changed(rng)}

    def changed(self, rng: random.Random) -> bytes:
        """A changed file of weights."""
        which = rng.randrange(len(self.files)) if rng.random() < 0.25 else rng.randrange(self.light)
        head, body = self.parts[which]
        match rng.randrange(10):
            case 0:
                return mutated(rng, self.files[which], self.files, text=False)
            case 1:
                return _join(mutated(rng, json.dumps(head).encode()), body)
            case 2 | 3 | 4:
                head = json.loads(json.dumps(head))
                name = rng.choice([name for name in head if name != "__metadata__"])
                _change_entry(rng, head, name, len(body))
                return _join(json.dumps(head).encode(), body)
            case 5:
                size = rng.choice((0, 1, 8, 2**31, 2**63, 2**64 - 1, 10**8, len(self.files[which])))
                return struct.pack("<Q", size) + self.files[which][8:]
            case 6:
                return _join(json.dumps(head).encode(), mutated(rng, body, (), text=False))
            case _:
                head = json.loads(json.dumps(head))
                key = next(iter(head["__metadata__"]))
                config = changed_json(rng, json.loads(head["__metadata__"][key]))
                text = json.dumps(config)
                head["__metadata__"][key] = (
                    mutated(rng, text.encode()).decode("utf-8", "replace") if rng.random() < 0.1 else text
                )
                return _join(json.dumps(head).encode(), body)

    def read(self, folder: Path) -> None:
        """Load, and predict what there may be questions for."""
        from jointensor.predictors.storage import load_predictor

        ask(load_predictor(folder / "model.safetensors"))

    def warm_up(self, folder: Path) -> None:
        """Compile the kernels."""
        for data in self.files:
            (folder / "model.safetensors").write_bytes(data)
            self.read(folder)


class RunFolder(Reader):
    """A finished run: any of its files changed, with checksums that agree or do not."""

    name = "run"
    modules = ("runs/folder.py", "predictors/storage.py", "atomic.py")

    def __init__(self) -> None:
        self.weights = Weights()
        self.runs = [self._run(n) for n in range(self.weights.light, len(self.weights.files))]

    def _run(self, which: int) -> dict[str, Any]:
        from jointensor.data.frames import TableSpec

        spec = TableSpec.of(["user", "movie", "day=day(time)"], "rating")
        modes = [
            {"name": "user", "size": 7, "order": "none", "labels": [f"u{n}" for n in range(7)]},
            {"name": "movie", "size": 6, "order": "none", "labels": None},
            {"name": "day", "size": 9, "order": "ordered", "labels": [f"2020-01-0{n + 1}" for n in range(9)]},
        ]
        return {
            "config.json": {"source": "/data/ratings.csv", "sha256": "0" * 64, "options": {"rank": "4/16", "seed": 0}},
            "labels.json": {"modes": modes, "table": spec.to_dict() if which % 2 else None},
            "metrics.json": {
                "test": {"rmse": 1.0, "mae": 0.5, "rfe": 0.1, "n": 10},
                "outcome": "converged",
                "files": {},
            },
            "model.safetensors": self.weights.files[which],
        }

    def case(self, rng: random.Random) -> Case:
        """One file changed in a run folder, now and then two."""
        run = dict(rng.choice(self.runs))
        files = {name: data if isinstance(data, bytes) else json.dumps(data).encode() for name, data in run.items()}
        for name in rng.sample(list(files), rng.choice((1, 1, 1, 2))):
            files[name] = self._changed(rng, name, run)
        if rng.random() < 0.85:  # whoever made the folder made its checksums too
            self._agree(rng, files)
        if rng.random() < 0.03:
            files.pop(rng.choice(list(files)))
        return files

    def _changed(self, rng: random.Random, name: str, run: dict[str, Any]) -> bytes:
        if name == "model.safetensors":
            return self.weights.changed(rng)
        if rng.random() < 0.25:
            return mutated(rng, json.dumps(run[name]).encode())
        if rng.random() < 0.05:
            return rng.choice(
                (b"[" * 100_000, b'{"a":' * 50_000, b"9" * 10_000, b"NaN", b"\xff\xfe", b"", b'"\\ud800"')
            )
        return json.dumps(changed_json(rng, run[name])).encode()

    def _agree(self, rng: random.Random, files: Case) -> None:
        try:
            metrics = json.loads(files["metrics.json"])
            listed = {name: hashlib.sha256(files[name]).hexdigest() for name in ("model.safetensors", "labels.json")}
            if rng.random() < 0.1:
                odd = ("../../etc/passwd", "/etc/passwd", "..", ".", "", "a\0b", "config.json", "x" * 300)
                listed[rng.choice(odd)] = "0" * 64
            if isinstance(metrics["files"], dict):
                metrics["files"] |= listed
                files["metrics.json"] = json.dumps(metrics).encode()
        except (ValueError, KeyError, TypeError, RecursionError):
            pass

    def read(self, folder: Path) -> None:
        """Load, predict, and read queries by its rules."""
        from jointensor.data.queries import read_queries
        from jointensor.runs.folder import load_run

        run = load_run(folder)
        ask(run.predictor)
        path = folder / "queries.csv"
        path.write_text(
            "user,movie,day,time\nu1,2,2020-01-03,2020-01-03 10:00:00\nu9,9,x,2020-01-04 11:00:00\n", encoding="utf-8"
        )
        queries = read_queries(path, run.modes, run.spec, values=False)
        run.predictor.predict(queries.indices)

    def warm_up(self, folder: Path) -> None:
        """Compile the kernels."""
        self.weights.warm_up(folder)
        (folder / "model.safetensors").unlink()


class Sql(Reader):
    """Expressions of modes."""

    name = "sql"
    modules = ("data/expressions.py", "data/times.py")
    texts = (
        b"ROUND(lat, 3)", b"LEFT(zip, 2)", b"CASE WHEN n > 2 THEN 'many' ELSE 'few' END", b"user || '-' || n",
        b"n % 7 + CAST(lat AS INTEGER)", b"day(time)", b"COALESCE(user, 'x')", b"a IN (SELECT b FROM read_csv('x'))",
        b"UPPER(user) LIKE 'A%'", b"SUBSTRING(user, 1, 2)", b"EXTRACT(year FROM time)", b"hour(\"time\")",
        b"ROW_NUMBER() OVER (PARTITION BY user ORDER BY n)", b"REPLACE(user, 'a', 'bb')", b"LPAD(zip, 8, '0')",
        b"STRFTIME(CAST(time AS TIMESTAMP), '%Y')", b"CAST(n AS DECIMAL(10, 2))", b"GREATEST(n, lat)", b"POW(n, 2)",
        b"REGEXP_LIKE(user, '^a.*(b|c)+$')", b"DATE '2020-01-01' + INTERVAL '1 day'", b"n BETWEEN 1 AND 3",
        b"-n::float",
        b"NULLIF(user, 'x')", b"CONCAT_WS('-', user, zip)", b"STRPOS(user, 'a')", b"weekday(time)", b"month(day)",
    )  # fmt: skip

    def case(self, rng: random.Random) -> Case:
        """An expression."""
        data = rng.choice(self.texts)
        if rng.random() < 0.4:
            data = data.replace(rng.choice((b"user", b"n", b"zip", b"time", b"1", b"2")), rng.choice(self.texts), 1)
        return {"expression": mutated(rng, data, self.texts)}

    def read(self, folder: Path) -> None:
        """Evaluate it over a small table."""
        import polars as pl

        from jointensor.data.expressions import ModeExpression

        text = (folder / "expression").read_bytes().decode("utf-8", "replace")
        if not text.strip():
            return
        columns = {
            "user": ["ann", "bob", None], "zip": ["01", "22222", "3"], "n": ["1", "2", "3"], "lat": ["1.5", "2", "3e1"],
            "time": ["2020-01-01 10:00:00", "2020-01-02 00:00:00", "2021-05-05 23:59:59"], "day": [18000, 18001, 18002],
        }  # fmt: skip
        frame = pl.DataFrame(columns)
        expression = ModeExpression("mode", text)
        expression.columns(frame.columns)
        expression.evaluate(frame)


class Archives(Reader):
    """Packed files of publishers."""

    name = "archives"
    modules = ("data/catalogue/archives.py", "data/catalogue/build.py")
    ratings = b"userId,movieId,rating,timestamp\n" + b"".join(b"1,%d,4.5,%d\n" % (n, 86400 * n) for n in range(25))
    posts = b"% comment\n1 2 1 1200000000\n3 2 1 1200086400\n3 1 1 1200086401\n"

    def case(self, rng: random.Random) -> Case:
        """A zip, tar or gz, its members or its bytes changed."""
        odd = ("../evil", "/tmp/evil", "a/../../evil", "C:\\evil", "..\\evil", "ml/ratings.csv", "", "x" * 300)
        kind = rng.choice(("zip", "tar", "gz"))
        text = self.ratings if kind == "zip" else self.posts
        data = mutated(rng, text) if rng.random() < 0.5 else text
        if kind == "zip":
            members = [("ml/ratings.csv", data)]
            if rng.random() < 0.3:
                members.append((rng.choice(odd), b"x"))
            packed = pack(members, deflated=rng.random() < 0.5)
            if rng.random() < 0.02:
                packed = zip_of_raw("ratings.csv", bomb(3 << 27), 3 << 27)
        elif kind == "tar":
            packed = self._tar(rng, data, odd)
        else:
            packed = gzip.compress(data, 1, mtime=0)
        if rng.random() < 0.4:
            packed = mutated(rng, packed, (), text=False)
        return {{"zip": "ml.zip", "tar": "wall.tar.gz", "gz": "wall.txt.gz"}[kind]: packed}

    def _tar(self, rng: random.Random, data: bytes, odd: tuple[str, ...]) -> bytes:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode=rng.choice(("w", "w:gz", "w:bz2", "w:xz"))) as tar:
            for name in ("x/out.facebook-wosn-wall", *rng.sample(odd, rng.choice((0, 0, 1)))):
                info = tarfile.TarInfo(name or ".")
                info.size = len(data)
                if rng.random() < 0.2:
                    info.type = rng.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"S"))
                    info.linkname = rng.choice(("/etc/passwd", "../../x", "x/out.facebook-wosn-wall", ""))
                tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
        return file.getvalue()

    def read(self, folder: Path) -> None:
        """Build a tensor from it."""
        from jointensor.data.catalogue.build import build
        from jointensor.data.catalogue.recipes import load

        path = next(iter(folder.iterdir()))
        recipe, format_ = {
            "ml.zip": (load("movielens-25m"), "movielens"),
            "wall.tar.gz": (load("facebook-wall"), "konect"),
            "wall.txt.gz": (load("facebook-wall"), "mpi-wall"),
        }[path.name]
        build(recipe, format_, path)


def ask(predictor: Any) -> None:
    """Questions that whatever was loaded must answer."""
    from jointensor.errors import JointensorError

    shape = getattr(predictor, "shape", (7, 6, 9))
    tables = getattr(predictor, "tables", ())
    if any(mode >= len(shape) for table in tables for mode in table.modes):
        return  # tables by themselves, of a tensor with more modes
    indices = np.array([[0] * len(shape), [size - 1 for size in shape], [-1] * len(shape), [3] * len(shape)])
    predictor.predict(indices)
    if hasattr(predictor, "unseen"):
        predictor.unseen(indices)
    if getattr(predictor, "calibration", None) is not None:
        with contextlib.suppress(JointensorError):
            predictor.interval(indices, 0.9)


def changed_json(rng: random.Random, data: Any) -> Any:
    """The same with one value replaced, left out or added somewhere."""
    data = json.loads(json.dumps(data))
    places = list(_places(data))
    for _ in range(rng.choice((1, 1, 2))):
        holder, key = rng.choice(places)
        odd = (
            None, True, 0, -1, 1, 2**31, 2**63, 10**30, 1.5, float("nan"), float("inf"), "", "x", "julia", "../x", [],
            {},
            [1, 2], {"kind": "mean"}, {"a": None}, "\0", "é" * 50, [[[[]]]], "cp:99999999", "mlp,layers=100000",
            "julia,hidden=999999999", "((((", 3, [7, 6, 9], [10**9, 10**9, 10**9], [-1, 5, 5], "tucker:3x3x3",
            "day(x)", "a IN (SELECT b FROM read_csv('/etc/passwd'))",
        )  # fmt: skip
        if isinstance(holder, dict) and rng.random() < 0.15:
            holder.pop(key, None)
        elif isinstance(holder, list) and rng.random() < 0.15:
            holder.append(rng.choice(odd))
        elif isinstance(holder, dict) or key < len(holder):
            holder[key] = rng.choice(odd) if rng.random() < 0.8 else rng.choice(HUGE)
    return data


def _places(data: Any) -> Any:
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield data, key
            yield from _places(value)


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _join(head: bytes, body: bytes) -> bytes:
    return struct.pack("<Q", len(head)) + head + body


def _change_entry(rng: random.Random, head: dict[str, Any], name: str, size: int) -> None:
    entry = head[name]
    match rng.randrange(6):
        case 0:
            entry["data_offsets"] = [rng.choice((0, 1, size, size + 8, 2**63, 2**64 - 1, -1)) for _ in range(2)]
        case 1:
            other = rng.choice([one for one in head if one != "__metadata__"])
            entry["data_offsets"] = head[other]["data_offsets"]
        case 2:
            entry["shape"] = [rng.choice(HUGE) for _ in range(rng.randrange(4))]
        case 3:
            entry["dtype"] = rng.choice(
                ("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "X9", "", "C64")
            )
        case 4:
            head[rng.choice(("model.", "member.0.0.nodes", "x" * 500, "0.keys", "../x", "fallback.9.keys"))] = head.pop(
                name
            )
        case 5:
            count = 1
            for length in entry["shape"]:
                count *= length
            entry["shape"] = rng.choice(([count], [1, count], [count, 1], [*entry["shape"], 1], []))


def weight_files() -> list[bytes]:
    """Everything that predicts, small, as files."""
    from jointensor.predictors.biases import fit_bias
    from jointensor.predictors.dependencies import dependency_table
    from jointensor.predictors.ensemble import Ensemble, Member
    from jointensor.predictors.interpolation import Interpolation
    from jointensor.predictors.storage import save_predictor
    from jointensor.predictors.tables import fit_tables
    from jointensor.predictors.trees import fit_trees
    from tests.predictors.test_ensemble import NONE, TENSOR, calibration_of, knn_of, local_of, predictor_of

    bias, trees = fit_bias(TENSOR, NONE), fit_trees(TENSOR, TENSOR, rounds=3)
    plain = predictor_of(spec="mean+bias+cp:2")
    every = predictor_of(calibration=calibration_of())
    tucker = predictor_of(spec="tucker:2x3x2", rank=(0, 2))
    members = (
        Member("joint", 0.5, (plain,)),
        Member("trees", 0.25, (trees,)),
        Member("t", 0.25, (fit_tables(TENSOR, NONE),)),
    )
    dependency = dependency_table(TENSOR, (0, 1))
    ensemble = Ensemble(members, (local_of(), knn_of()), bias, -2.0, 2.0, calibration_of(), dependency)
    along = Interpolation.of(TENSOR, 2, bias)
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for thing in (trees, bias, local_of(), knn_of(), along, plain, every, tucker, ensemble):
            save_predictor(thing, Path(folder) / "w.safetensors")
            made.append((Path(folder) / "w.safetensors").read_bytes())
    return made


READERS: dict[str, type[Reader]] = {
    one.name: one for one in (Tns, Csv, Npz, Weights, RunFolder, Sql, Archives, Parquet, Arrow, JsonLines, Streamed)
}
"""By name."""
COUNTS = {
    "tns": 200_000,
    "csv": 200_000,
    "npz": 200_000,
    "safetensors": 200_000,
    "run": 20_000,
    "sql": 50_000,
    "archives": 50_000,
    "parquet": 200_000,
    "arrow": 200_000,
    "jsonl": 200_000,
    "stream": 20_000,
}
"""Inputs of a full run."""
