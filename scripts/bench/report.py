"""Reports of a run: a table, a comparison with another run, and docs/performance.md with its charts."""

import re
import statistics
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.bench.runs import OURS, Outcome, Row, Run, Side
from scripts.harness.report import filled, markdown_table


def figure(value: float) -> str:
    """Return a number with three significant digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def row_description(title: str, row: Row) -> str:
    """Return what a row measures, with its aims."""
    aims = [f"{aim:.3g} of {name}" for name, aim in row.aims.items()]
    if row.most is not None:
        aims.append(f"at most {row.most:g} {row.unit}")
    return f"{row.name}: {row.what} [{title}]; aim: {', '.join(aims) or 'none, it is shown'}"


def row_text(outcome: Outcome) -> str:
    """Return the text of one row: our figure with its spread, and then our share of each peer's figure."""
    lines = [f"{outcome.name}: {_ours(outcome, '  MISSED')}"]
    if outcome.ours.values:
        lines += [f"    {_peer_text(outcome, other)}" for other in outcome.others]
    return "\n".join(lines)


def _ours(outcome: Outcome, missed: str) -> str:
    """Return our figure with its spread and its limit, followed by `missed` if it is above the limit; without a
    figure, return the reason."""
    values = outcome.ours.values
    if not values:
        return f"not measured: {outcome.ours.reason}"
    text = f"{figure(outcome.value)} {outcome.unit} ({figure(min(values))} to {figure(max(values))})"
    if outcome.most is not None:
        text += f", at most {outcome.most:g}{missed if OURS in outcome.missed else ''}"
    return text


def _share(outcome: Outcome, other: Side, missed: str) -> str:
    """Return our share of a peer's figure with its spread, followed by `missed` if its aim is missed; without a share,
    return the reason."""
    if not (other.values and outcome.ours.values):
        return f"not measured: {other.reason or outcome.ours.reason}"
    shares = outcome.shares(other)
    mark = missed if other.name in outcome.missed else ""
    return f"{outcome.share(other):.3g} ({min(shares):.3g} to {max(shares):.3g}){mark}"


def _processor_times(outcome: Outcome, other: Side) -> str:
    """Return the lowest processor times of both sides' rounds, which were disturbed least: `theirs : ours µs`."""
    if not (outcome.ours.cpu and other.cpu):
        return ""
    return f"{figure(min(other.cpu))} : {figure(min(outcome.ours.cpu))} µs"


def _peer_text(outcome: Outcome, other: Side) -> str:
    text = f"{other.name}: {'share ' if other.values else ''}{_share(outcome, other, '  MISSED')}"
    times, aim = _processor_times(outcome, other), other.aim
    text += f", processor's time {times}" if times else ""
    return text if aim is None or not other.values else f"{text}, aim {aim:.3g}"


def run_text(run: Run) -> str:
    """Return all rows, each group under its title."""
    return "\n".join(
        line
        for group, outcomes in run.by_group().items()
        for line in (f"== {group}", *map(row_text, outcomes))
    )


#: Two runs of the same code differ by up to this share on a quiet machine.
MIN_CHANGE = 0.05


def slower(old: Run, new: Run) -> list[str]:
    """Return a sentence for each slower row. Rows with peers are compared by their shares, which depend less on the
    machine; other rows by our own figures. Rows that one of the runs has not measured are left out."""
    return [
        sentence
        for outcome in new.outcomes
        if (before := old.of(outcome.name)) is not None
        for sentence in _of_row(before, outcome)
    ]


def not_compared(old: Run, new: Run) -> list[str]:
    """Return the rows of the new run that the old run does not have or has not measured."""
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


def _worse(measure: str, before: list[float], after: list[float]) -> Iterator[str]:
    """Yield a sentence if no round of the new run was as good as the worst round of the old one."""
    was, is_now = statistics.median(before), statistics.median(after)
    if max(after) < min(before) and is_now < was * (1 - MIN_CHANGE):
        yield f"{measure} fell from {was:.3g} to {is_now:.3g} ({1 - is_now / was:.0%})"


#: Inches: width of a chart, height of one bar.
_WIDTH, _HEIGHT = 8.0, 0.32


def draw(run: Run, folder: Path) -> dict[str, str]:
    """Draw a file in `folder` for each group that has shares; return the files' paths, relative to the folder above,
    by the groups' titles. Raise `ValueError` if matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("Charts need matplotlib: pip install 'forgelet[bench]'.") from None
    mpl.rcParams.update({"svg.hashsalt": "forgelet", "svg.fonttype": "none", "font.size": 8})
    folder.mkdir(exist_ok=True)
    plots = {}
    for group, outcomes in run.by_group().items():
        bars = [
            (outcome, other)
            for outcome in outcomes
            if outcome.ours.values
            for other in outcome.others
            if other.values
        ]
        if bars:
            picture = Figure(figsize=(_WIDTH, 1 + _HEIGHT * len(bars)), layout="constrained")
            _bars(picture.subplots(), bars)
            path = folder / f"{re.sub(r'[^a-z]+', '-', group.lower())}.svg"
            picture.savefig(path, metadata={"Date": None})
            plots[group] = f"{folder.name}/{path.name}"
    return plots


def _bars(axes: Any, bars: list[tuple[Outcome, Side]]) -> None:
    """Draw one bar for each share, a line over it from the lowest to the highest round, and a mark at the aim."""
    for position, (outcome, other) in enumerate(bars):
        share, shares = outcome.share(other), outcome.shares(other)
        missed = other.name in outcome.missed
        axes.barh(position, share, color="#c0504d" if missed else "#4f81bd", height=0.6)
        axes.plot([min(shares), max(shares)], [position, position], color="black", linewidth=1)
        if other.aim is not None:
            axes.plot([other.aim, other.aim], [position - 0.4, position + 0.4], color="black", linewidth=2)
    axes.set_yticks(range(len(bars)), [f"{outcome.name} / {other.name}" for outcome, other in bars])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1, color="grey", linewidth=0.5)
    axes.set_xlabel("share of the other's figure, more is better; thick mark: aim; line: the rounds")


CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs" / "performance.md"
EXPLAINED = Path(__file__).with_name("explained.toml")
_COLUMNS = ("Row", "What", "forgelet", "Beside", "Share", "Aim", "Processor's time, theirs : ours")

#: Row -> side whose aim is missed (our own name stands for the limit) -> the sentence that explains it.
Explanations = dict[str, dict[str, str]]


def explanations(path: Path = EXPLAINED) -> Explanations:
    """Return the explanations of missed aims."""
    return tomllib.loads(path.read_text())


def write_page(run: Run, page: Path = PAGE) -> None:
    """Write the table and the charts into the page; the text around them stays."""
    plots = draw(run, page.parent / page.stem)
    page.write_text(filled(page.read_text(), {"figures": lambda: figures(run, explanations(), plots)}))


def figures(run: Run, explained: Explanations, plots: dict[str, str]) -> str:
    """Return everything that comes from one run, as Markdown; `plots` are the charts' paths by the titles of groups."""
    machine = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    parts = [f"Measured on {run.made}, {run.rounds} rounds: {machine}.", _verdict(run, explained)]
    for group, outcomes in run.by_group().items():
        parts.append(f"### {group}")
        if group in plots:
            parts.append(f"![Shares of the others' figures: {group}]({plots[group]})")
        parts.append(markdown_table(*_COLUMNS, rows=[cells for row in outcomes for cells in _cells(row)]))
    return "\n\n".join(parts)


def _cells(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each peer."""
    cells = (f"`{outcome.name}`", outcome.what.replace("|", "\\|"), _ours(outcome, " **missed**"))
    if not outcome.others:
        yield (*cells, "", "", "", "")
    for number, other in enumerate(outcome.others):
        aim = "" if other.aim is None else f"{other.aim:.2g}"
        share = _share(outcome, other, " **missed**")
        yield (*(("", "", "") if number else cells), other.name, share, aim, _processor_times(outcome, other))


def _verdict(run: Run, explained: Explanations) -> str:
    """Return the missed aims, each with its explanation if there is one."""
    lines = [
        f"- `{outcome.name}`, {'limit' if name == OURS else f'share of {name}'}: "
        f"{explained.get(outcome.name, {}).get(name, 'missed, and not explained.')}"
        for outcome in run.outcomes
        for name in outcome.missed
    ]
    if not lines:
        return "No aim that was measured is missed."
    wrapped = [textwrap.fill(line.strip(), 118, subsequent_indent="  ") for line in lines]
    return "\n".join(["Aims that are missed:", "", *wrapped])
