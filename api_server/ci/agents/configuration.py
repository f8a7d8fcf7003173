"""An agent's configuration file, as far as it says whose jobs may use the agent. Pure."""

from typing import Any

from api_server.ci.config.errors import Budget, ConfigError
from api_server.ci.config.yaml_text import load

#: What GitLab keeps of a grant.
_KEPT = ("default_namespace", "environments", "protected_branches_only")
MAX_GRANTS = 500
#: Of the file, which tells of more than grants.
MAX_BYTES = 128 * 1024
MAX_NODES = 25_000


def path_of(agent: str) -> str:
    """Where the file of the agent of this name is."""
    return f".gitlab/agents/{agent}/config.yaml"


def grants_in(text: str) -> list[dict[str, Any]]:
    """kind (`projects` or `groups`), path and configuration of each entry of `ci_access`; none from a file that
    cannot be read."""
    try:
        document = load(text, Budget(MAX_NODES), most=MAX_BYTES)
    except ConfigError:
        return []
    access = document.get("ci_access")
    if not isinstance(access, dict):
        return []
    found = [
        {"kind": kind, "path": entry["id"].strip("/"), "configuration": _configuration(entry)}
        for kind in ("projects", "groups")
        for entry in _list(access.get(kind))
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]
    return found[:MAX_GRANTS]


def _configuration(entry: dict[str, Any]) -> dict[str, Any]:
    kept = {key: entry[key] for key in _KEPT if entry.get(key) is not None}
    if "environments" in kept:
        kept["environments"] = [str(one) for one in _list(kept["environments"])]
    if "protected_branches_only" in kept:
        # whatever is not plainly `false` protects
        kept["protected_branches_only"] = kept["protected_branches_only"] is not False
    return kept


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
