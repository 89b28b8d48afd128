"""Options that more than one command takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[Path, typer.Argument(help="Run folder that `fit` wrote.", metavar="RUN")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]
SafeCsv = Annotated[
    bool, typer.Option("--safe-csv", help="Put ' before text that a spreadsheet would run as a formula (= + - @).")
]

# how a source becomes a tensor
Modes = Annotated[str | None, typer.Option(help="Columns that are the modes: user,movie,day.")]
Mode = Annotated[list[str] | None, typer.Option(help="One mode as NAME=EXPR: a column, day(col), or SQL. Repeatable.")]
Value = Annotated[str | None, typer.Option(help="Column with the values, or 'count' to count rows.")]
Duplicates = Annotated[str, typer.Option(help="Rows that share a cell: error, sum, mean, count or last.")]
Order = Annotated[str | None, typer.Option(help="Order of modes: day=ordered,hour=cyclic,user=none.")]
Separator = Annotated[str | None, typer.Option(help="Field separator of a text table.")]
NoHeader = Annotated[bool, typer.Option("--no-header", help="The table has no header line.")]
Columns = Annotated[str | None, typer.Option(help="Names of the columns: a,b,c.")]

# what is trained on, and how
SplitRule = Annotated[
    str, typer.Option(help="standard, first:N, time:MODE[,horizon=H,origins=K], slices:MODE, group:MODES or like-gaps.")
]
Folds = Annotated[
    str,
    typer.Option(
        help="Validation entries and folds: like-gaps (as cells are missing), random, group:MODES, slices:MODE or "
        "time:MODE (its last labels)."
    ),
]
Test = Annotated[float, typer.Option(help="Share of entries used for testing; 0 for none.")]
Valid = Annotated[float, typer.Option(help="Share of the rest used for validation.")]
RecipeName = Annotated[str, typer.Option(help="default (exact and regularised) or paper.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="A recipe field as FIELD=VALUE. Repeatable.")]
LossName = Annotated[str | None, typer.Option(help="squared, absolute, huber or kl.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")]
NoRestart = Annotated[bool, typer.Option("--no-restart", help="Do not restart a fit that failed.")]
