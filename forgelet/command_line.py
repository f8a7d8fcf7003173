"""`forgelet`: all commands by their names, and where they are."""

import click

from forgelet.frame import Command, Group, Lazy, answer


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Prints what makes SHELL complete `forgelet` on the Tab key.

    For this session: eval "$(forgelet completion bash)"; fish: forgelet completion fish | source. For good: put that
    line into ~/.bashrc or ~/.zshrc; fish: into ~/.config/fish/config.fish.
    """
    from click.shell_completion import get_completion_class

    wanted = get_completion_class(shell)
    assert wanted is not None
    script = wanted(context.find_root().command, {}, "forgelet", "_FORGELET_COMPLETE").source()
    answer({"shell": shell, "script": script}, script)


#: What an operator does beside the running servers, by name; the sentences are those of the commands themselves.
COMMANDS = {
    "api": Lazy(
        "api_server.__main__:main",
        "The API server: GitLab's /api/v4, git over HTTP, static objects, the admin area.",
    ),
    "audit": Lazy(
        "forgelet.commands.audit:audit",
        "The audit trail: verify its chain, export events, remove old months.",
    ),
    "backup": Lazy(
        "forgelet.commands.backup:backup_command",
        "Writes a backup of the whole instance to FILE, or to standard output where that is `-`.",
    ),
    "completion": Lazy(
        "forgelet.command_line:completion",
        "Prints what makes SHELL complete `forgelet` on the Tab key.",
    ),
    "config": Lazy("forgelet.commands.config:config", "Settings of both processes."),
    "delivery": Lazy("forgelet.commands.outgoing:delivery", "Deliveries to external status checks."),
    "doctor": Lazy(
        "forgelet.doctor.examination:doctor",
        "Looks at everything that the service needs, and says in a line each what is wrong and what to do.",
    ),
    "edge": Lazy(
        "forgelet.commands.edge:edge",
        "Runs a storage edge; or asks those that run: `edge status`, `edge list`, `edge purge`.",
    ),
    "jobs": Lazy("forgelet.commands.housekeeping:jobs", "Jobs: remove the logs and artifacts of old ones."),
    "migrate": Lazy(
        "forgelet.commands.database:migrate",
        "Brings the database to this version's schema, as its owner, so that a role that owns nothing can serve.",
    ),
    "mirror": Lazy("forgelet.commands.outgoing:mirror", "Push mirrors of all projects."),
    "repository": Lazy(
        "forgelet.commands.housekeeping:repository", "Repositories: whether they are whole, and packing them."
    ),
    "restore": Lazy(
        "forgelet.commands.backup:restore_command",
        "Restores the backup FILE (`-` is standard input) into an empty folder, so that `forgelet up` goes on"
        " from there.",
    ),
    "runner": Lazy("forgelet.commands.accounts:runner", "Runners: the programs that execute jobs."),
    "store": Lazy(
        "forgelet.commands.housekeeping:store", "Stored objects: logs, artifacts and files of Git LFS."
    ),
    "task": Lazy(
        "forgelet.commands.database:task", "Background tasks: what waits, is at work, or has failed for good."
    ),
    "token": Lazy(
        "forgelet.commands.accounts:token", "Personal access tokens, with which programs sign in as a user."
    ),
    "up": Lazy(
        "forgelet.commands.up:up",
        "Runs forgelet on this machine until Ctrl-C: PostgreSQL, API server and storage edge, with demo data.",
    ),
    "user": Lazy(
        "forgelet.commands.accounts:user", "Accounts: make one, set its password, block and unblock it."
    ),
    "worker": Lazy(
        "api_server.__main__:worker",
        "The API server's background work alone: deliveries, mirrors, mail, purges, clearing up.",
    ),
}


@click.group(cls=Group, lazy=COMMANDS)
@click.version_option(package_name="forgelet", message="%(package)s %(version)s")
def forgelet() -> None:
    """A small source-hosting and CI service with a storage edge: runs it, and takes care of it.

    Commands find the service that `forgelet up` runs on this machine. Of several, and of one that is stopped,
    --data-dir or FORGELET_DATA_DIR names the folder. Where the server's own settings are given, by
    FORGELET_API_DATABASE_URL and FORGELET_API_DATA_DIR or the file that FORGELET_SETTINGS names, it is that server.

    Exit status: 0 is done and nothing wrong; 1 is that something is wrong or has failed; 2 is a mistake in what was
    given, or a service that cannot be used: nothing was done.
    """
