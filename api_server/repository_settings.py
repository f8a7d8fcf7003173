"""What an operator sets about repositories: how much of git goes on at once, and how large things may be."""

from typing import ClassVar

import typed_settings
from typed_settings import option

from common.client_settings import ClientSettings
from common.settings import count, number, size, timeout, whole_seconds


@typed_settings.settings(frozen=True, kw_only=True)
class RepositorySettings(ClientSettings):
    """Git over HTTP, files, differences, archives, pushes."""

    reloaded: ClassVar[frozenset[str]] = ClientSettings.reloaded | {
        "git_time_limit",
        "push_limit",
        "push_refs_limit",
        "repository_read_timeout",
        "file_json_limit",
        "commit_max_files",
        "diff_max_files",
        "diff_max_lines",
        "diff_max_patch_bytes",
        "notes_limit",
        "notes_size_limit",
        "lfs_limit",
    }

    git_processes: int = option(
        default=48, metadata=count(), help="gits that run at once for clones, fetches and pushes of users"
    )
    git_anonymous_processes: int = option(
        default=16, metadata=count(), help="gits that run at once for strangers"
    )
    git_processes_each: int = option(
        default=12, metadata=count(), help="gits that run at once for one user, stranger's address or project"
    )
    git_queue_timeout: int = option(
        default=15,
        metadata=whole_seconds(0),
        help="seconds that a git request waits for its turn; 0 is not at all",
    )
    git_time_limit: int = option(
        default=7200, metadata=whole_seconds(), help="seconds that one clone, fetch or push may take"
    )
    git_memory_limit: int = option(
        default=512 * 2**20, metadata=number(64 * 2**20, 2**50), help="bytes of memory of one git process"
    )
    git_cpu_limit: int = option(
        default=900, metadata=whole_seconds(), help="seconds of processor time of one git process"
    )

    housekeeping: bool = option(default=True, help="pack repositories that want it when they are at rest")
    housekeeping_loose_objects: int = option(
        default=100, metadata=count(), help="loose objects from which on a repository is packed"
    )
    housekeeping_loose_bytes: int = option(
        default=64 * 2**20,
        metadata=size(),
        help="bytes of loose objects from which on a repository is packed",
    )
    housekeeping_packs: int = option(
        default=20, metadata=count(), help="packs from which on a repository is packed anew"
    )
    housekeeping_loose_refs: int = option(
        default=100,
        metadata=count(),
        help="loose refs, kept commits among them, from which on a repository's refs are packed",
    )
    housekeeping_patience: int = option(
        default=3600,
        metadata=whole_seconds(),
        help="seconds after which a repository that is never at rest is packed even so",
    )
    housekeeping_time_limit: int = option(
        default=7200, metadata=whole_seconds(), help="seconds of each git that packs"
    )
    housekeeping_large: int = option(
        default=1000,
        metadata=count(),
        help="objects from which on a repository gets bitmaps and a commit-graph",
    )
    housekeeping_whole_bytes: int = option(
        default=256 * 2**20,
        metadata=size(),
        help="bytes of objects up to which a repository becomes one pack again when it has doubled",
    )
    housekeeping_whole_days: int = option(
        default=7, metadata=count(), help="days after which a repository becomes one pack again"
    )

    repository_reads: int = option(
        default=12,
        metadata=count(),
        help="git processes at once that read commits, trees and differences for callers",
    )
    repository_reads_per_caller: int = option(
        default=4, metadata=count(), help="those of one user, or of one stranger's address"
    )
    repository_read_timeout: int = option(
        default=30,
        metadata=whole_seconds(),
        help="seconds after which reading commits, trees and differences is given up",
    )
    repository_patience: float = option(
        default=10.0,
        metadata=timeout(0.0),
        help="seconds that a request waits for its turn to read before it is refused",
    )
    file_streams: int = option(
        default=40, metadata=count(), help="files beyond 256 KiB that flow to readers at once"
    )
    file_streams_per_caller: int = option(
        default=6, metadata=count(), help="those of one user, or of one stranger's address"
    )
    file_json_limit: int = option(
        default=10 * 2**20,
        metadata=size(),
        help="bytes of a file that is answered as JSON; larger ones are read raw",
    )
    commit_max_files: int = option(
        default=100_000,
        metadata=count(),
        help="files of a branch to which the API commits; larger ones are pushed to",
    )
    diff_max_files: int = option(
        default=1000, metadata=count(), help="files that a difference between commits lists"
    )
    diff_max_lines: int = option(
        default=50_000, metadata=count(), help="lines of differences that one answer shows"
    )
    diff_max_patch_bytes: int = option(
        default=512 * 2**10, metadata=size(), help="bytes of a file, and of its difference, that are shown"
    )
    notes_limit: int = option(
        default=5000, metadata=count(), help="notes of a merge request beyond which nobody adds one"
    )
    notes_size_limit: int = option(
        default=64 * 2**20, metadata=size(), help="bytes of all notes of a merge request together"
    )

    archive_cache_bytes: int = option(
        default=2 * 2**30,
        metadata=size(),
        help="bytes of built archives that are kept, with those that are being built",
    )
    archive_limit: int = option(default=2**30, metadata=size(), help="bytes of one archive of a repository")
    archive_timeout: int = option(
        default=600, metadata=whole_seconds(), help="seconds that building one archive may take"
    )
    archive_wait: int = option(
        default=20,
        metadata=whole_seconds(0),
        help="seconds for which an archive waits to be built while others are, 0 is not at all; the edge waits for 60",
    )
    archive_builds: int = option(default=4, metadata=count(), help="archives that are built at the same time")
    archive_builds_each: int = option(
        default=2,
        metadata=count(),
        help="archives that are built at the same time for one user or address, or of one project",
    )
    push_limit: int = option(default=2 * 2**30, metadata=size(), help="bytes of one push's objects")
    push_refs_limit: int = option(
        default=5_000, metadata=count(), help="branches and tags that one push may move"
    )
    repository_size_limit: int = option(
        default=10 * 2**30,
        metadata=size(0),
        help="bytes of a project's repository and LFS objects together; 0 is off",
    )
    lfs_limit: int = option(default=5 * 2**30, metadata=size(), help="bytes of one LFS object")
