"""The commands: their options, and the functions that they call."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jointensor._version import __version__
from jointensor.atomic import write_text
from jointensor.cli import arguments as a
from jointensor.cli.catalogue import data
from jointensor.cli.terminal import degrade_output, visible
from jointensor.errors import ConfigError, JointensorError, RunError

if TYPE_CHECKING:
    from jointensor.distributed.process_group import ProcessGroup

app = typer.Typer(
    help="Fill in the missing entries of large, sparse, N-way tensors: multilinear plus nonlinear, trained jointly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data, name="data")


def main() -> None:
    """Run the command line; errors that a user can cause become one line and an exit code."""
    degrade_output()
    try:
        app()
    except ConfigError as error:
        _stop(error, 2)
    except (JointensorError, OSError) as error:
        _stop(error, 1)
    except KeyboardInterrupt:
        _stop("interrupted", 1)


def _stop(error: object, code: int) -> None:
    sys.stderr.write(f"error: {visible(' '.join(str(error).split()))}\n")
    sys.exit(code)


def _version(*, asked: bool) -> None:
    if asked:
        typer.echo(f"jointensor {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=lambda v: _version(asked=v))
    ] = False,
) -> None:
    if context.invoked_subcommand != "fit" and os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ:
        raise ConfigError(f"several processes can fit together, not {context.invoked_subcommand}; start it by itself")


@contextmanager
def _joined(device: str) -> Iterator[ProcessGroup]:
    """The processes of this job: errors are printed once, and all of them exit with the same code."""
    from jointensor.distributed.launch import join_processes

    processes = join_processes(device)
    try:
        yield processes
    except Exception as error:
        if processes.should_report(error):
            raise
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    processes.leave()


@app.command()
def fit(
    source: Annotated[Path | None, typer.Argument(help="Table, .npz or .tns with the observed entries.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to make.", metavar="RUN")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Finish a run that was interrupted, from its last checkpoint.", metavar="RUN")
    ] = None,
    modes: a.Modes = None,
    mode: a.Mode = None,
    value: a.Value = None,
    duplicates: a.Duplicates = "error",
    order: a.Order = None,
    rank: Annotated[
        str | None,
        typer.Option(
            help="R/F: one model of R multilinear and F nonlinear components; auto: an ensemble by cross-validation. "
            "Not given: a few models, mixed by the validation entries."
        ),
    ] = None,
    linear: Annotated[
        str | None, typer.Option(help="Multilinear blocks, such as mean+bias+cp:4; replaces R and the recipe's blocks.")
    ] = None,
    nonlinear: Annotated[str, typer.Option(help="Nonlinear part: NAME[,key=value].")] = "julia",
    recipe: a.RecipeName = "default",
    set_: a.Set = None,
    loss: a.LossName = None,
    split: a.SplitRule = "standard",
    split_seed: Annotated[int, typer.Option(help="Seed of the split.", min=0)] = 0,
    folds: a.Folds = "like-gaps",
    for_: Annotated[
        Path | None,
        typer.Option(
            "--for",
            help="Cells that will be asked for: validation entries and folds look like them.",
            metavar="QUERIES",
        ),
    ] = None,
    test: a.Test = 0.2,
    test_file: Annotated[Path | None, typer.Option(help="Test entries of your own.")] = None,
    valid: a.Valid = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the model; never moves the split.", min=0)] = 0,
    refit: Annotated[bool, typer.Option("--refit", help="Refit on all entries and keep that model.")] = False,
    engine: Annotated[str, typer.Option(help="auto, reference, numba (CPU) or triton (NVIDIA GPU).")] = "auto",
    device: a.Device = "auto",
    budget: Annotated[
        float | None, typer.Option(help="Seconds for the whole run; 600 for --rank auto if not given.", min=0)
    ] = None,
    budget_fits: Annotated[
        int | None,
        typer.Option(help="For --rank auto: a number of fits instead of seconds; repeatable.", min=1, metavar="N"),
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(help="Seconds from one checkpoint to the next.", min=0, metavar="SECONDS")
    ] = 300.0,
    memory: Annotated[
        str | None, typer.Option(help="Memory limit, such as 4GB; entries that do not fit stay on disk.")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="With --memory: keep entries on disk even if they fit.")
    ] = False,
    no_restart: a.NoRestart = False,
    separator: a.Separator = None,
    no_header: a.NoHeader = False,
    columns: a.Columns = None,
    quiet: a.Quiet = False,
    json: a.Json = False,
) -> None:
    """Fit a model to observed entries and write a run folder."""
    from jointensor.cli.options import fit_config
    from jointensor.cli.screen import Screen
    from jointensor.runs.interrupt import stop_on_interrupt
    from jointensor.runs.pipeline import resume as resume_run
    from jointensor.runs.pipeline import run

    if resume is not None and (source is not None or out is not None):
        raise ConfigError("--resume takes a run folder and nothing else: jointensor fit --resume RUN")
    with _joined(device) as processes:
        screen = Screen(quiet=quiet or not processes.first, json=json)
        with screen.listening() as listener, stop_on_interrupt(listener.on_note) as stopping:
            heard = replace(listener, stopping=stopping)
            if resume is not None:
                result = resume_run(resume, heard, processes)
            elif source is None or out is None:
                raise ConfigError("fit needs a source and a run folder: jointensor fit SOURCE --out RUN")
            else:
                config = fit_config(
                    source, modes=modes, mode=mode, value=value, duplicates=duplicates, order=order, rank=rank,
                    linear=linear, nonlinear=nonlinear, recipe=recipe, changes=set_, loss=loss, split=split,
                    split_seed=split_seed, folds=folds, queries=for_, test=test, test_file=test_file, valid=valid,
                    seed=seed, refit=refit, engine=engine, device=device, budget=budget, budget_fits=budget_fits,
                    memory=memory, stream=stream, no_restart=no_restart, separator=separator, no_header=no_header,
                    columns=columns, checkpoint_every=checkpoint_every,
                )  # fmt: skip
                result = run(config, out, heard, processes)
        if result is not None:
            screen.metrics(result.to_dict(), resume or out or Path())


@app.command()
def predict(
    run: a.RunFolder,
    queries: Annotated[Path, typer.Argument(help="Entries to predict, in any readable format.")],
    out: Annotated[Path, typer.Option(help="File to write: the queries with a prediction beside them.")],
    interval: Annotated[
        float | None,
        typer.Option(help="Also write intervals (lower, upper) that hold this share of the values, such as 0.9."),
    ] = None,
    safe_csv: a.SafeCsv = False,
    quiet: a.Quiet = False,
) -> None:
    """Predict entries and write them in their order."""
    from jointensor.cli.screen import Screen
    from jointensor.runs.folder import load_run
    from jointensor.runs.predict import predict_file

    screen = Screen(quiet=quiet)
    count, unseen = predict_file(load_run(run), queries, out, interval, safe_csv=safe_csv, on_note=screen.note)
    if unseen:
        screen.note(
            f"{unseen:,} of {count:,} queries have a label that no training entry had; "
            "they were predicted from the mean and the biases of the known labels (column 'unseen')"
        )
    screen.result(f"{count:,} predictions written to {out}")


@app.command()
def forecast(
    run: a.RunFolder,
    horizon: Annotated[int, typer.Option(help="Labels after the last one.", metavar="LABELS")],
    out: Annotated[Path, typer.Option(help="Table to write; with --origins: the figures, as JSON.")],
    by: Annotated[
        str | None,
        typer.Option(help="Ordered mode, or a calendar and a clock mode: day+hour. Found by names and dates if not "
                     "given.", metavar="MODE"),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(help="Also write intervals (lower, upper) that hold this share of the values, such as 0.9."),
    ] = None,
    origins: Annotated[
        int | None,
        typer.Option(help="Evaluate instead: hide the last LABELS × N labels, and forecast them, LABELS at a time.",
                     min=1, metavar="N"),
    ] = None,
    safe_csv: a.SafeCsv = False,
    quiet: a.Quiet = False,
    json: a.Json = False,
) -> None:  # fmt: skip
    """Forecast every series at the labels that come after the last one of an ordered mode."""
    from jointensor.cli.screen import Screen
    from jointensor.runs.folder import load_run
    from jointensor.runs.forecast import evaluate_forecasts, forecast_file

    screen = Screen(quiet=quiet, json=json)
    if origins is not None:
        screen.forecasts(evaluate_forecasts(load_run(run), horizon, origins, by, out))
        return
    count = forecast_file(load_run(run), out, horizon, by, interval, safe_csv=safe_csv, on_note=screen.note)
    screen.result(f"{count:,} forecasts written to {out}")


@app.command()
def evaluate(
    run: a.RunFolder,
    test: Annotated[Path, typer.Argument(help="Entries with values, in any readable format.")],
    out: Annotated[Path | None, typer.Option(help="File for the figures, as JSON.")] = None,
    quiet: a.Quiet = False,
    json: a.Json = False,
) -> None:
    """Compare predictions with observed entries."""
    from jointensor.atomic import write_json
    from jointensor.cli.screen import Screen
    from jointensor.data.queries import read_entries
    from jointensor.evaluation.evaluate import evaluate_entries
    from jointensor.runs.folder import load_run

    loaded = load_run(run)
    indices, values = read_entries(test, loaded.modes, loaded.spec)
    figures = evaluate_entries(loaded.predictor, indices, values)
    if out is not None:
        write_json(out, figures)
    Screen(quiet=quiet, json=json).figures(figures)


@app.command()
def complete(
    run: a.RunFolder,
    out: Annotated[Path, typer.Option(help="Table to write.")],
    where: Annotated[str | None, typer.Option(help="SQL condition on labels: \"day = '2014-04-01'\".")] = None,
    top: Annotated[
        int | None, typer.Option(help="Only the K missing cells with the largest predictions.", min=1)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every cell of the tensor.")] = False,
    safe_csv: a.SafeCsv = False,
    quiet: a.Quiet = False,
) -> None:
    """Fill in all cells of a part of the tensor, or the missing cells with the largest predictions."""
    from jointensor.cli.screen import Screen
    from jointensor.runs.folder import load_run
    from jointensor.runs.predict import complete_file

    if where is None and top is None and not all_:
        raise ConfigError("complete needs --where CONDITION, --top K or --all, since a tensor has very many cells")
    screen = Screen(quiet=quiet)
    complete_file(load_run(run), out, where=where, top=top, safe_csv=safe_csv, on_note=screen.note)
    screen.result(f"written to {out}")


@app.command()
def impute(
    source: Annotated[Path, typer.Argument(help="Table with a row per time stamp and a column per series.")],
    time: Annotated[str, typer.Option(help="Column of time stamps: dates, times or numbers.", metavar="COLUMN")],
    out: Annotated[Path, typer.Option(help="File to write: the table with its gaps filled in.")],
    interval: Annotated[
        float | None,
        typer.Option(help="Also write intervals (NAME_lower, NAME_upper) that hold this share of the values."),
    ] = None,
    rank: Annotated[
        str | None, typer.Option(help="R/F or auto, as for fit. Not given: a few models, mixed by validation entries.")
    ] = None,
    valid: a.Valid = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of validation entries and of the model.", min=0)] = 0,
    device: a.Device = "auto",
    budget: Annotated[float | None, typer.Option(help="Seconds for the fit.", min=0)] = None,
    quiet: a.Quiet = False,
) -> None:
    """Fill in the gaps of a table of series; everything else stays as it is written."""
    from jointensor.cli.options import impute_config
    from jointensor.cli.screen import Screen
    from jointensor.runs.impute import impute_file
    from jointensor.runs.interrupt import stop_on_interrupt

    config = impute_config(source, rank=rank, valid=valid, seed=seed, device=device, budget=budget)
    screen = Screen(quiet=quiet)
    with screen.listening() as listener, stop_on_interrupt(listener.on_note) as stopping:
        heard = replace(listener, stopping=stopping)
        done = impute_file(source, out, time, config, level=interval, listener=heard)
    screen.result(f"{done.gaps:,} of {done.cells:,} cells filled in, written to {out}")


@app.command()
def components(
    run: a.RunFolder,
    out: Annotated[Path | None, typer.Option(help="Picture to draw; RUN/components.png if not given.")] = None,
    top: Annotated[int, typer.Option(help="Labels per mode.", min=1)] = 5,
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Print only.")] = False,
    quiet: a.Quiet = False,
    json: a.Json = False,
) -> None:
    """Show the multilinear components: top labels of every mode, and a picture."""
    from jointensor.atomic import write_json
    from jointensor.cli.screen import Screen
    from jointensor.evaluation.components import MAX_DRAWN, draw_components, read_components
    from jointensor.runs.folder import load_run

    loaded = load_run(run)
    model = loaded.predictor.model
    found = read_components([] if model is None else model.linear_factors, loaded.modes)
    screen = Screen(quiet=quiet, json=json)
    screen.components(found, top)
    write_json((out or run / "components.png").with_suffix(".json"), found.to_dict(top))
    if not no_picture:
        picture = out or run / "components.png"
        draw_components(found, picture)
        count = len(found.weights)
        screen.note(f"picture: {picture}" + (f" (the {MAX_DRAWN} largest of {count})" if count > MAX_DRAWN else ""))


@app.command()
def compare(
    source: Annotated[Path, typer.Argument(help="Table, .npz or .tns with the observed entries.")],
    models: Annotated[
        list[str],
        typer.Argument(
            help="NAME[:K | :R/F][,key=value]: mean bias tables interp cp:20 tucker:20 costco:20 avocado:20 neurtn:10 "
            "neptune:20 mlp:20 julia:4/16 julia-costco:4/16 …; keys are options of the network or recipe fields.",
            metavar="MODEL…",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to make, or to continue with the same options.", metavar="RUN")],
    seeds: Annotated[int, typer.Option(help="Fits per model and split.", min=1)] = 3,
    split_seeds: Annotated[int, typer.Option(help="Random splits.", min=1)] = 1,
    jobs: Annotated[int, typer.Option(help="Fits at a time; each gets its share of the cores.", min=1)] = 2,
    modes: a.Modes = None,
    mode: a.Mode = None,
    value: a.Value = None,
    duplicates: a.Duplicates = "error",
    order: a.Order = None,
    recipe: a.RecipeName = "paper",
    set_: a.Set = None,
    loss: a.LossName = None,
    split: a.SplitRule = "standard",
    folds: a.Folds = "like-gaps",
    test: a.Test = 0.2,
    valid: a.Valid = 0.1,
    device: a.Device = "auto",
    budget: Annotated[float | None, typer.Option(help="Seconds for one fit, the same for every model.", min=0)] = None,
    no_restart: a.NoRestart = False,
    separator: a.Separator = None,
    no_header: a.NoHeader = False,
    columns: a.Columns = None,
    quiet: a.Quiet = False,
    json: a.Json = False,
) -> None:
    """Fit several models to the same splits, with several seeds, and compare them."""
    from jointensor.cli.options import compare_config
    from jointensor.cli.screen import Screen
    from jointensor.runs.compare import compare as compare_models

    config = compare_config(
        source, models, modes=modes, mode=mode, value=value, duplicates=duplicates, order=order, recipe=recipe,
        changes=set_, loss=loss, split=split, folds=folds, test=test, valid=valid, seeds=seeds, split_seeds=split_seeds,
        device=device, budget=budget, no_restart=no_restart, separator=separator, no_header=no_header, columns=columns,
    )  # fmt: skip
    screen = Screen(quiet=quiet, json=json)
    with screen.counting("fits") as (listener, on_fit):
        rows = compare_models(config, out, jobs=jobs, listener=listener, on_fit=on_fit)
    screen.comparison(rows, out)
    if all(row["rmse"] is None for row in rows):
        raise RunError(f"no model could be fitted; {out / 'cells'} says why")


@app.command()
def select(
    source: Annotated[Path, typer.Argument(help="Table, .npz or .tns with the observed entries.")],
    out: Annotated[Path, typer.Option(help="Folder for grid.csv, grid.png and selection.json.")],
    linear_ranks: Annotated[str, typer.Option("--linear-ranks", help="Values of R: 0,1,2,4,8.")] = "0,1,2,4,8,16",
    nonlinear_ranks: Annotated[str, typer.Option("--nonlinear-ranks", help="Values of F: 0,4,16.")] = "0,4,16",
    folds: a.Folds = "like-gaps",
    n_folds: Annotated[int, typer.Option(help="Folds to hold out in turn, of five.", min=1, max=5)] = 2,
    starts: Annotated[int, typer.Option(help="Random starts per fit.", min=1)] = 2,
    modes: a.Modes = None,
    mode: a.Mode = None,
    value: a.Value = None,
    duplicates: a.Duplicates = "error",
    order: a.Order = None,
    seed: Annotated[int, typer.Option(help="Seed of folds and starts.", min=0)] = 0,
    device: a.Device = "auto",
    separator: a.Separator = None,
    no_header: a.NoHeader = False,
    columns: a.Columns = None,
    quiet: a.Quiet = False,
    json: a.Json = False,
) -> None:
    """Plot the cross-validation error over R/F, and choose the fewest components that are good enough."""
    from jointensor.cli.options import numbers, read_options
    from jointensor.cli.screen import Screen
    from jointensor.runs.dataset import read_source
    from jointensor.runs.select import select as select_rank
    from jointensor.runs.select import selection_folder, write_selection

    grid = [numbers(text, name) for text, name in ((linear_ranks, "linear"), (nonlinear_ranks, "nonlinear"))]
    reading = read_options(
        source, modes=modes, mode=mode, value=value, duplicates=duplicates, order=order, separator=separator,
        no_header=no_header, columns=columns,
    )  # fmt: skip
    screen = Screen(quiet=quiet, json=json)
    with selection_folder(out):
        tensor = read_source(reading["source"], reading["table"], reading["orders"]).tensor
        found = select_rank(
            tensor, *grid, folds=folds, n_folds=n_folds, starts=starts, seed=seed, device=device,
            on_result=lambda one: screen.note(f"{one.rank[0]}/{one.rank[1]}: RMSE {one.rmse:.4g}, {one.seconds:.1f} s"),
            on_note=screen.note,
        )  # fmt: skip
        write_selection(found, out)
    screen.selection(found, out)


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="table1, figure2, figure3, table2, table3, figure4, table4, figure5, claims; or all of them."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the records of fits, and for pages; finished fits are kept.")],
    data: Annotated[Path | None, typer.Option(help="Folder with the tensors.", metavar="FOLDER")] = None,
    pages: Annotated[
        Path | None, typer.Option(help="Folder for pages and pictures, instead of --out.", metavar="FOLDER")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small generated tensors and short fits, as a check that it runs.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="Seeds of every fit.", min=1)] = 5,
    seeds_large: Annotated[int, typer.Option(help="Seeds of fits to more than 500,000 entries.", min=1)] = 3,
    only: Annotated[
        str | None, typer.Option(help="Data sets, by the paper's names: Facebook,NeurIPS.", metavar="NAMES")
    ] = None,
    teacher: Annotated[
        str, typer.Option(help="How figure2 draws its planted networks: scaled, or small and as drawn.")
    ] = "scaled",
    device: a.Device = "auto",
    budget: Annotated[float | None, typer.Option(help="Seconds for one fit.", min=0)] = None,
    jobs: Annotated[int, typer.Option(help="Fits at a time.", min=1)] = 1,
    finished: Annotated[
        bool, typer.Option("--finished", help="Write pages from the records that are there; fit nothing.")
    ] = False,
    quiet: a.Quiet = False,
    json: a.Json = False,
) -> None:
    """Repeat an experiment of the paper: our figures beside its own, and whether its claims hold."""
    from jointensor.cli.screen import Screen
    from jointensor.reproduce.experiments import EVERY, reproduce_all
    from jointensor.reproduce.experiments import reproduce as run_experiment
    from jointensor.reproduce.paper import DATASETS
    from jointensor.reproduce.study import Setting

    screen = Screen(quiet=quiet, json=json)
    chosen = DATASETS if only is None else tuple(one.strip() for one in only.split(","))
    setting = Setting(
        out, data, pages, quick=quick, seeds=seeds, seeds_large=seeds_large, datasets=chosen, teacher=teacher,
        device=device, budget=budget, jobs=jobs, finished=finished,
        on_fit=lambda record, done, total: screen.note(f"{done} of {total}: {record['model']}"),
    )  # fmt: skip
    for outcome, page in reproduce_all(setting) if name == EVERY else [run_experiment(name, setting)]:
        screen.outcome(outcome)
        screen.note(f"page: {page}")


@app.command()
def bench(
    tasks: Annotated[list[Path] | None, typer.Argument(help="Task files (TOML).", metavar="TASK…")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="fit, auto, mean, bias, tables, interp, seasonal, a model such as julia:4/16 or cp:20@paper, "
                     "a Python file, or a registered name; give it again for more. Default: fit and the baselines.",
                     metavar="METHOD"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the records; those that are there are kept.")] = Path("bench"),
    data: Annotated[
        list[Path] | None, typer.Option(help="Folder of the tasks' sources; may be given again.", metavar="FOLDER")
    ] = None,
    splits: Annotated[int, typer.Option(help="Random splits.", min=1)] = 5,
    budget: Annotated[float, typer.Option(help="Seconds that a method may take.", min=1)] = 300.0,
    cores: Annotated[int, typer.Option(help="Threads of a method.", min=1)] = 2,
    reference: Annotated[str, typer.Option(help="Method that the others are compared with.")] = "fit",
    quiet: a.Quiet = False,
) -> None:  # fmt: skip
    """Run methods on tasks, and make a table of their records; without tasks, of the records that are there."""
    from jointensor.bench.builtin import BASELINE_METHODS
    from jointensor.bench.records import Record, records_in
    from jointensor.bench.run import BenchConfig
    from jointensor.bench.run import bench as run_bench
    from jointensor.bench.table import as_csv, as_markdown, rows_of

    def show(record: Record, count: int, total: int) -> None:
        figure = record.get("error") or f"RMSE {record['test']['rmse']:.4g}, {record['seconds']:.0f} s"
        if not quiet:
            line = f"{count} of {total}: {record['method']} on {record['task']}, split {record['split']}: {figure}"
            typer.echo(visible(line), err=True)

    if tasks:
        chosen = tuple(method or ("fit", *BASELINE_METHODS))
        run_bench(BenchConfig(tuple(tasks), chosen, splits, budget, cores, tuple(data or ())), out, show)
    records = records_in(out, "*/*.json", failed=True)
    if not records:
        raise RunError(f"there are no records in {out}; name a task")
    table = as_markdown(records, reference)
    write_text(out / "table.md", table)
    write_text(out / "table.csv", as_csv(rows_of(records, reference)))
    for line in table.splitlines():
        typer.echo(visible(line))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run folder, or the folder of a comparison.")],
    quiet: a.Quiet = False,
    json: a.Json = False,
) -> None:
    """Write report.html again: one self-contained page about a run or a comparison."""
    from jointensor.cli.screen import Screen
    from jointensor.runs.report import report as write_report

    page = write_report(run)
    Screen(quiet=quiet, json=json).note(f"report: {page}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder to make.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the generated data and of the models.", min=0)] = 0,
    quiet: a.Quiet = False,
) -> None:
    """Generate an epidemic with gaps in its reporting, fill it in, and compare."""
    from jointensor.cli.screen import Screen
    from jointensor.runs.demo import run_demo

    screen = Screen(quiet=quiet)
    with screen.listening() as listener:
        rows = run_demo(out, seed=seed, listener=listener)
    screen.demo(rows, out)
