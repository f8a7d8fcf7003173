"""What a run says: a table, a comparison with another run, and docs/performance.md with its charts."""

import re
import statistics
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.bench.runs import OURS, Outcome, Row, Run, Side


def figure(value: float) -> str:
    """Return three significant digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def row_description(title: str, row: Row) -> str:
    """Return what a row measures, with its aims."""
    aims = [f"{aim:.3g} of {name}" for name, aim in row.aims.items()]
    if row.most is not None:
        aims.append(f"at most {row.most:g} {row.unit}")
    return f"{row.name}: {row.what} [{title}]; aim: {', '.join(aims) or 'none, it is shown'}"


def row_text(outcome: Outcome) -> str:
    """Return one row: our figure and its spread, then each peer's with the share of it."""
    begin = f"{outcome.name}: "
    if not outcome.ours.values:
        return f"{begin}not measured: {outcome.ours.reason}"
    values = outcome.ours.values
    text = f"{begin}{figure(outcome.value)} {outcome.unit} ({figure(min(values))} to {figure(max(values))})"
    if outcome.most is not None:
        text += f", at most {outcome.most:g}{'' if outcome.value <= outcome.most else '  MISSED'}"
    return text + "".join(f"\n    {side_text(outcome, other)}" for other in outcome.others)


def side_text(outcome: Outcome, other: Side) -> str:
    """Return the share of one peer, with the shares of the rounds."""
    if not other.values:
        return f"{other.name}: not measured: {other.reason}"
    shares = outcome.shares(other)
    text = f"{other.name}: share {outcome.share(other):.3g} ({min(shares):.3g} to {max(shares):.3g})"
    if outcome.ours.cpu and other.cpu:
        text += f", processor's time {figure(processor(other))} : {figure(processor(outcome.ours))} us"
    if other.aim is not None:
        text += f", aim {other.aim:.3g}{'  MISSED' if other.name in outcome.missed else ''}"
    return text


def processor(side: Side) -> float:
    """Return the least of its rounds, which others disturbed least, in microseconds."""
    return min(side.cpu)


def run_text(run: Run) -> str:
    """Return all rows, each group under its title."""
    lines: list[str] = []
    group = ""
    for outcome in run.outcomes:
        if outcome.group != group:
            group = outcome.group
            lines.append(f"== {group}")
        lines.append(row_text(outcome))
    return "\n".join(lines)


#: Less is within what two runs of the same code differ by on a quiet machine.
LEAST = 0.05


def slower(old: Run, new: Run) -> list[str]:
    """A sentence for each. Rows with peers are compared by their shares, which another machine changes less; those
    that have none, by our own figures. What one of the runs has not measured is left out."""
    return [
        sentence
        for outcome in new.outcomes
        if (before := old.of(outcome.name)) is not None
        for sentence in _of_row(before, outcome)
    ]


def not_compared(old: Run, new: Run) -> list[str]:
    """Return the rows of the new run that the old one does not have, or has not measured."""
    return [
        outcome.name
        for outcome in new.outcomes
        if outcome.ours.values and ((before := old.of(outcome.name)) is None or not before.ours.values)
    ]


def _of_row(old: Outcome, new: Outcome) -> Iterator[str]:
    if not (old.ours.values and new.ours.values):
        return
    known = {other.name: other for other in old.others if other.values}
    pairs = [(known[other.name], other) for other in new.others if other.values and other.name in known]
    for before, after in pairs:
        yield from _worse(f"{new.name}: share of {after.name}", old.shares(before), new.shares(after))
    if not pairs:
        sign = -1.0 if new.less_is_better else 1.0
        values = [[value**sign for value in outcome.ours.values] for outcome in (old, new)]
        yield from _worse(f"{new.name}: {'1 / ' if sign < 0 else ''}{new.unit}", *values)


def _worse(what: str, before: list[float], after: list[float]) -> Iterator[str]:
    """Yield a sentence if no round of the new run was as good as the worst one of the old."""
    was, is_now = statistics.median(before), statistics.median(after)
    if max(after) < min(before) and is_now < was * (1 - LEAST):
        yield f"{what} fell from {was:.3g} to {is_now:.3g} ({1 - is_now / was:.0%})"


#: Inches: of a chart, of one bar.
_WIDTH, _HEIGHT = 8.0, 0.32


def draw(run: Run, folder: Path) -> dict[str, str]:
    """A file in `folder` for each group that has shares; their paths from the folder above, by the groups' titles.

    Raises `ValueError` where matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("Charts need matplotlib: pip install 'forgelet[bench]'.") from None
    mpl.rcParams.update({"svg.hashsalt": "forgelet", "svg.fonttype": "none", "font.size": 8})
    folder.mkdir(exist_ok=True)
    drawn = {}
    for group in dict.fromkeys(outcome.group for outcome in run.outcomes):
        bars = [
            (outcome, other)
            for outcome in run.outcomes
            if outcome.group == group and outcome.ours.values
            for other in outcome.others
            if other.values
        ]
        if bars:
            picture = Figure(figsize=(_WIDTH, 1 + _HEIGHT * len(bars)), layout="constrained")
            _bars(picture.subplots(), bars)
            path = folder / f"{re.sub(r'[^a-z]+', '-', group.lower())}.svg"
            picture.savefig(path, metadata={"Date": None})
            drawn[group] = f"{folder.name}/{path.name}"
    return drawn


def _bars(axes: Any, bars: list[tuple[Outcome, Side]]) -> None:
    """Draw one bar for each share, a line from the least to the greatest round over it, and a mark at the aim."""
    for place, (outcome, other) in enumerate(bars):
        share, shares = outcome.share(other), outcome.shares(other)
        missed = other.name in outcome.missed
        axes.barh(place, share, color="#c0504d" if missed else "#4f81bd", height=0.6)
        axes.plot([min(shares), max(shares)], [place, place], color="black", linewidth=1)
        if other.aim is not None:
            axes.plot([other.aim, other.aim], [place - 0.4, place + 0.4], color="black", linewidth=2)
    axes.set_yticks(range(len(bars)), [f"{outcome.name} / {other.name}" for outcome, other in bars])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1, color="grey", linewidth=0.5)
    axes.set_xlabel("share of the other's figure, more is better; thick mark: aim; line: the rounds")


CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs" / "performance.md"
EXPLAINED = Path(__file__).with_name("explained.toml")

#: Between these the page is written by `--page`.
_FIGURES = re.compile(r"(<!-- figures: begin -->\n).*(<!-- figures: end -->)", re.DOTALL)
_HEAD = f"| Row | What | forgelet | Beside | Share | Aim | Processor's time, theirs : ours |\n{'|---' * 7}|\n"

#: Row -> whose aim is missed (our own name: the limit) -> the sentence that explains it.
Explanations = dict[str, dict[str, str]]


def explanations(path: Path = EXPLAINED) -> Explanations:
    """Return what is known of aims that are missed."""
    return tomllib.loads(path.read_text())


def write_page(run: Run, page: Path = PAGE) -> None:
    """Write the table and the charts into the page; the text around them stays."""
    folder = page.parent / page.stem
    drawn = draw(run, folder)
    text = figures(run, explanations(), drawn)
    page.write_text(_FIGURES.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page.read_text()))


def figures(run: Run, explained: Explanations, drawn: dict[str, str]) -> str:
    """Return all that comes from one run, as Markdown; `drawn` are the charts' paths by the titles of groups."""
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
    """Yield a row of the table for each peer."""
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
        yield (*(("", "", "") if number else begin), *_side_cells(outcome, other))


def _side_cells(outcome: Outcome, other: Side) -> tuple[str, ...]:
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
    """Return the aims that are missed, each with its explanation if there is one."""
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
