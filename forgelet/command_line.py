"""`forgelet`: all commands by their names, and where they are."""

import click

from forgelet.frame import Group

#: What an operator does beside the running servers; each is imported when it is wanted.
COMMANDS = {
    "api": "api_server.__main__:main",
    "audit": "forgelet.commands.audit:audit",
    "backup": "forgelet.commands.backup:backup_command",
    "completion": "forgelet.commands.completion:completion",
    "config": "forgelet.commands.config:config",
    "delivery": "forgelet.commands.outgoing:delivery",
    "doctor": "forgelet.commands.doctor:doctor",
    "edge": "forgelet.commands.edge:edge",
    "jobs": "forgelet.commands.jobs:jobs",
    "migrate": "forgelet.commands.migrate:migrate",
    "mirror": "forgelet.commands.outgoing:mirror",
    "repository": "forgelet.commands.repository:repository",
    "restore": "forgelet.commands.restore:restore_command",
    "runner": "forgelet.commands.runners:runner",
    "store": "forgelet.commands.store:store",
    "task": "forgelet.commands.task:task",
    "token": "forgelet.commands.tokens:token",
    "up": "forgelet.local.up:up",
    "user": "forgelet.commands.users:user",
    "worker": "api_server.__main__:worker",
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
