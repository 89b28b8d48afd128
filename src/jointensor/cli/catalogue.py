"""``jointensor data``: the paper's tensors and synthetic ones."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jointensor.cli import arguments as a
from jointensor.cli.terminal import LINE_EVERY, json_text, visible
from jointensor.errors import ConfigError, RunError

if TYPE_CHECKING:
    from jointensor.data.catalogue.download import OnBytes
    from jointensor.data.catalogue.recipes import Recipe

SYNTHETIC = "synthetic"

data = typer.Typer(
    help="The paper's tensors, and synthetic ones: list, info, get.", no_args_is_help=True, rich_markup_mode=None
)

Cache = Annotated[
    Path | None, typer.Option(help="Folder for downloads; $JOINTENSOR_CACHE or ~/.cache/jointensor if not given.")
]


@data.command("list")
def list_(cache: Cache = None, json: a.Json = False) -> None:
    """List the tensors of the paper."""
    from jointensor.data.catalogue.recipes import load, names

    rows = [_facts(load(name), cache) for name in names()]
    if json:
        _print_json(rows)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160  # files and pipes have no width
    table = Table(
        Column("name", no_wrap=True), Column("shape in the paper", no_wrap=True), Column("entries", justify="right"),
        "licence", "downloaded",
    )  # fmt: skip
    for row in rows:
        state = ("yes" if row["downloaded"] else "no") if row["public"] else "not public"
        licence = escape(row["licence"])
        table.add_row(row["name"], _sizes(row["paper"]["shape"]), f"{row['paper']['entries']:,}", licence, state)
    console.print(table)
    _print(f"any size: jointensor data get {SYNTHETIC} --shape 100x80x60 --entries 10000 --out FILE")


@data.command()
def info(
    name: Annotated[str, typer.Argument(help="Name of a tensor, as `data list` shows it.")],
    cache: Cache = None,
    json: a.Json = False,
) -> None:
    """Show the origin of a tensor, its terms of use, and how it is built."""
    from jointensor.data.catalogue.recipes import load

    facts = _facts(load(name), cache)
    if json:
        _print_json(facts)
        return
    paper = facts["paper"]
    lines = {
        "title": facts["title"],
        "paper": f"{_sizes(paper['shape'])}, {paper['entries']:,} entries",
        "modes": f"{', '.join(facts['modes'])}; value: {facts['value']}",
        "built": facts["how"],
        "differs": facts["differs"],
        "instead": facts["substitute"],
        "licence": facts["licence"],
        "cite": facts["citation"],
        "page": facts["page"],
        "cache": f"{facts['cache']} ({'downloaded' if facts['downloaded'] else 'not downloaded'})",
    }
    for what, text in lines.items():
        if text:
            _print(f"{what + ':':<11}{text}")
    for file in facts["files"]:
        known = file["sha256"] or "not published; recorded at the first download"
        where = f"{file['url']}  sha256 {known}" if file["url"] else "not published; give it with --from"
        _print(f"{'file:':<11}{file['name']}  {where}")


@data.command()
def get(
    name: Annotated[str, typer.Argument(help="Name of a tensor, or 'synthetic'.")],
    out: Annotated[Path | None, typer.Option(help="File to write: .npz or a table; NAME.npz if not given.")] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="Folder with the publisher's files, or a file, instead of a download.")
    ] = None,
    cache: Cache = None,
    shape: Annotated[str | None, typer.Option(help="synthetic: sizes of the modes, such as 100x80x60.")] = None,
    entries: Annotated[int | None, typer.Option(help="synthetic: observed entries.", min=1)] = None,
    density: Annotated[
        float | None, typer.Option(help="synthetic: share of observed cells, instead of --entries.")
    ] = None,
    rank: Annotated[str | None, typer.Option(help="synthetic: R/F planted components; 3/0 if not given.")] = None,
    nonlinearity: Annotated[
        str | None, typer.Option(help="synthetic: tanh (if not given), relu, sine, square or step.")
    ] = None,
    ratio: Annotated[
        float | None, typer.Option(help="synthetic: nonlinear part relative to the multilinear one.")
    ] = None,
    noise: Annotated[float | None, typer.Option(help="synthetic: noise relative to the values.")] = None,
    skew: Annotated[float | None, typer.Option(help="synthetic: Zipf exponent of how often labels occur.")] = None,
    seed: Annotated[int | None, typer.Option(help="synthetic: seed of everything.", min=0)] = None,
    quiet: a.Quiet = False,
    json: a.Json = False,
) -> None:
    """Download a tensor, build it from files you have, or generate a synthetic one."""
    from jointensor.atomic import write_whole
    from jointensor.data.formats import write_tensor

    out = Path(f"{name}.npz") if out is None else out
    options = {
        "shape": shape, "entries": entries, "density": density, "rank": rank, "nonlinearity": nonlinearity,
        "ratio": ratio, "noise": noise, "skew": skew, "seed": seed,
    }  # fmt: skip
    given = {key: value for key, value in options.items() if value is not None}
    if name != SYNTHETIC and given:
        raise ConfigError(f"--{next(iter(given))} is for synthetic tensors: jointensor data get {SYNTHETIC} …")
    if name == SYNTHETIC and (from_ is not None or cache is not None):
        raise ConfigError("a synthetic tensor is generated, not downloaded; leave out --from and --cache")
    _check_out(out)
    if name == SYNTHETIC:
        facts = _synthetic(given, out)
    else:
        tensor, facts = _fetched(name, from_, cache, quiet=quiet)
        write_whole(out, lambda draft: write_tensor(tensor, draft))
    if quiet:
        return
    if json:
        _print_json({**facts, "out": str(out)})
    else:
        _print(_summary(facts, out))


def _check_out(out: Path) -> None:
    """Refuse a path that cannot be written, before hours of work."""
    from jointensor.data.formats import format_of

    if format_of(out).name == "tns":
        raise ConfigError(
            f"--out {out}: .tns keeps labels in other files; write .npz, or a table such as .parquet or .csv"
        )
    if out.exists():
        raise RunError(f"{out} exists already; give another --out, or remove it")
    if not out.absolute().parent.is_dir():
        raise RunError(f"there is no folder {out.absolute().parent} to write {out.name} to")


def _fetched(name: str, origin: Path | None, cache: Path | None, *, quiet: bool) -> tuple[Any, dict[str, Any]]:
    from jointensor.data.catalogue.get import Fetcher, cache_folder
    from jointensor.data.catalogue.get import get as get_tensor

    def note(text: str) -> None:
        if not quiet:
            typer.echo(visible(text), err=True)

    listeners = {} if quiet else {"on_note": note, "on_bytes": _progress}
    built = get_tensor(name, origin, Fetcher(cache_folder(cache), **listeners))  # type: ignore[arg-type]
    for text in built.notes:
        note(text)
    return built.tensor, built.to_dict()


def _synthetic(given: dict[str, Any], out: Path) -> dict[str, Any]:
    from jointensor.atomic import write_whole
    from jointensor.cli.options import parse_rank
    from jointensor.data.formats import write_tensor
    from jointensor.data.generate import LIMITS, SyntheticSpec, generate, write_large

    sizes = _parse_shape(given.pop("shape", None))
    density = given.pop("density", None)
    if (density is None) == ("entries" not in given):
        raise ConfigError("a synthetic tensor needs --entries N or --density SHARE, one of them")
    if density is not None:
        if not 0 < density <= 1:
            raise ConfigError(f"--density {density}: give a share between 0 and 1")
        given["entries"] = max(1, round(density * math.prod(sizes)))
    rank = parse_rank(given.pop("rank", "3/0"))
    spec = SyntheticSpec(shape=sizes, rank=rank, **given)
    large = spec.entries > LIMITS.max_in_memory
    write_whole(out, lambda draft: write_large(spec, draft) if large else write_tensor(generate(spec)[0], draft))
    options = {"rank": f"{rank[0]}/{rank[1]}", "nonlinearity": spec.nonlinearity, "ratio": spec.ratio}
    options |= {"noise": spec.noise, "skew": spec.skew, "seed": spec.seed}
    names = [f"mode_{n}" for n in range(len(sizes))]
    return {"name": SYNTHETIC, "modes": names, "shape": list(sizes), "entries": spec.entries, "paper": None,
            "planted": options}  # fmt: skip


def _parse_shape(text: str | None) -> tuple[int, ...]:
    pieces = (text or "").lower().replace("×", "x").split("x")
    if len(pieces) < 2 or not all(piece.strip().isdecimal() and int(piece) for piece in pieces):
        raise ConfigError(f"--shape {text or ''}: give the sizes of two modes or more, such as 100x80x60")
    return tuple(map(int, pieces))


def _facts(recipe: Recipe, cache: Path | None) -> dict[str, Any]:
    from jointensor.data.catalogue.get import cache_folder, downloaded

    folder = cache_folder(cache)
    return {
        "name": recipe.name, "title": recipe.title, "page": recipe.page, "licence": recipe.licence,
        "citation": recipe.citation, "modes": list(recipe.modes), "value": recipe.value,
        "paper": {"shape": list(recipe.shape), "entries": recipe.entries},
        "how": recipe.how, "differs": recipe.differs, "substitute": recipe.substitute,
        "public": recipe.public,
        "downloaded": downloaded(recipe, folder) is not None, "cache": str(folder / recipe.name),
        "files": [
            {"name": file.name, "url": file.url, "sha256": file.sha256, "optional": file.optional}
            for source in recipe.sources for file in source.files
        ],
    }  # fmt: skip


def _summary(facts: dict[str, Any], out: Path) -> str:
    lines = [f"{'made:':<11}{_sizes(facts['shape'])} ({', '.join(facts['modes'])}), {facts['entries']:,} entries"]
    paper = facts["paper"]
    if paper is not None:
        same = "the same" if facts["same_as_paper"] else "not the same"
        lines.append(f"{'paper:':<11}{_sizes(paper['shape'])}, {paper['entries']:,} entries: {same}")
    return "\n".join([*lines, f"{'written:':<11}{out}"])


def _sizes(shape: list[int]) -> str:
    return " x ".join(map(str, shape))


def _progress(file: str) -> OnBytes:
    """A listener that prints the progress of a download every few seconds."""
    last = time.monotonic()

    def on_bytes(here: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY:
            last = time.monotonic()
            share = f" of {total / 1e6:,.1f} MB ({here / total:.0%})" if total else " MB"
            typer.echo(f"{file}: {here / 1e6:,.1f}{share}", err=True)

    return on_bytes


def _print(text: str) -> None:
    sys.stdout.writelines(visible(line) + "\n" for line in text.split("\n"))


def _print_json(data: Any) -> None:
    sys.stdout.write(json_text(data, sys.stdout.encoding) + "\n")
