"""Terminal output: notes and progress on stderr, results on stdout. All text from data passes :func:`visible`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from jointensor.cli.terminal import LINE_EVERY, json_text, visible
from jointensor.evaluation.components import Components
from jointensor.report.pages import figure_rows
from jointensor.reproduce.study import Outcome
from jointensor.runs.compare import OnFit
from jointensor.runs.compare_table import TITLES, shown_fields
from jointensor.runs.config import Listener
from jointensor.runs.select import Selection
from jointensor.training.history import Epoch

WIDE = 140
"""Columns that a comparison takes in full; also the width where there is no terminal."""


class Screen:
    """Notes and progress to stderr, results to stdout; ``quiet`` leaves neither."""

    def __init__(self, *, quiet: bool = False, json: bool = False) -> None:
        self.quiet, self.json = quiet, json
        self.side = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self.main = Console(quiet=quiet, highlight=False)
        if not self.main.is_terminal:
            self.main.width = WIDE  # a file or a pipe has no edge

    def note(self, text: str) -> None:
        """A line beside the results."""
        self.side.print(visible(text), markup=False)

    def result(self, text: str) -> None:
        """A line of results."""
        self.main.print(visible(text), markup=False, soft_wrap=True)

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        """A listener that shows a bar on a terminal and plain lines elsewhere."""
        if self.quiet or not self.side.is_terminal:
            self.last_line = time.monotonic()
            yield Listener(self.note, None if self.quiet else self._epoch_line)
            return
        columns = (
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(), TextColumn("left at most"), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=self.side, transient=True) as progress:
            task = progress.add_task("reading", total=None, figures="")

            def on_epoch(row: Epoch) -> None:  # the end is the most epochs the recipe allows
                title = f"epoch {row.epoch} {row.phase}"
                figures = _epoch_figures(row)
                progress.update(task, total=row.most, completed=row.epoch, description=title, figures=figures)

            yield Listener(self.note, on_epoch)

    def _epoch_line(self, row: Epoch) -> None:
        """Progress as a plain line, every few seconds."""
        if time.monotonic() - self.last_line >= LINE_EVERY:
            self.last_line = time.monotonic()
            self.note(f"epoch {row.epoch}  {row.phase}  {_epoch_figures(row)}")

    @contextmanager
    def counting(self, what: str) -> Iterator[tuple[Listener, OnFit]]:
        """A listener, and something to call after each of many fits."""
        if self.quiet or not self.side.is_terminal:
            yield Listener(self.note), self._fit_line
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.side, transient=True) as progress:
            task = progress.add_task(what, total=None)

            def on_fit(record: dict[str, Any], done: int, total: int) -> None:
                progress.update(task, completed=done, total=total, description=f"{what}: {_text(record['model'])}")

            yield Listener(self.note), on_fit

    def _fit_line(self, one: dict[str, Any], done: int, total: int) -> None:
        figure = one["error"] if "error" in one else f"RMSE {_number(one['test']['rmse'])}, {one['seconds']:.1f} s"
        self.note(f"{done} of {total}  {one['model']}  split {one['split_seed']} seed {one['seed']}  {figure}")

    def comparison(self, rows: list[dict[str, Any]], path: Path) -> None:
        """The table of a comparison, the best model in bold."""
        if self._as_json(rows):
            return
        table = Table(_whole(TITLES[0]), *map(_right, TITLES[1:]), box=SIMPLE, padding=0)
        for row in rows:
            fields = shown_fields(row, short=self.main.width < WIDE)
            table.add_row(*map(_text, fields), style="bold" if row["best"] else None)
        self.main.print(table)
        dead = [f"{row['model']} ({row['nonlinear_dead']} of {row['fits']})" for row in rows if row["nonlinear_dead"]]
        if dead:
            self.note(f"the network ended as a constant in {', '.join(dead)}: only the multilinear part predicts there")
        self.result(f"mean ± standard deviation over fits; figures of every fit: {path}")

    def metrics(self, metrics: dict[str, Any], path: Path) -> None:
        """Figures of a finished run."""
        if self._as_json(metrics):
            return
        table = _figure_table(figure_rows(metrics))
        if table is not None:
            self.main.print(table)
        if metrics["forecast"] is not None:
            self.forecasts(metrics["forecast"])
        searched = metrics["search"] is not None
        if searched:
            self.trials(metrics["search"])
        judged = metrics["test"] or metrics["valid"]
        if judged and judged["cold"]["n"]:
            self.result(
                f"{judged['warm']['n']:,} entries with labels seen in training: "
                f"RMSE {_number(judged['warm']['rmse'])}; "
                f"{judged['cold']['n']:,} with a label that was not: RMSE {_number(judged['cold']['rmse'])}"
            )
        what = f"{metrics['fits']} fits" if searched else f"{metrics['epochs']} epochs"
        again = "" if searched else f", {metrics['restarts']} restarts"
        self.result(f"{metrics['outcome']} after {what}, {metrics['seconds']:.0f} s{again}; run folder: {path}")
        if metrics["nonlinear_dead"]:
            self.note("the nonlinear part ended as a constant: the multilinear part alone carries this fit")

    def selection(self, found: Selection, out: Path) -> None:
        """The grid of a selection and what was chosen."""
        rows = found.rows()
        known = {"chosen": list(found.chosen), "best": list(found.best), "identified_rank": found.identified}
        if self._as_json(known | {"grid": rows}):
            return
        table = Table(*(_right(title) for title in ("R", "F", "RMSE", "parameters", "seconds", "as good as the best")))
        for row in rows:
            table.add_row(
                str(row["R"]), str(row["F"]), _number(row["rmse"]), f"{row['parameters']:,}", f"{row['seconds']:.1f}",
                "yes" if row["within"] else "",
                style="bold" if (row["R"], row["F"]) == found.chosen else None,
            )  # fmt: skip
        self.main.print(table)
        if found.identified is not None:
            self.result(f"multilinear components, where the gains of one more break off: {found.identified}")
        self.result(
            f"chosen: {found.chosen[0]}/{found.chosen[1]}, the fewest components within one standard error of the best "
            f"({found.best[0]}/{found.best[1]}); F is only ever large enough, it cannot be identified; see {out}"
        )

    def outcome(self, outcome: Outcome) -> None:
        """The table of an experiment, and whether the paper's claims hold."""
        claims = [asdict(one) for one in outcome.findings]
        if self._as_json({"title": outcome.title, "rows": [list(row) for row in outcome.rows], "claims": claims}):
            return
        table = Table(*map(_whole, outcome.header), title=outcome.title, box=SIMPLE)
        for row in outcome.rows:
            table.add_row(*map(_text, row))
        self.main.print(table)
        for one in outcome.findings:
            self.result(f"{one.answer}: {one.claim} ({one.because})")

    def trials(self, auto: dict[str, Any]) -> None:
        """What a search or the default fit tried, and why it chose."""
        folds = any(row["folds"] > 1 for row in auto["trials"])  # the default fit has validation entries instead
        titles = ("RMSE", *(("± folds", "folds") if folds else ()), "seconds", "weight")
        table = Table("tried, on entries that were left out", *map(_right, titles))
        for row in sorted(auto["trials"], key=lambda one: one["rmse"] if one["rmse"] is not None else float("inf")):
            spread = (_number(row["spread"]), str(row["folds"])) if folds else ()
            table.add_row(
                _text(row["name"]), _number(row["rmse"]), *spread, f"{row['seconds']:.1f}",
                f"{row['weight']:.0%}" if row["weight"] else "", style="bold" if row["weight"] else None,
            )  # fmt: skip
        self.main.print(table)
        self.result(auto["reason"])

    def figures(self, figures: dict[str, Any]) -> None:
        """Figures on a set of entries."""
        if self._as_json(figures):
            return
        table = Table("entries", *(_right(t) for t in ("n", "RMSE", "MAE", "RFE")))
        for name, part in (
            ("all", figures),
            ("labels seen in training", figures["warm"]),
            ("a label unseen", figures["cold"]),
        ):
            table.add_row(name, f"{part['n']:,}", *(_number(part[key]) for key in ("rmse", "mae", "rfe")))
        self.main.print(table)

    def forecasts(self, figures: dict[str, Any]) -> None:
        """Figures of forecasts from rolling origins, the simple ones beside them."""
        if self._as_json(figures):
            return
        table = Table(f"{figures['test']['n']:,} values", *(_right(t) for t in ("RMSE", "MAE", "RFE")))
        for name, one in (("forecast", figures["test"]), *figures["members"].items()):
            style = "bold" if name == "forecast" else None
            table.add_row(_text(name), *(_number(one[key]) for key in ("rmse", "mae", "rfe")), style=style)
        self.main.print(table)
        told = figures["interval"]
        self.result(
            f"{figures['origins']} origins, horizon {figures['horizon']} along {figures['by']}; "
            f"intervals of {told['level']:.0%} hold {told['inside']:.1%}"
        )

    def components(self, components: Components, top: int) -> None:
        """Top labels of every mode per component."""
        if self._as_json(components.to_dict(top)):
            return
        table = Table("component", _right("weight"), *(_text(mode.name) for mode in components.modes), show_lines=True)
        for r, weight in enumerate(components.weights):
            cells = [
                "\n".join(f"{_text(label)}  {v:+.3f}" for label, v in components.top(r, n, top))
                for n in range(len(components.modes))
            ]
            table.add_row(str(r + 1), _number(float(weight)), *cells)
        self.main.print(table)

    def demo(self, rows: list[dict[str, Any]], out: Path) -> None:
        """The demo's table, what it wrote, and what to try next."""
        table = _figure_table(rows)
        if table is not None:
            self.main.print(table)
        for line in (
            f"filled-in table: {out / 'filled.csv'}",
            f"pictures:        {out / 'regions.png'}, {out / 'components.png'}",
            f"run folder:      {out / 'run'} (open {out / 'run' / 'report.html'})",
            "",
            "Try next, with a table of your own:",
            "  jointensor fit TABLE.csv --modes place,what,day --value number --out runs/first",
            "  jointensor predict runs/first QUERIES.csv --out answers.csv",
            f"or look closer at this one:  jointensor components {out / 'run'}",
        ):
            self.result(line)

    def _as_json(self, data: Any) -> bool:
        if self.json and not self.quiet:
            sys.stdout.write(json_text(data, sys.stdout.encoding) + "\n")
        return self.json


def _epoch_figures(row: Epoch) -> str:
    valid = "" if row.valid_loss is None else f", validation {row.valid_loss:.4g}"
    attempt = f" (start {row.attempt + 1})" if row.attempt else ""
    return f"training {row.train_loss:.4g}{valid}{attempt}"


def _figure_table(rows: list[dict[str, Any]]) -> Table | None:
    if not rows:
        return None
    table = Table(
        f"on {rows[0]['n']:,} {rows[0]['on']} entries",
        *(_right(t) for t in ("RMSE", "MAE", "RFE", "skill over the mean")),
    )
    for row in rows:
        skill = "–" if row["skill"] is None else f"{100 * row['skill']:+.1f} %"
        style = "bold" if row["best"] else None
        table.add_row(_text(row["model"]), *(_number(row[key]) for key in ("rmse", "mae", "rfe")), skill, style=style)
    return table


def _text(text: str) -> str:
    """Text from the data for a table: without control characters and markup."""
    return escape(visible(text))


def _right(title: str) -> Column:
    return Column(title, justify="right", no_wrap=True)


def _whole(title: str) -> Column:
    return Column(title, no_wrap=True)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
