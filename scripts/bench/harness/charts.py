"""Charts of shares as SVG, by matplotlib of the extra `bench`."""

import re
from pathlib import Path
from typing import Any

from scripts.bench.harness.outcomes import Outcome, Run, Side

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
    """One bar a share, from the least to the greatest round a line over it, and a mark where the aim is."""
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
