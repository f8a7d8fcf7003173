"""What was measured, for people."""

from collections.abc import Sequence

from scripts.bench.growing.measuring import Measured

_SHORTEST = 0.5  # seconds: migrations that take less at every size are left out


def text(found: Sequence[Measured]) -> str:
    """A line for each thing: milliseconds at each size, how often the last has the first, and pages alike."""
    first, last = found[0], found[-1]
    lines = [
        _line("milliseconds", [f"{one.rows:,}" for one in found], "grew", "pages of 8 KiB", "read whole")
    ]
    for name in last.milliseconds:
        figures = [f"{one.milliseconds[name]:,.1f}" for one in found]
        grew = f"x {last.milliseconds[name] / first.milliseconds[name]:.1f}"
        pages = " -> ".join(f"{one.pages[name]:,}" for one in found if name in one.pages)
        lines.append(_line(name, figures, grew, pages, ", ".join(last.whole.get(name, []))))
    for name in set(last.pages) - set(last.milliseconds):
        pages = " -> ".join(f"{one.pages.get(name, 0):,}" for one in found)
        lines.append(_line(name, ["" for _ in found], "", pages, ", ".join(last.whole.get(name, []))))
    lines += ["", "seconds of migrations"]
    for name in last.migrations:
        if max(one.migrations[name] for one in found) >= _SHORTEST:
            lines.append(_line(name, [f"{one.migrations[name]:,.1f}" for one in found]))
    lines += [f"written anew: {', '.join(last.rewritten) or 'no table'}", "", "seconds of filling"]
    lines += [_line(name, [f"{one.filling[name]:,.1f}" for one in found]) for name in last.filling]
    lines += ["", "with indexes"]
    lines += [_line(name, [one.sizes[name] for one in found]) for name in last.sizes]
    if last.not_told:
        lines += ["", f"Plans are not told: {last.not_told}"]
    return "\n".join(lines)


def _line(name: str, figures: Sequence[str], *more: str) -> str:
    columns = [f"{name:<58}", *(f"{figure:>12}" for figure in figures), *(f"  {one:<16}" for one in more)]
    return "".join(columns).rstrip()
