"""The built-in runner of a `forgelet up`: on the option `--runner`, from when the service is ready."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forgelet.local.processes import CannotStart
from forgelet.local.supervisor import Forgelet

if TYPE_CHECKING:
    from forgelet.runner.rules import Rules

#: What `--runner` is given without a file; on as a variable.
PLAYS_ALL = "1"
runner_option = click.option(
    "--runner",
    is_flag=False,
    flag_value=PLAYS_ALL,
    metavar="[RULES]",
    show_envvar=True,
    help="Play the jobs of pipelines without executing them, as the file RULES says: by default all succeed.",
)
_TOKEN = "built-in-runner-token"
#: What a server for tests takes for all tags; others have jobs without tags played.
_ALL_TAGS = "*"


def rules_of(option: str | None) -> "Rules | None":
    """None where there is to be no runner. Raises `Mistake`."""
    if option is None:
        return None
    from forgelet.runner.rules import Rules, read_rules  # what is not wanted costs the start nothing

    return Rules() if option == PLAYS_ALL else read_rules(Path(option))


@contextlib.contextmanager
def playing(forgelet: Forgelet, rules: "Rules") -> Iterator[None]:
    """For the length of the block. Raises `CannotStart`."""
    from forgelet.runner.built_in import BuiltInRunner
    from forgelet.runner.protocol import Gone, Unreachable

    data, api = forgelet.plan.data, forgelet.api()
    runner = BuiltInRunner(
        api.base_url,
        rules,
        root_token=api.token,
        tags=[_ALL_TAGS] if forgelet.plan.testing else [],
        recall=lambda: data.read_secret(_TOKEN),
        remember=lambda token: data.write_secret(_TOKEN, token),
    )
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(runner.working())
        except (Gone, Unreachable) as problem:
            raise CannotStart(f"The built-in runner cannot be registered: {problem}") from None
        yield
