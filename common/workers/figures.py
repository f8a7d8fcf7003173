"""Metrics of several workers, added up. Between processes they are plain values: by the family's name its type, its
explanation, and its samples as [name, labels, value]."""

from collections.abc import Collection, Iterable
from typing import Any

Figures = dict[str, tuple[str, str, list[tuple[str, dict[str, str], float]]]]

#: Gauges of which those of all processes are added up, on either process.
SUMMED = frozenset(
    ("process_virtual_memory_bytes", "process_resident_memory_bytes", "process_open_fds", "process_max_fds")
)
#: What is a moment: the earliest counts.
_EARLIEST = ("_created", "process_start_time_seconds")


def taken(families: Iterable[Any], summed: Collection[str]) -> Figures:
    """What can be added up of Prometheus' families: all but gauges, and those that `summed` names."""
    return {
        family.name: (
            family.type,
            family.documentation,
            [(sample.name, dict(sample.labels), sample.value) for sample in family.samples],
        )
        for family in families
        if family.type != "gauge" or family.name in summed or family.name in _EARLIEST
    }


def counted(figures: Figures) -> Figures:
    """Without gauges: what holds of a process that has ended."""
    return {name: family for name, family in figures.items() if family[0] != "gauge"}


def added(each: Iterable[Figures]) -> Figures:
    """One for all."""
    total: Figures = {}
    for figures in each:
        for name, (kind, documentation, samples) in figures.items():
            ours = total.setdefault(name, (kind, documentation, []))[2]
            ours[:] = _added([*ours, *samples])
    return total


def _added(
    samples: Iterable[tuple[str, dict[str, str], float]],
) -> list[tuple[str, dict[str, str], float]]:
    found: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[str, dict[str, str], float]] = {}
    for name, labels, value in samples:
        key = name, tuple(sorted(labels.items()))
        before = [found[key][2]] if key in found else []
        together = min([value, *before]) if name.endswith(_EARLIEST) else sum([value, *before])
        found[key] = name, labels, together
    return list(found.values())
