"""Writes what was measured into docs/performance.md, with charts beside it."""

import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

from scripts.bench.harness import charts
from scripts.bench.harness.outcomes import Outcome, Run, Side
from scripts.bench.harness.rows import OURS
from scripts.bench.harness.table import figure, processor

CHECKOUT = Path(__file__).parents[3]
PAGE = CHECKOUT / "docs" / "performance.md"
EXPLAINED = Path(__file__).parents[1] / "explained.toml"

#: Between these the page is written by `--page`.
_FIGURES = re.compile(r"(<!-- figures: begin -->\n).*(<!-- figures: end -->)", re.DOTALL)
_HEAD = f"| Row | What | forgelet | Beside | Share | Aim | Processor's time, theirs : ours |\n{'|---' * 7}|\n"

#: Row -> whose aim is missed (our own name: the limit) -> the sentence that explains it.
Explanations = dict[str, dict[str, str]]


def explanations(path: Path = EXPLAINED) -> Explanations:
    """What is known of aims that are missed."""
    return tomllib.loads(path.read_text())


def write(run: Run, page: Path = PAGE) -> None:
    """The table and the charts; what the page says around them stays."""
    folder = page.parent / page.stem
    drawn = charts.draw(run, folder)
    text = figures(run, explanations(), drawn)
    page.write_text(_FIGURES.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page.read_text()))


def figures(run: Run, explained: Explanations, drawn: dict[str, str]) -> str:
    """All that comes from one run, as Markdown; `drawn` are the charts' paths by the titles of groups."""
    machine = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    parts = [f"Measured on {run.made}, {run.rounds} rounds: {machine}.\n", _verdict(run, explained)]
    for group in dict.fromkeys(outcome.group for outcome in run.outcomes):
        rows = [outcome for outcome in run.outcomes if outcome.group == group]
        parts.append(f"### {group}\n")
        if group in drawn:
            parts.append(f"![Shares of the others' figures: {group}]({drawn[group]})\n")
        parts.append(_HEAD + "".join(f"| {' | '.join(cells)} |\n" for row in rows for cells in _cells(row)))
    return "\n".join(parts)


def _cells(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """A row for each peer."""
    if outcome.ours.values:
        values = outcome.ours.values
        ours = f"{figure(outcome.value)} {outcome.unit} ({figure(min(values))} to {figure(max(values))})"
        if outcome.most is not None:
            ours += f", at most {outcome.most:g}{_missed(outcome, OURS)}"
    else:
        ours = f"not measured: {outcome.ours.reason}"
    begin = (f"`{outcome.name}`", outcome.what.replace("|", "\\|"), ours)
    if not outcome.others:
        yield (*begin, "", "", "", "")
    for number, other in enumerate(outcome.others):
        yield (*(("", "", "") if number else begin), *_beside(outcome, other))


def _beside(outcome: Outcome, other: Side) -> tuple[str, ...]:
    aim = "" if other.aim is None else f"{other.aim:.2g}"
    if not (other.values and outcome.ours.values):
        return other.name, f"not measured: {other.reason or outcome.ours.reason}", aim, ""
    shares = outcome.shares(other)
    share = (
        f"{outcome.share(other):.3g} ({min(shares):.3g} to {max(shares):.3g}){_missed(outcome, other.name)}"
    )
    times = ""
    if outcome.ours.cpu and other.cpu:
        times = f"{figure(processor(other))} : {figure(processor(outcome.ours))} µs"
    return other.name, share, aim, times


def _missed(outcome: Outcome, name: str) -> str:
    return " **missed**" if name in outcome.missed else ""


def _verdict(run: Run, explained: Explanations) -> str:
    """Aims that are missed, each with what explains it or without."""
    lines = [
        f"- `{outcome.name}`, {'limit' if name == OURS else f'share of {name}'}: "
        f"{explained.get(outcome.name, {}).get(name, 'missed, and not explained.')}"
        for outcome in run.outcomes
        for name in outcome.missed
    ]
    wrapped = [f"{textwrap.fill(line.strip(), 118, subsequent_indent='  ')}\n" for line in lines]
    return (
        f"Aims that are missed:\n\n{''.join(wrapped)}" if lines else "No aim that was measured is missed.\n"
    )
