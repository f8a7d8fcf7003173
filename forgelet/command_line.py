"""All commands of `forgelet`, by name, with the module that has each."""

import click

from forgelet.frame import Command, Group, Lazy, answer


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete commands on Tab.

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
        "Run the API server, with git over HTTP and the admin area.",
    ),
    "audit": Lazy(
        "forgelet.commands.audit:audit",
        "Verify the audit trail, export its events, remove old ones.",
    ),
    "backup": Lazy(
        "forgelet.commands.backup:backup_command",
        "Write a backup of the whole instance to FILE.",
    ),
    "completion": Lazy(
        "forgelet.command_line:completion",
        "Print a script that makes SHELL complete commands on Tab.",
    ),
    "config": Lazy("forgelet.commands.config:config", "Show the settings of both processes."),
    "delivery": Lazy(
        "forgelet.commands.outgoing:delivery", "List deliveries to external status checks, and retry them."
    ),
    "doctor": Lazy(
        "forgelet.doctor.examination:doctor",
        "Check everything that the service needs.",
    ),
    "edge": Lazy(
        "forgelet.commands.edge:edge",
        "Run a storage edge, or manage the running ones.",
    ),
    "identity-key": Lazy(
        "forgelet.commands.identity_keys:identity_key", "List and rotate the keys that sign identity tokens."
    ),
    "jobs": Lazy("forgelet.commands.housekeeping:jobs", "Remove the logs and artifacts of old jobs."),
    "migrate": Lazy(
        "forgelet.commands.database:migrate",
        "Migrate the database to this version's schema.",
    ),
    "mirror": Lazy(
        "forgelet.commands.outgoing:mirror", "List the push mirrors of all projects, and run them."
    ),
    "repository": Lazy("forgelet.commands.housekeeping:repository", "Check and pack repositories."),
    "restore": Lazy(
        "forgelet.commands.backup:restore_command",
        "Restore the backup FILE into an empty folder.",
    ),
    "runner": Lazy("forgelet.commands.accounts:runner", "Create runners, the programs that execute jobs."),
    "store": Lazy(
        "forgelet.commands.housekeeping:store", "Check and sweep stored logs, artifacts and LFS files."
    ),
    "task": Lazy("forgelet.commands.database:task", "List, retry and cancel background tasks."),
    "token": Lazy("forgelet.commands.accounts:token", "Create, list and revoke personal access tokens."),
    "up": Lazy(
        "forgelet.commands.up:up",
        "Run forgelet on this machine until Ctrl-C, with demo data.",
    ),
    "user": Lazy(
        "forgelet.commands.accounts:user", "Create, list and block accounts, and let people sign in."
    ),
    "worker": Lazy(
        "api_server.__main__:worker",
        "Run the background work of API servers in its own process.",
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
