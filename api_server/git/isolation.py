"""What a git child sees of this machine: the environment and the configuration that it gets, and no other."""

import os
from collections.abc import Mapping, Sequence

#: Configuration of every git child. It replaces the system's and the user's, which are never read.
CONFIGURATION = (
    ("safe.directory", "*"),  # our folders, whoever owns them
    ("protocol.allow", "never"),  # no transport starts unless the caller allows one
    ("core.hooksPath", os.devnull),
    ("core.attributesFile", os.devnull),
    # What a push or commit reported as done survives a power cut; `durable` syncs the folders.
    ("core.fsync", "objects,derived-metadata,reference"),
    ("core.fsyncMethod", "fsync"),
    (
        "core.filesRefLockTimeout",
        "1000",
    ),  # ms, as long as git waits for packed-refs; locks are held for a moment
    ("gc.auto", "0"),  # housekeeping is asked for, it never trails behind a request
    ("maintenance.auto", "false"),
    ("advice.detachedHead", "false"),
    # What one child may remember of objects: many run at once, each within `child_limits`.
    ("core.bigFileThreshold", "32m"),  # above it, contents are streamed and never compared with each other
    ("core.deltaBaseCacheLimit", "32m"),
    ("core.packedGitWindowSize", "32m"),
    ("core.packedGitLimit", "256m"),
    ("pack.threads", "2"),
    ("pack.windowMemory", "32m"),  # of each thread
    ("pack.deltaCacheSize", "32m"),
)


def environment(
    extra: Mapping[str, str] | None = None, configuration: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    """The whole environment of a git child: nothing is inherited but PATH and TMPDIR."""
    pairs = (*CONFIGURATION, *configuration)
    numbered = {f"GIT_CONFIG_KEY_{n}": key for n, (key, _) in enumerate(pairs)}
    numbered |= {f"GIT_CONFIG_VALUE_{n}": value for n, (_, value) in enumerate(pairs)}
    inherited = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    return {
        **inherited,
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",  # zip archives carry local times
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",  # a pushed refs/replace/ must not change what a commit shows
        "GIT_LITERAL_PATHSPECS": "1",  # a path is a path, even one with * or : in it
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": str(len(pairs)),
        **numbered,
        **(extra or {}),
    }
