"""All commands of `forgelet`, by name, with the module that has each."""

import click

from forgelet.frame import Command, Group, Lazy, answer


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete `forgelet` on the Tab key.

    For this session, run eval "$(forgelet completion bash)", or in fish: forgelet completion fish | source. To keep
    it, put that line into ~/.bashrc or ~/.zshrc, or for fish into ~/.config/fish/config.fish.
    """
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    script = completion_class(context.find_root().command, {}, "forgelet", "_FORGELET_COMPLETE").source()
    answer({"shell": shell, "script": script}, script)


#: Commands by name, with the first sentence of each one's help.
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
        "Write a backup of the whole instance to FILE, or to standard output if FILE is `-`.",
    ),
    "completion": Lazy(
        "forgelet.command_line:completion",
        "Print a script that makes SHELL complete `forgelet` on the Tab key.",
    ),
    "config": Lazy("forgelet.commands.config:config", "Settings of both processes."),
    "delivery": Lazy("forgelet.commands.outgoing:delivery", "Deliveries to external status checks."),
    "doctor": Lazy(
        "forgelet.doctor.examination:doctor",
        "Check everything that the service needs, and print one line for each check: what is wrong and what to "
        "do.",
    ),
    "edge": Lazy(
        "forgelet.commands.edge:edge",
        "Run a storage edge, or ask the running ones: `edge status`, `edge list`, `edge purge`.",
    ),
    "identity-key": Lazy(
        "forgelet.commands.identity_keys:identity_key", "Keys that sign the identity tokens of jobs."
    ),
    "jobs": Lazy("forgelet.commands.housekeeping:jobs", "Jobs: remove the logs and artifacts of old ones."),
    "migrate": Lazy(
        "forgelet.commands.database:migrate",
        "Migrate the database to this version's schema, as its owner, so that a role that owns nothing can "
        "serve.",
    ),
    "mirror": Lazy("forgelet.commands.outgoing:mirror", "Push mirrors of all projects."),
    "repository": Lazy("forgelet.commands.housekeeping:repository", "Repositories: check and pack them."),
    "restore": Lazy(
        "forgelet.commands.backup:restore_command",
        "Restore the backup FILE (`-` is standard input) into an empty folder, with which `forgelet up` then "
        "continues.",
    ),
    "runner": Lazy("forgelet.commands.accounts:runner", "Runners: the programs that execute jobs."),
    "store": Lazy(
        "forgelet.commands.housekeeping:store", "Stored objects: logs, artifacts and files of Git LFS."
    ),
    "task": Lazy(
        "forgelet.commands.database:task", "Background tasks that wait, run, or have failed permanently."
    ),
    "token": Lazy(
        "forgelet.commands.accounts:token", "Personal access tokens, with which programs sign in as a user."
    ),
    "up": Lazy(
        "forgelet.commands.up:up",
        "Run forgelet on this machine until Ctrl-C: PostgreSQL, API server and storage edge, with demo data.",
    ),
    "user": Lazy("forgelet.commands.accounts:user", "Accounts: create, set the password, block and unblock."),
    "worker": Lazy(
        "api_server.__main__:worker",
        "Run only the API server's background work: deliveries, mirrors, mail, purges, clean-up.",
    ),
}


@click.group(cls=Group, lazy=COMMANDS)
@click.version_option(package_name="forgelet", message="%(package)s %(version)s")
def forgelet() -> None:
    """Run and maintain a small source-hosting and CI service with a storage edge.

    Commands find the service that `forgelet up` runs on this machine. If several run, or for a stopped one, name its
    folder with --data-dir or FORGELET_DATA_DIR. If the server's own settings are given (FORGELET_API_DATABASE_URL and
    FORGELET_API_DATA_DIR, or the file that FORGELET_SETTINGS names), commands use that server.

    Exit status: 0 means done without problems. 1 means that something is wrong or has failed. 2 means invalid input
    or an unusable service; nothing was changed.
    """
