"""Tables from records: what is lost first, then all methods by task, with paired differences and their intervals."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from jointensor.bench.intervals import half_width
from jointensor.bench.records import Record, origin


@dataclass(frozen=True)
class Row:
    """One method on one task, over its splits."""

    task: str
    method: str
    records: tuple[Record, ...]
    reference: tuple[Record, ...]
    """Of the method that it is compared with."""

    def mean(self, key: str) -> float | None:
        """Mean of a figure of the test entries."""
        found = [one["test"][key] for one in self.records if one["test"][key] is not None]
        return fmean(found) if found else None

    @property
    def spread(self) -> float | None:
        """Standard deviation of the RMSE over splits."""
        found = [one["test"]["rmse"] for one in self.records]
        return stdev(found) if len(found) > 1 else None

    @property
    def seconds(self) -> float:
        """Mean over splits."""
        return fmean(one["seconds"] for one in self.records)

    @property
    def differences(self) -> list[float]:
        """RMSE minus that of the reference on the same split, as a share of it; below 0: it is ahead."""
        own = {one["split"]: one["test"]["rmse"] for one in self.records}
        other = {one["split"]: one["test"]["rmse"] for one in self.reference}
        return [own[split] / other[split] - 1 for split in sorted(own.keys() & other.keys()) if other[split]]

    @property
    def difference(self) -> tuple[float, float] | None:
        """Mean of the differences, and half the width of their interval (infinite for one split)."""
        found = self.differences
        if not found or self.method == _method_of(self.reference):
            return None
        return fmean(found), half_width(found)

    def fields(self) -> dict[str, Any]:
        """For a CSV file."""
        first, difference = self.records[0], self.difference
        return {
            "task": self.task,
            "method": self.method,
            "ensemble": first["ensemble"],
            "splits": len(self.records),
            "rmse": self.mean("rmse"),
            "rmse_sd": self.spread,
            "mae": self.mean("mae"),
            "rse": self.mean("rfe"),
            "reference": _method_of(self.reference),
            "difference": None if difference is None else difference[0],
            "half_width": None if difference is None or math.isinf(difference[1]) else difference[1],
            "seconds": self.seconds,
            "budget": first["budget"],
            "cores": first["cores"],
            "settings_chosen": first["chosen"],
        }


def rows_of(records: Iterable[Record], reference: str) -> list[Row]:
    """A row for every task and method that has a result, by task, the lowest mean RMSE first."""
    found: dict[tuple[str, str], list[Record]] = {}
    for one in sorted(records, key=lambda one: one["split"]):
        if "error" not in one and one["test"]["rmse"] is not None:
            found.setdefault((one["task"], one["method"]), []).append(one)
    rows = [
        Row(task, method, tuple(mine), tuple(found.get((task, reference), ())))
        for (task, method), mine in found.items()
    ]
    return sorted(rows, key=lambda row: (row.task, row.mean("rmse") or 0.0, row.method))


def as_csv(rows: Sequence[Row]) -> str:
    """A line per task and method."""
    text = io.StringIO()
    lines = [row.fields() for row in rows]
    if lines:
        writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return text.getvalue()


def as_markdown(records: Sequence[Record], reference: str) -> str:
    """What the reference loses, a table for every task, what failed, and where the records come from."""
    rows = rows_of(records, reference)
    tasks = list(dict.fromkeys(row.task for row in rows))
    parts = [_lost(rows, reference)]
    parts += [_table([row for row in rows if row.task == task], task, reference) for task in tasks]
    parts += [_failed(records), origin([one for one in records if "error" not in one])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _lost(rows: Sequence[Row], reference: str) -> str:
    """Where the reference is behind, of all methods and of what was published."""
    lines = []
    for row in rows:
        if row.difference is not None and row.difference[0] < 0:
            ahead = sum(one < 0 for one in row.differences)
            lines.append(
                f"- **{row.task}**: {row.method} {_number(row.mean('rmse'))}, {_percent(row)} against `{reference}`, "
                f"lower on {ahead} of {len(row.differences)}"
            )
        if row.method == reference:
            lines += [
                f"- **{row.task}**: {one['method']} {one['rmse']:g} ({one['source']}; settings {one['chosen']}) "
                f"against {_number(row.mean('rmse'))}"
                for one in row.records[0]["published"]
                if one["rmse"] <= (row.mean("rmse") or 0.0)
            ]
    head = f"Where `{reference}` is behind:"
    return "\n".join([head, "", *lines]) if lines else f"`{reference}` is nowhere behind."


def _table(rows: Sequence[Row], task: str, reference: str) -> str:
    first = rows[0].records[0]
    kinds = dict.fromkeys(f"{row.records[0]['budget']:g} s on {row.records[0]['cores']} cores" for row in rows)
    lines = [
        f"### {task}",
        "",
        f"{first['division']}; {first['test']['n']:,} entries asked for; methods were given {', '.join(kinds)}.",
        "",
        f"| method | RMSE | MAE | RSE | against `{reference}` | splits | seconds | settings chosen |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        spread = "" if row.spread is None else f" ± {row.spread:.2g}"
        name = row.method + (" (ensemble)" if row.records[0]["ensemble"] else "")
        lines.append(
            f"| {name} | {_number(row.mean('rmse'))}{spread} | {_number(row.mean('mae'))} | {_number(row.mean('rfe'))} "
            f"| {_percent(row)} | {len(row.records)} | {row.seconds:.0f} | {row.records[0]['chosen']} |"
        )
    lines += [
        f"| {one['method']}, published | {one['rmse']:g} | | | | | | {one['chosen']} |" for one in first["published"]
    ]
    return "\n".join(lines)


def _failed(records: Sequence[Record]) -> str:
    failed: dict[str, list[str]] = {}
    for one in records:
        if "error" in one:
            failed.setdefault(f"{one['method']} on {one['task']}: {one['error']}", []).append(str(one["split"]))
    lines = [f"- {reason} (split {', '.join(splits)})" for reason, splits in failed.items()]
    return "\n".join(["Without a result:", "", *lines]) if lines else ""


def _method_of(records: Sequence[Record]) -> str | None:
    return records[0]["method"] if records else None


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _percent(row: Row) -> str:
    if row.difference is None:
        return "–"
    mean, half = row.difference
    return f"{mean:+.1%}" + ("" if math.isinf(half) else f" ± {half:.1%}")
