"""The table of a run, and what was found."""

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from scripts.faults.client import Ledger
from scripts.faults.scenario import Made

HEADING = (
    f"{'fault':20}{'times':>7}{'acknowledged':>14}{'unknown':>9}{'lost':>6}{'doubled':>9}{'not healed':>12}"
    f"{'findings':>10}{'median s':>10}{'worst s':>9}  answers"
)
BEFORE = "(no fault yet)"
#: What is shown of a line of a log.
SHOWN_FIELDS = ("timestamp", "level", "logger", "event", "method", "path", "status", "ms", "about")
#: So many findings of one kind are shown whole.
SHOWN = 3


@attrs.frozen
class Report:
    """All faults of a run, with everything that was recorded while they were made."""

    ledger: Ledger
    made: Sequence[Made]

    @property
    def failed(self) -> bool:
        """Whether anything was lost, done twice, not healed, or said that may not be said."""
        return bool(self.ledger.findings or self.ledger.lost() or self.ledger.doubled())

    def __str__(self) -> str:
        names = list(dict.fromkeys(fault.name for fault in self.made))
        rows = [self._row(name, [fault for fault in self.made if fault.name == name]) for name in names]
        return "\n".join(
            [
                HEADING,
                self._row(BEFORE, [Made(0, BEFORE)]),
                *rows,
                self._row("all", [Made(0, BEFORE), *self.made]),
            ]
        )

    def _row(self, name: str, faults: Sequence[Made]) -> str:
        numbers = {fault.number for fault in faults}
        mine = [one for one in self.ledger.operations if one.fault in numbers]
        outcomes = Counter(one.outcome for one in mine)
        seconds = [max(fault.recovered.values()) for fault in faults if fault.recovered]
        answers: Counter[str] = Counter()
        for (fault, what), count in self.ledger.answers.items():
            answers[what] += count if fault in numbers else 0
        told = ", ".join(f"{count} x {what}" for what, count in answers.most_common(7) if count)
        median = f"{statistics.median(seconds):.1f}" if seconds else ""
        worst = f"{max(seconds):.1f}" if seconds else ""
        return (
            f"{name:20}{sum(fault.number > 0 for fault in faults):7}"
            f"{outcomes['acknowledged']:14}{outcomes['unknown']:9}"
            f"{sum(one.fault in numbers for one in self.ledger.lost()):6}"
            f"{sum(one.fault in numbers for one in self.ledger.doubled()):9}"
            f"{sum(bool(fault.not_healed) for fault in faults):12}"
            f"{sum(number in numbers for number, _ in self.ledger.findings):10}{median:>10}{worst:>9}  {told}"
        )

    def findings(self, logs: Path) -> str:
        """Each finding with its fault; of many of one kind, the first ones; with the log lines of their requests."""
        names: Mapping[int, str] = {0: BEFORE, **{fault.number: fault.name for fault in self.made}}
        by_kind: dict[str, list[str]] = defaultdict(list)
        for number, text in self.ledger.findings:
            by_kind[_kind(text)].append(f"[{number} {names.get(number, '')}] {text}")
        for what, operations in (("lost", self.ledger.lost()), ("doubled", self.ledger.doubled())):
            for one in operations:
                where = f"[{one.fault} {names.get(one.fault, '')}]"
                by_kind[f"{what} {one.kind}"].append(
                    f"{where} {what}: {one.kind} {one.identity} ({one.outcome})"
                )
        lines: list[str] = []
        for texts in by_kind.values():
            for text in texts[:SHOWN]:
                lines += [text, *(f"      {line}" for line in _log_lines(logs, text))]
            if len(texts) > SHOWN:
                lines.append(f"    ... and {len(texts) - SHOWN} more of this kind")
        return "\n".join(lines)


def _kind(text: str) -> str:
    """The text without what varies."""
    return re.sub(r"\d+", "0", text)[:110]


def _log_lines(logs: Path, text: str) -> list[str]:
    """What the processes said of the request that is named in the text."""
    named = re.search(r"\((load-\d+)\)", text)
    if named is None:
        return []
    found = []
    for log in sorted(logs.glob("*.log")):
        with log.open(errors="replace") as lines:
            found += [_shortened(line) for line in lines if f'"{named[1]}"' in line]
    return found


def _shortened(line: str) -> str:
    """A line of a log with the end of its traceback only: the last places in our code, and the exception."""
    try:
        said = json.loads(line)
    except ValueError:
        return line.strip()
    trace = said.pop("exception", "")
    places = re.findall(r'/((?:api_server|storage_edge|common)/[\w/]+\.py)", line (\d+)', trace)
    shown = " ".join(f"{name}={value}" for name, value in said.items() if name in SHOWN_FIELDS)
    if not trace:
        return shown
    last = re.findall(r"^[A-Za-z_][\w.]*(?:: .*)?$", trace, re.MULTILINE)[-1]
    return f"{shown} exception={last!r} at {' > '.join(f'{file}:{number}' for file, number in places[-3:])}"
