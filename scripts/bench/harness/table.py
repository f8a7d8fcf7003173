"""What was measured, as lines for a terminal."""

from scripts.bench.harness.outcomes import Outcome, Run, Side
from scripts.bench.harness.rows import Row


def figure(value: float) -> str:
    """Three digits that count, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def described(title: str, row: Row) -> str:
    """A row that can be measured, with its aims."""
    aims = [f"{aim:.3g} of {name}" for name, aim in row.aims.items()]
    if row.most is not None:
        aims.append(f"at most {row.most:g} {row.unit}")
    return f"{row.name}: {row.what} [{title}]; aim: {', '.join(aims) or 'none, it is shown'}"


def line(outcome: Outcome) -> str:
    """One row: our figure and its spread, then each peer's with the share of it."""
    begin = f"{outcome.name}: "
    if not outcome.ours.values:
        return f"{begin}not measured: {outcome.ours.reason}"
    values = outcome.ours.values
    text = f"{begin}{figure(outcome.value)} {outcome.unit} ({figure(min(values))} to {figure(max(values))})"
    if outcome.most is not None:
        text += f", at most {outcome.most:g}{'' if outcome.value <= outcome.most else '  MISSED'}"
    return text + "".join(f"\n    {beside(outcome, other)}" for other in outcome.others)


def beside(outcome: Outcome, other: Side) -> str:
    """The share of one peer, with the shares of the rounds."""
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
    """The least of its rounds, which others disturbed least, in microseconds."""
    return min(side.cpu)


def text(run: Run) -> str:
    """All rows, each group under its title."""
    lines: list[str] = []
    group = ""
    for outcome in run.outcomes:
        if outcome.group != group:
            group = outcome.group
            lines.append(f"== {group}")
        lines.append(line(outcome))
    return "\n".join(lines)
