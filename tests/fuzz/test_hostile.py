"""What hostile files must not reach: other files, the environment, memory without end, Python."""

import gzip
import hashlib
import io
import json
import os
import re
import struct
import tarfile
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from jointensor.data.catalogue.archives import open_member
from jointensor.data.expressions import MAX_LENGTH, ModeExpression, growth, parse_sql
from jointensor.data.formats import read_table, read_tensor
from jointensor.data.formats.npz import read as read_npz
from jointensor.data.frames import TableSpec
from jointensor.data.modes import Mode
from jointensor.data.queries import read_entries
from jointensor.errors import DataError, RunError
from jointensor.predictors.storage import load_predictor
from jointensor.runs.folder import load_run, read_config
from tests.fuzz.npy import bomb, header, npy_bomb, pack, plain_array, zip_of_raw
from tests.fuzz.readers import RunFolder

SOURCE = Path(__file__).parents[2] / "src" / "jointensor"
FRAME = pl.DataFrame({"a": ["x", "y"], "n": ["1", "2"]})


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret.csv"
    path.write_text("TOPSECRET,b\n1,2\n", encoding="utf-8")
    return path


QUERIES = (
    "a IN (SELECT nosuch FROM read_csv('{}'))",
    "a IN (FROM read_csv('{}'))",
    "a IN ( from read_csv('{}'))",
    "a IN (/* ' */ FROM read_csv('{}'))",
    "a IN (-- '\n FROM read_csv('{}'))",
    "a IN (/* /* */ */ TABLE read_csv('{}'))",
    "(SELECT nosuch FROM read_csv('{}'))",
    "(ſELECT nosuch FROM read_csv('{}'))",
    "EXISTS (WITH q AS (SELECT nosuch FROM read_csv('{}')) SELECT 1)",
    "EXISTS (FROM read_csv('{}'))",
    "a = ANY (SELECT nosuch FROM read_csv('{}'))",
    "'' || (SELECT nosuch FROM read_csv('{}')) || ''",
    "CASE WHEN a IN (SELECT nosuch FROM scan_csv('{}')) THEN 1 END",
    "SELECT a FROM '{}'",
    "a FROM read_csv('{}')",
    "read_csv('{}')",
    "a; COPY x TO '{}'",
    "a; SELECT * FROM read_csv('{}')",
)


@pytest.mark.parametrize("text", QUERIES)
def test_expressions_cannot_read_files(text, secret):
    expression = ModeExpression("m", text.format(secret))
    with pytest.raises(DataError) as caught:
        expression.evaluate(FRAME)
    assert "TOPSECRET" not in str(caught.value)
    assert "TOPSECRET" not in str(expression.columns(FRAME.columns))


@pytest.mark.parametrize("text", QUERIES[:13])
def test_expressions_with_queries_never_reach_polars(text, secret, monkeypatch):
    def never(*_):
        raise AssertionError("polars was asked")

    monkeypatch.setattr(pl, "sql_expr", never)
    with pytest.raises(DataError, match=r"holds a query|without comments"):
        parse_sql(text.format(secret), FRAME.columns)


@pytest.mark.parametrize(
    "text",
    [
        "getenv('HOME')", "current_setting('x')", "$HOME", "CURRENT_USER", "a IN (SELECT b FROM other)", "other.a",
        "a, n", "*", "a; DROP TABLE a", "a AS b, n", "CREATE TABLE x", "pg_read_file('/etc/passwd')",
        "__import__('os')",
    ],
)  # fmt: skip
def test_expressions_know_only_the_columns(text, monkeypatch):
    other = pl.DataFrame({"b": ["TOPSECRET"]})  # polars finds frames of its caller by name where it is let
    monkeypatch.setenv("HOME", "TOPSECRET")
    with pytest.raises(DataError) as caught:
        ModeExpression("m", text).evaluate(FRAME)
    assert other["b"][0] not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["LPAD(a, 10000000000)", "RPAD(a, n * 9999999)", "LPAD(a, (9999999))", "LPAD(CONCAT(a, n), 9999)"]
)
def test_expressions_cannot_take_any_amount_of_memory(text):
    with pytest.raises(DataError, match="below 1,000"):
        ModeExpression("m", text).evaluate(FRAME)
    assert ModeExpression("m", "LPAD(a, 3, '0')").evaluate(FRAME)[0].to_list() == ["00x", "00y"]


def test_replacing_again_and_again_is_refused():
    def nested(times):
        text = "a"
        for _ in range(times):
            text = f"REPLACE({text}, 'x', 'xxxxxxxxxx')"
        return ModeExpression("m", text)

    assert len(nested(3).evaluate(FRAME)[0][0]) == growth(nested(3).text) == 1000
    with pytest.raises(DataError, match=r"may make a text 100,000,000 times longer; at most 1,000"):
        nested(8).evaluate(FRAME)


def test_four_replaces_cannot_make_gigabytes_of_one_letter():
    text = "a"
    for _ in range(4):
        text = f"REPLACE({text}, 'x', '{'x' * 215}')"
    with pytest.raises(DataError, match="times longer"):
        ModeExpression("m", text).evaluate(FRAME)


@pytest.mark.parametrize(
    "text",
    [
        "REPLACE(a, 'x', b)", "REPLACE(a, b, a)", "REPLACE(a, 'x', 'y' || a)", "\"REPLACE\"(a, 'x', 'y')",
        "REPLACE/**/(a, 'x', 'y')",
        "/* ' */ REPLACE/**/(a, 'x', a) /* ' */", "`REPLACE`(a, 'x', a)",
        "STRING_AGG(a, ',') || a", "ARRAY_TO_STRING(ARRAY_AGG(a), ',') || a",
        "ARRAY_TO_STRING(STRING_TO_ARRAY(a, ''), 'long')", "listagg(a, ',')",
    ],
)  # fmt: skip
def test_texts_whose_length_cannot_be_foreseen_are_refused(text):
    with pytest.raises(DataError, match=r"third argument of REPLACE|without comments|unsupported function"):
        ModeExpression("m", text).evaluate(FRAME)


@pytest.mark.parametrize(
    "text",
    [
        '"AVG"(n)', '"avg" (n)', "`AVG`(n)", "AVG/**/(n)", "AVG\u00a0(n)", "n[AVG(n)]", "COUNT(*) + n",
        "SUM(n) OVER ()", "E'\\' || AVG(n) || '", "a || '\\' || AVG(n) || '", "$t$ ' $t$ || AVG(n) || '",
        "q'[a]' || AVG(n)",
    ],
)  # fmt: skip
def test_functions_of_several_rows_never_reach_polars(text, monkeypatch):
    def never(*_):
        raise AssertionError("polars was asked")

    monkeypatch.setattr(pl, "sql_expr", never)
    with pytest.raises(DataError, match=r"unsupported function|without comments|holds a query"):
        parse_sql(text, FRAME.columns)


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("REPLACE(REPLACE(REPLACE(a, '$', ''), ',', ''), ' ', '')", 1),
        ("REPLACE(a, 'ab', 'abcde')", 3),
        ("REPLACE(a, '', 'xy')", 3),
        ("REPLACE(a, 'it''s', '(),')", 1),
        ("REGEXP_REPLACE(a, 'ab', 'xy') || REPLACE(b, 'x', 'yy')", 6),
        ("a || 'replaced'", 1),
        ("UPPER(a)", 1),
    ],
)
def test_growth_is_what_replaces_can_do_at_most(text, times):
    assert growth(text) == times
    columns = {"a": ["ab" * 20, "$1, 2", ""], "b": ["x" * 30, "y", "it's"]}
    given = sum(len(one.encode()) + len(text) for column in columns.values() for one in column)
    labels = ModeExpression("m", text).evaluate(pl.DataFrame(columns))[0]
    assert sum(len(one.encode()) for one in labels) <= times * given


def test_labels_far_larger_than_the_table_are_refused(monkeypatch):
    monkeypatch.setattr("jointensor.data.expressions.MAX_OUTPUT", 10_000)
    frame = pl.DataFrame({"a": ["x" * 20] * 50})
    wide = ModeExpression("m", "||".join(["a"] * 60))
    with pytest.raises(DataError, match=r"may produce up to [\d,]+ bytes of labels from [\d,]+ bytes of columns"):
        wide.evaluate(frame)
    assert len(ModeExpression("m", "||".join(["a"] * 9)).evaluate(frame)[0][0]) == 180
    with pytest.raises(DataError, match="may produce"):
        ModeExpression("m", "LPAD(a, 999) || '-'").evaluate(frame)


@pytest.mark.parametrize("level", ["CAST(", "')' || CAST(", "'' /* ) */ || CAST(", "`)` || CAST(", "['x', "])
def test_brackets_that_take_for_ever_to_parse_are_refused(level):
    with pytest.raises(DataError, match=r"at most 8 nested brackets|without comments"):
        parse_sql("n % 7 + " + level * 40, FRAME.columns)
    assert ModeExpression("m", "UPPER(" * 8 + "a" + ")" * 8).evaluate(FRAME)[0].to_list() == ["X", "Y"]


def test_an_expression_that_doubles_itself_is_refused():
    with pytest.raises(DataError, match="BETWEEN at most 4 times"):
        ModeExpression("m", "n" + " BETWEEN 1 AND 3" * 40).evaluate(FRAME)


def test_expressions_that_are_too_long_are_refused():
    with pytest.raises(DataError, match="at most 1,000"):
        ModeExpression("m", "||".join(["a"] * 1000)).evaluate(FRAME)  # ended the process
    longest = ModeExpression("m", "||".join(["a"] * (MAX_LENGTH // 3)))
    assert longest.evaluate(FRAME)[0][0] == "x" * (MAX_LENGTH // 3)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("CASE WHEN a = 'x' THEN 'from' ELSE 'with a table' END", ["from", "with a table"]),
        ("EXTRACT(year FROM CAST('2020-05-05' AS TIMESTAMP)) || a", None),
        ("SUBSTRING(a FROM 1)", None),
        ("n BETWEEN 1 AND 1", ["true", "false"]),
        ("a IN ('x', 'z')", ["true", "false"]),
        ("REPLACE(REPLACE(a, 'x', ''), 'y', 'z')", ["", "z"]),
        ("LPAD(a, 2, '-')", ["-x", "-y"]),
    ],
)
def test_plain_expressions_are_not_taken_for_queries(text, labels):
    parsed = parse_sql(text, FRAME.columns) if labels is None else None  # polars may not have it, but is asked
    assert labels is None or ModeExpression("m", text).evaluate(FRAME)[0].to_list() == labels
    assert labels is not None or isinstance(parsed, pl.Expr)


def test_a_column_may_be_called_like_a_query(tmp_path):
    frame = pl.DataFrame({"select": ["x"], "a (from b)": ["y"]})
    for name in frame.columns:
        assert ModeExpression(name, name).evaluate(frame)[0].to_list() == frame[name].to_list()


# Files that become large


@pytest.fixture
def small(monkeypatch):
    """Bombs of 32 MiB are enough."""
    monkeypatch.setattr("jointensor.data.formats.base.MAX_UNPACKED", 1 << 20)


def gzip_bomb(size=1 << 25):
    """Zeros that say nothing of their length."""
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + bomb(size) + struct.pack("<II", 0, size & 0xFFFFFFFF)


@pytest.mark.parametrize("name", ["t.tns.gz", "t.csv.gz", "t.csv", "mode-1-x.map.gz"])
def test_gzip_bombs_are_refused(name, tmp_path, small):
    (tmp_path / name).write_bytes(gzip_bomb())
    path = tmp_path / name
    if name.startswith("mode"):
        path = tmp_path / "t.tns"
        path.write_text("1 1 1 1\n", encoding="utf-8")
    spec = None if "tns" in path.name else TableSpec.of(["a", "b"], "v")
    if spec is not None:  # a beginning that is a table
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        row = b"1,2,3\n" * 100_000
        path.write_bytes(
            packer.compress(b"a,b,v\n") + b"".join(packer.compress(row) for _ in range(60)) + packer.flush()
        )
    with pytest.raises(DataError, match="over 200 times its size"):
        read_tensor(path, spec)


@pytest.mark.parametrize("inner", [gzip.compress(b"a,b,v\n1,2,3\n", mtime=0), zlib.compress(b"a,b,v\n1,2,3\n", 0)])
def test_what_is_packed_twice_is_not_unpacked_twice(inner, tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(inner))
    with pytest.raises(DataError, match="is packed"):
        read_table(path)


def test_archives_that_unpack_to_too_much_are_refused(tmp_path, small):
    path = tmp_path / "t.npz"
    path.write_bytes(zip_of_raw("indices.npy", npy_bomb(1 << 25), 1 << 25))
    with pytest.raises(DataError, match="over 200 times its size"):
        read_npz(path)
    path = tmp_path / "ml.zip"
    path.write_bytes(zip_of_raw("ratings.csv", bomb(1 << 25), 1 << 25))
    with pytest.raises(DataError, match="over 200 times its size"), open_member(path, "ratings.csv"):
        pass
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip_bomb())
    with pytest.raises(DataError, match="over 200 times its size"), open_member(path, "x"):
        pass


@pytest.mark.parametrize("shape", ["(2**40, 3)", "(1099511627776, 3)", "(-1, 3)", "(9223372036854775807, 2)", "(4,)"])
def test_shapes_without_data_are_refused(shape, tmp_path):
    path = tmp_path / "t.npz"
    path.write_bytes(pack([("indices.npy", header("'<i8'", "False", shape) + bytes(48))]))
    with pytest.raises(DataError, match="cannot be read as a NumPy archive"):
        read_npz(path)


def test_nothing_is_unpickled(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'pwned'}",)

    path = tmp_path / "t.npz"
    path.write_bytes(pack([("indices.npy", plain_array(np.array([[Evil()]], dtype=object)))]))
    with pytest.raises(DataError, match="nothing is unpickled"):
        read_npz(path)
    assert not (tmp_path / "pwned").exists()


def test_two_arrays_of_one_name_are_refused(tmp_path):
    path = tmp_path / "t.npz"
    array = plain_array(np.array([[0, 1]]))
    with pytest.warns(UserWarning, match="Duplicate name"):
        path.write_bytes(pack([("indices.npy", array), ("indices.npy", array)]))
    with pytest.raises(DataError, match="two arrays 'indices'"):
        read_npz(path)


def test_labels_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "t.npz"
    codes = np.array([0x61, 0xD800], dtype=np.uint32).view("<U1")
    arrays = {"indices": np.array([[0, 1]]), "values": np.array([1.0]), "labels_1": codes}
    path.write_bytes(pack([(f"{name}.npy", plain_array(one)) for name, one in arrays.items()]))
    with pytest.raises(DataError, match="not Unicode"):
        read_npz(path)


@pytest.mark.parametrize("depth", [5_000, 100_000])
def test_json_lines_without_end_are_refused(depth, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"a":' + b"[" * depth + b"]" * depth + b"}\n")
    with pytest.raises(DataError, match="line 1 is not JSON"):
        read_table(path)


# Archives and paths


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", "C:\\evil", "..\\evil"])
def test_archives_with_names_that_lead_out_are_refused(name, tmp_path):
    path = tmp_path / "ml.zip"
    path.write_bytes(pack([("ratings.csv", b"x"), (name, b"y")]))
    with pytest.raises(DataError, match="outside of the archive"), open_member(path, "ratings.csv"):
        pass
    tar = tmp_path / "w.tar.gz"
    with tarfile.open(tar, "w:gz") as archive:
        for one in ("ratings.csv", name):
            archive.addfile(tarfile.TarInfo(one), io.BytesIO())
    with pytest.raises(DataError, match="outside of the archive"), open_member(tar, "ratings.csv"):
        pass


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_in_archives_are_not_followed(kind, tmp_path, secret):
    tar = tmp_path / "w.tar"
    with tarfile.open(tar, "w") as archive:
        archive.addfile(tarfile.TarInfo("other"), io.BytesIO())
        info = tarfile.TarInfo("posts")
        info.type, info.linkname = kind, "other"
        archive.addfile(info)
    with pytest.raises(DataError, match="is not a regular file"), open_member(tar, "posts"):
        pass


def test_a_tar_with_a_member_that_never_ends_is_refused(tmp_path):
    tar = tmp_path / "w.tar"
    info = tarfile.TarInfo("posts")
    info.size = 1 << 40
    tar.write_bytes(info.tobuf() + bytes(2048))
    with pytest.raises(DataError, match="over 200 times its size"), open_member(tar, "posts"):
        pass


@cache
def good_run():
    """Files of a run that loads."""
    run = RunFolder().runs[0]
    return {name: data if isinstance(data, bytes) else json.dumps(data).encode() for name, data in run.items()}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name, data in good_run().items():
        (folder / name).write_bytes(data)
    load_run(folder)
    return folder


@pytest.mark.parametrize(
    "name", ["../secret.csv", "secret.csv", "..", ".", "", "/etc/passwd", "config.json", "x" * 300, "a\0b"]
)
def test_runs_name_no_other_files(run, secret, name, monkeypatch):
    checksum = hashlib.sha256(secret.read_bytes()).hexdigest()
    (run / "metrics.json").write_text(json.dumps({"files": {name: checksum}}), encoding="utf-8")
    monkeypatch.setattr("jointensor.runs.folder.sha256", lambda path: pytest.fail(f"{path} was read"))
    with pytest.raises(RunError, match="other files than"):
        load_run(run)


@pytest.mark.parametrize("name", ["metrics.json", "config.json", "labels.json", "model.safetensors"])
def test_a_pipe_in_a_run_is_not_waited_for(run, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(RunError, match=r"not a plain file|damaged"):
        load_run(run)


def test_json_without_end_is_refused(run):
    (run / "config.json").write_text("[" * 100_000, encoding="utf-8")
    for look in (load_run, read_config):
        with pytest.raises(RunError, match="damaged"):
            look(run)


def test_labels_and_weights_of_other_modes_are_refused(run):
    labels = json.loads((run / "labels.json").read_text(encoding="utf-8"))
    labels["modes"].pop()
    (run / "labels.json").write_text(json.dumps(labels), encoding="utf-8")
    with pytest.raises(RunError, match="not a model for the 2 modes"):
        load_run(run)


def with_config(data, change):
    """A file of weights with another configuration."""
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8 : 8 + size])
    ((key, text),) = head["__metadata__"].items()
    config = json.loads(text)
    change(config)
    head["__metadata__"][key] = json.dumps(config)
    made = json.dumps(head).encode()
    return struct.pack("<Q", len(made)) + made + data[8 + size :]


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [10**10, 6, 9]}, {"rank": [0, 10**6]}, {"linear": "mean+bias+cp:99999999"},
        {"nonlinear": "julia,hidden=999999999"}, {"nonlinear": "mlp,layers=1000000"}, {"shape": [10**30, 6, 9]},
        {"nonlinear": "mlp,layers=1000000000000000"},
    ],
)  # fmt: skip
def test_models_larger_than_their_file_are_not_built(run, change):
    path = run / "model.safetensors"
    path.write_bytes(with_config(path.read_bytes(), lambda config: config.update(change)))
    with pytest.raises(RunError, match=r"larger model than its weights|inconsistent|cannot be"):
        load_predictor(path)


def test_trees_that_lead_back_or_out_are_refused(tmp_path):
    from dataclasses import replace

    from jointensor.kernels.numba_trees import MAX_LEAVES
    from jointensor.predictors.storage import save_predictor
    from jointensor.predictors.trees import fit_trees
    from tests.predictors.test_ensemble import TENSOR

    trees = fit_trees(TENSOR, TENSOR, rounds=3)
    inner = int(np.flatnonzero(trees.nodes[:, 0] >= 0)[0])
    twice = int(trees.nodes[inner, 2])
    for column, value in ((2, 0), (3, 10**6), (2, -5), (0, 10**6), (3, twice)):
        nodes = trees.nodes.copy()
        nodes[inner, column] = value
        save_predictor(replace(trees, nodes=nodes), tmp_path / "t")
        with pytest.raises(RunError, match="nodes of trees"):
            load_predictor(tmp_path / "t")
    many = np.array(
        [row for k in range(MAX_LEAVES) for row in ((0, k, 1, 2), (-1, 0, 0, 0))] + [(-1, 0, 0, 0)], np.int32
    )
    many[::2, 2:] += np.arange(len(many))[::2, None]  # every right child is split again
    deep = replace(trees, nodes=many, values=np.zeros(len(many)), roots=np.zeros(1, dtype=np.int64))
    save_predictor(deep, tmp_path / "t")
    with pytest.raises(RunError, match="leaves of trees"):
        load_predictor(tmp_path / "t")
    save_predictor(trees, tmp_path / "t")
    assert load_predictor(tmp_path / "t").nodes.tolist() == trees.nodes.tolist()


def test_test_entries_are_read_by_the_same_reader(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(zlib.compress(b"a,b,v\n1,2,3\n", 0)))
    with pytest.raises(DataError, match="is packed"):
        read_entries(path, (Mode("a", 3), Mode("b", 3)), TableSpec.of(["a", "b"], "v"))


def test_no_file_of_the_package_executes_or_unpickles():
    words = re.compile(
        r"(?<![\w.])(eval|exec)\(|\bimport pickle\b|pickle\.load|torch\.load\(|allow_pickle=True|yaml\.load"
    )
    found = [
        f"{path.name}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if words.search(line)
    ]
    assert found == []
