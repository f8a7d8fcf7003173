"""The rows of the bench, by the groups under which the table shows them."""

from scripts.bench.rows import audit, edge, git, processes, queues, reads
from scripts.bench.runs import Row

#: Name of a group -> its title, and its rows.
GROUPS = {
    "lists": ("Lists of the API", reads.LIST_ROWS),
    "single_reads": ("Single resources", reads.SINGLE_READ_ROWS),
    "edge": ("The edge", edge.ROWS),
    "git": ("git over HTTP", git.GIT_ROWS),
    "runners": ("Runners", queues.RUNNER_ROWS),
    "audit": ("Audit trail", audit.AUDIT_ROWS),
    "deliveries": ("Deliveries of status checks", queues.DELIVERY_ROWS),
    "mirrors": ("Push mirrors", git.MIRROR_ROWS),
    "processes": ("Start-up and memory", processes.PROCESS_ROWS),
    "resets": ("Resets of a server for tests", processes.RESET_ROWS),
}
#: Name of a row -> the title of its group, and the row.
ALL_ROWS: dict[str, tuple[str, Row]] = {
    row.name: (title, row) for title, rows in GROUPS.values() for row in rows
}
