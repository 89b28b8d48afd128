"""`predict` in parts: the same answers as from the whole table, memory that does not grow, nothing half-written."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor import JointModel, SparseTensor
from jointensor.data.formats import write_table, writing
from jointensor.data.frames import TableSpec
from jointensor.data.modes import Mode
from jointensor.data.queries import read_queries
from jointensor.errors import DataError, RunError
from jointensor.predictors.biases import fit_bias
from jointensor.predictors.conformal import HeldOut, calibrate
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.serving import BATCH, HIDDEN_BATCH, Serving
from jointensor.runs import predict as predicting
from jointensor.runs.folder import Run
from jointensor.runs.predict import predict_file

TABLES = ("csv", "tsv", "parquet", "arrow", "jsonl")


def make_run(modes, spec, rank=(2, 3), seed=0):
    """A run whose model is random; the last label of every mode was never seen."""
    torch.manual_seed(seed)
    shape = [mode.size for mode in modes]
    rng = np.random.default_rng(seed)
    model = JointModel(shape, rank).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.5, 0.5)
    cells = np.stack([rng.integers(0, size - 1, 400) for size in shape], axis=1)
    cells = np.unique(np.concatenate([cells, *(_every_label(shape, n) for n in range(len(shape)))]), axis=0)
    seen = SparseTensor(cells, rng.random(len(cells)), modes)
    scale = calibrate(
        HeldOut(cells, rng.random(len(cells)), rng.standard_normal(len(cells)), np.zeros(len(cells), bool)),
        tuple(shape),
    )
    predictor = JointPredictor(model, fit_bias(seen, seen.take(np.arange(0))), calibration=scale)
    return Run(Path(), predictor, modes, spec, {}, {})


def _every_label(shape, n):
    cells = np.zeros((shape[n] - 1, len(shape)), dtype=np.int64)
    cells[:, n] = np.arange(shape[n] - 1)
    return cells


MODES = (
    Mode("user", 12, tuple(f"{n:03d}" for n in range(12))),
    Mode("movie", 6, tuple("ABCDEF")),
    Mode("day", 5, tuple(f"2021-01-0{d}" for d in range(1, 6)), "ordered"),
)
RUN = make_run(MODES, TableSpec.of(["user", "movie", "day"], "value"))


def some_queries(count, seed=0):
    rng = np.random.default_rng(seed)
    names = [[*mode.labels, "nobody"] for mode in MODES]
    columns = {mode.name: rng.choice(own, count).tolist() for mode, own in zip(MODES, names, strict=True)}
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String)).with_columns(
        note=pl.Series([f"n{k}" for k in range(count)], dtype=pl.String)
    )


def read(path):
    kind = path.suffix
    if kind == ".parquet":
        return pl.read_parquet(path)
    if kind == ".arrow":
        return pl.read_ipc(path)
    if kind == ".jsonl":
        return pl.read_ndjson(path.read_bytes(), infer_schema_length=None)
    return pl.read_csv(path, separator="\t" if kind == ".tsv" else ",", infer_schema=False)


def check(run, queries, answers):
    """The written answers against those of the table read whole."""
    asked = read_queries(queries, run.modes, run.spec, values=False)
    found = read(answers)
    expected = run.predictor.predict(asked.indices)
    np.testing.assert_allclose(found["prediction"].cast(pl.Float64).to_numpy(), expected, rtol=1e-5, atol=1e-6)
    assert (found["unseen"].cast(pl.String) == "true").to_list() == run.predictor.unseen(asked.indices).tolist()
    assert found.drop("prediction", "unseen").cast(pl.String).rows() == asked.frame.cast(pl.String).rows()


@pytest.fixture
def never_whole(monkeypatch):
    """Reading a table whole is an error."""

    def refuse(*_args, **_options):
        raise AssertionError("the table was read whole")

    monkeypatch.setattr(predicting, "read_queries", refuse)


@pytest.mark.parametrize("out", TABLES)
@pytest.mark.parametrize("kind", TABLES)
def test_tables_come_back_as_if_they_had_been_read_whole(kind, out, tmp_path, monkeypatch, never_whole):
    monkeypatch.setattr(predicting, "CHUNK", 7)
    queries, answers = tmp_path / f"q.{kind}", tmp_path / f"a.{out}"
    write_table(some_queries(100), queries)
    count, unseen = predict_file(RUN, queries, answers)
    check(RUN, queries, answers)
    assert (count, unseen) == (100, (read(answers)["unseen"].cast(pl.String) == "true").sum())
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([queries.name, answers.name])


@pytest.mark.parametrize("kind", TABLES)
def test_answers_of_a_usual_chunk_are_the_same_to_the_last_bit(kind, tmp_path, never_whole):
    queries = some_queries(3 * BATCH + 5)
    write_table(queries, tmp_path / f"q.{kind}")
    predict_file(RUN, tmp_path / f"q.{kind}", tmp_path / "a.parquet", 0.8)
    answers = pl.read_parquet(tmp_path / "a.parquet")
    indices = read_queries(tmp_path / f"q.{kind}", MODES, RUN.spec, values=False).indices
    assert answers["prediction"].to_numpy().tobytes() == RUN.predictor.predict(indices).tobytes()
    ends = RUN.predictor.interval(indices, 0.8)
    assert answers.select("lower", "upper").to_numpy().tolist() == ends.tolist()
    assert answers.columns[-4:] == ["prediction", "unseen", "lower", "upper"]


def fused_of(model):
    return [getattr(one, "fused", None) for one in model.modules()]


@pytest.mark.parametrize("rank", [(4, 16), (3, 0), (0, 5)])
@pytest.mark.parametrize("count", [0, 1, 3, HIDDEN_BATCH + 3, BATCH, BATCH + 1, 2 * BATCH + 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_small_batches_on_several_threads_round_like_large_ones(rank, count, threads):
    run = make_run(MODES, None, rank)
    indices = np.random.default_rng(count).integers(-1, [13, 7, 6], (count, 3))
    before, given = torch.get_num_threads(), fused_of(run.predictor.model)
    expected = run.predictor.predict(indices)
    try:
        torch.set_num_threads(threads)
        served = Serving(run.predictor)
        assert served.predict(indices).tobytes() == expected.tobytes()
        assert torch.get_num_threads() == threads
        assert fused_of(run.predictor.model) == given
    finally:
        torch.set_num_threads(before)
    assert served.unseen(indices).tolist() == run.predictor.unseen(indices).tolist()


def outcome(queries, answers):
    """How many queries there are, or why they cannot be read: of the whole table, and in parts."""
    told = []
    for count in (
        lambda: len(read_queries(queries, MODES, RUN.spec, values=False).indices),
        lambda: predict_file(RUN, queries, answers)[0],
    ):
        try:
            told.append(count())
        except DataError as error:
            told.append(str(error))
    if isinstance(told[0], int):
        check(RUN, queries, answers)
    return told


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["000", "007", "7", "x y", ""]), st.sampled_from(["A", "F", 'a"b', "c,d"])),
        max_size=12,
    ),
    st.integers(1, 5),
    st.sampled_from(TABLES),
    st.integers(0, 3),
)
def test_any_small_table_in_any_parts(rows, chunk, kind, blank):
    """Text with quotes, separators and nothing at all; blank lines at the end do not count."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(predicting, "CHUNK", chunk)
        queries, answers = Path(folder) / f"q.{kind}", Path(folder) / "a.parquet"
        schema = {"user": pl.String, "movie": pl.String, "day": pl.String}
        write_table(pl.DataFrame([(*row, "2021-01-02") for row in rows], schema=schema, orient="row"), queries)
        if kind in ("csv", "tsv"):
            queries.write_bytes(queries.read_bytes() + b"\n" * blank)
        expected, found = outcome(queries, answers)
        assert found == expected


SQL_MODES = (Mode("part", 5, ("0", "1", "1.5", "2", "01")), Mode("hour", 3, ("0", "7", "9")))
STAMPS = ["4/1/2014 0:11:00", "4/1/2014 7:17:00", "4/2/2014 9:21:00"]


def sql_run(part, types=None):
    """A run whose training table decided how dates are written, and which columns hold numbers."""
    spec = TableSpec.of(["place=" + part, "hour=hour(when)"], "count")
    resolved = [{**mode, "format": "%m/%d/%Y %H:%M:%S%.f", "types": types} for mode in spec.to_dict()["modes"]]
    first = TableSpec.from_dict({**spec.to_dict(), "modes": resolved})
    return make_run((Mode("place", 5, SQL_MODES[0].labels), SQL_MODES[1]), first)


@pytest.mark.parametrize(
    ("values", "part", "kind"),
    [
        (["3", "2.9", "4.1", "0.2"], "ROUND(x / 2, 1)", "Float64"),
        (["3", "2", "4", "2.5", "0.2", "1"], "x || ''", "Float64"),  # whole numbers first, others later
        (["1", "2", "2.5", "abc"], "x || ''", "Int64"),
        (["011", "15", "012", "15", "15", "2"], "LEFT(x, 2)", "String"),  # codes stay text in every part
        (["15", "15", "15", "011"], "x || ''", "String"),
        (["1", "2", "3", "4"], "CASE WHEN (x = 1) THEN 'AVG(x)' ELSE x END", "Int64"),
    ],
)
def test_expressions_decide_as_the_training_table_did(values, part, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(predicting, "CHUNK", 2)
    run = sql_run(part, {"x": kind})
    queries = tmp_path / "q.csv"
    pl.DataFrame({"x": values, "when": (STAMPS * 3)[: len(values)]}).write_csv(queries)
    predict_file(run, queries, tmp_path / "a.csv")
    check(run, queries, tmp_path / "a.csv")


def test_text_where_the_training_table_had_numbers_is_an_unseen_label(tmp_path):
    run = sql_run("x || ''", {"x": "Int64"})
    pl.DataFrame({"x": ["1", "abc", "1.5"], "when": STAMPS}).write_csv(tmp_path / "q.csv")
    assert predict_file(run, tmp_path / "q.csv", tmp_path / "a.csv") == (3, 2)


def test_dates_that_change_within_the_queries_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(predicting, "CHUNK", 2)
    when = ["4/1/2014 0:11:00", "5/1/2014 7:11:00", "30/1/2014 9:11:00"]  # day first, by the last
    pl.DataFrame({"x": ["1", "2", "1"], "when": when}).write_csv(tmp_path / "q.csv")
    with pytest.raises(DataError, match=r"dates are not written as in the rows before \(%m/%d/%Y"):
        predict_file(sql_run("x"), tmp_path / "q.csv", tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x,when\n" + "1,4/1/2014 0:11:00\n" * 5 + "1,soon\n", "row 6: 'soon'"),
        ("x,when\n" + "1,4/1/2014 0:11:00\n" * 5 + "1,2,3\n", "line 7 has 3 fields"),
        ("x,when\n" + "1,4/1/2014 0:11:00\n" * 5 + "1", "cut off"),
        ("x,then\n1,4/1/2014 0:11:00\n", "the queries need a column 'hour'"),
        ("x,when,unseen\n1,4/1/2014 0:11:00,1\n", "already have a column 'unseen'"),
        ("", "is empty"),
    ],
)
def test_errors_are_those_of_the_whole_table_and_leave_nothing(text, words, tmp_path, monkeypatch):
    monkeypatch.setattr(predicting, "CHUNK", 2)
    queries = tmp_path / "q.csv"
    queries.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=words):
        predict_file(sql_run("x"), queries, tmp_path / "a.csv")
    assert list(tmp_path.iterdir()) == [queries]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, DataError("half way"), MemoryError])
@pytest.mark.parametrize("out", TABLES)
def test_a_failure_in_the_middle_leaves_what_was_there(failure, out, tmp_path, monkeypatch):
    monkeypatch.setattr(predicting, "CHUNK", 10)
    answer, calls = Serving.answer, []

    def failing(self, indices):
        calls.append(len(indices))
        if len(calls) == 6:
            raise failure
        return answer(self, indices)

    monkeypatch.setattr(Serving, "answer", failing)
    write_table(some_queries(200), tmp_path / "q.parquet")
    target = tmp_path / f"a.{out}"
    target.write_text("before", encoding="utf-8")
    with pytest.raises(failure if isinstance(failure, type) else DataError) as _caught:  # which keeps its frames
        predict_file(RUN, tmp_path / "q.parquet", target)
    assert target.read_text(encoding="utf-8") == "before"
    assert len(list(tmp_path.iterdir())) == 2
    assert not [one for one in threading.enumerate() if one.name.startswith("ahead")]


def test_a_writer_that_stops_is_an_error_not_a_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(predicting, "CHUNK", 10)

    def full(ready, *_):
        ready.get()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "_sink", full)
    write_table(some_queries(200), tmp_path / "q.parquet")
    with pytest.raises(RunError, match="No space left"):
        predict_file(RUN, tmp_path / "q.parquet", tmp_path / "a.parquet")
    assert len(list(tmp_path.iterdir())) == 1


def test_modes_without_labels_take_numbers_however_they_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(predicting, "CHUNK", 3)
    run = make_run((Mode("a", 2000), Mode("b", 4)), None)
    texts = ["0", "3", "1e3", "1000.0", "1999", "2000", "-1", "0007", "x", " 5", "99999999999999999999"]
    pl.DataFrame({"a": texts, "b": ["1"] * len(texts)}).write_csv(tmp_path / "q.csv")
    predict_file(run, tmp_path / "q.csv", tmp_path / "a.csv")
    expected = run.predictor.predict(np.stack([Mode("a", 2000).encode(texts), np.ones(len(texts), int)], axis=1))
    found = pl.read_csv(tmp_path / "a.csv")["prediction"].to_numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


PEAK = """
import sys
from pathlib import Path
from jointensor.runs.predict import predict_file
from tests.predictors.test_serving import MODES, make_run
from jointensor.data.frames import TableSpec
run = make_run(MODES, TableSpec.of(["user", "movie", "day"], "value"), (2, 0))
predict_file(run, Path(sys.argv[1]), Path(sys.argv[2]))
print([line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")][0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        # below that, what polars reads ahead is still growing
        pytest.param("parquet", (3_000_000, 6_000_000), marks=pytest.mark.slow),
        pytest.param("csv", (12_000_000, 24_000_000), marks=pytest.mark.slow),  # polars reads some 300 MiB ahead
    ],
)
def test_memory_does_not_grow_with_the_number_of_queries(kind, counts, tmp_path):
    peaks = []
    for count in counts:
        picked = np.random.default_rng(0).integers(0, 1000, count)
        write_table(some_queries(1000)[picked], tmp_path / f"q.{kind}")
        command = [sys.executable, "-c", PEAK, str(tmp_path / f"q.{kind}"), str(tmp_path / "a.parquet")]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout) / 1024)
        assert pl.scan_parquet(tmp_path / "a.parquet").select(pl.len()).collect().item() == count
    # indices and labels alone of 3 million queries take 3e6 * (24 + 64) bytes, 252 MiB
    assert peaks[1] - peaks[0] < 120, peaks
