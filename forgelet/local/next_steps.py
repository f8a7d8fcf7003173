"""What `forgelet up` says when everything runs: to people, and to programs."""

import datetime
import shutil
import sys
from importlib import metadata
from pathlib import Path
from shlex import quote

from forgelet.local import demo_data
from forgelet.local.api_client import Api, ApiError
from forgelet.local.data_directory import CHECKOUT, TOKEN_SHOWN
from forgelet.local.supervisor import Plan


def places_of(plan: Plan) -> dict[str, str | None]:
    """What a program has to know of the service that runs."""
    return {
        "api_url": plan.addresses.external_url,
        "edge_url": plan.addresses.external_edge_url,
        "root_token_file": str(plan.data.secret_file("root-token")),
        "data_dir": str(plan.data.path),
    }


def facts_of(plan: Plan) -> dict[str, str | None]:
    """What stands in the ready file."""
    return {
        "url": plan.addresses.external_url,
        "api_url": f"{plan.addresses.external_url}/api/v4",
        "edge_url": plan.addresses.external_edge_url,
        "root_token": plan.data.read_secret("root-token"),
        "data_dir": str(plan.data.path),
        "version": metadata.version("forgelet"),
    }


def what_next(plan: Plan, administrator: Api, *, with_demo: bool) -> str:
    """The text at the end: addresses, the administrator's token the first time, commands to paste."""
    if plan.testing:
        return for_testers(plan)
    token = f"in {plan.data.secret_file('root-token')}"
    if plan.data.recall(TOKEN_SHOWN) is None:
        token = f"{plan.data.read_secret('root-token')}  (shown this once)"
        plan.data.remember(TOKEN_SHOWN, "yes")
    lines = [
        "",
        *_how_to_sign_in(plan, administrator),
        f"  Pages          {plan.addresses.external_url}",
        f"  API server     {plan.addresses.external_url}/api/v4",
        f"  Storage edge   {plan.addresses.external_edge_url or 'not running (--no-edge)'}",
        f"  Administrator  root, token {token}",
        "                 replace it with --root-token-file FILE",
        f"  Data and logs  {plan.data.path}",
        "",
        *commands_to_try(plan, with_demo=with_demo),
        "",
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)


def own_command() -> str:
    """How this `forgelet` is called from the present folder, in a shell."""
    if CHECKOUT is not None:
        program = CHECKOUT / "scripts" / "forgelet"
        here = Path.cwd()
        return quote(str(program.relative_to(here) if program.is_relative_to(here) else program))
    installed = Path(sys.executable).with_name("forgelet")
    found = shutil.which("forgelet")
    return "forgelet" if found and Path(found).resolve() == installed.resolve() else quote(str(installed))


def _how_to_sign_in(plan: Plan, administrator: Api) -> list[str]:
    from api_server.accounts import sign_in_links
    from api_server.state.secrets import open_vault

    try:
        root = administrator.get(f"users/{administrator.get('user')['id']}")
    except ApiError:  # not an administrator's token, perhaps
        return []
    vault, now = open_vault(plan.data.part("api")), datetime.datetime.now(datetime.UTC)
    token = sign_in_links.new_token(vault, root["id"], root["sign_in_count"], now)
    command, username = own_command(), quote(root["username"])
    return [
        f"  Open           {plan.addresses.external_url}/-/sign_in/{token}",
        f"                 signs in as {username}, once, within 15 minutes. For another link, or for a password:",
        f"                 {command} user sign-in-link {username}",
        f"                 {command} user password {username}",
    ]


def for_testers(plan: Plan) -> str:
    """The same of a server for tests: its token is nobody's secret, and commands show what only such a server does."""
    token = plan.data.read_secret("root-token")
    return "\n".join(
        [
            "",
            f"  url            {plan.addresses.external_url}",
            f"  api_url        {plan.addresses.external_url}/api/v4",
            f"  edge_url       {plan.addresses.external_edge_url or 'null (--no-edge)'}",
            f"  root_token     {token}",
            f"  data_dir       {plan.data.path}",
            "",
            "Programs find this in the file that --ready-file names. Try:",
            f"  curl -H 'PRIVATE-TOKEN: {token}' -d name=first {plan.addresses.external_url}/api/v4/projects",
            "",
            "  # what was asked and answered; then as it was after the start",
            f"  curl {plan.addresses.external_url}/-/testing/requests",
            f"  curl -X POST {plan.addresses.external_url}/-/testing/reset",
            "",
            "Ctrl-C stops everything, and nothing of it is left.",
        ]
    )


def commands_to_try(plan: Plan, *, with_demo: bool) -> list[str]:
    """Commands that work as they stand in any shell and folder."""
    api, raw = plan.addresses.external_url, plan.addresses.external_edge_url or plan.addresses.external_url
    if not with_demo:
        return [
            "Try:",
            f"  curl -H {_header(plan, 'root')} {api}/api/v4/user",
            f"  curl -H {_header(plan, 'root')} -d name=first -d visibility=public {api}/api/v4/projects",
        ]
    store = f"store --file={quote(str(plan.data.secret_file('git-credentials')))}"
    public, private = demo_data.PUBLIC.full_path, demo_data.PRIVATE.full_path
    return [
        f"Users {', '.join(demo_data.USERS)}: tokens in {plan.data.part('secrets')}. Try:",
        "",
        "  # clone, commit, push",
        f'  cd "$(mktemp -d)" && git clone -c credential.helper={quote(store)} \\',
        f"    {api.replace('://', '://alice@')}/{public}.git try && cd try &&",
        '    git switch -c "$(mktemp -u try-XXXXXX)" &&',
        "    git -c user.name=alice -c user.email=alice@example.org commit --allow-empty -m 'Try it' &&",
        "    git push -u origin HEAD",
        "",
        "  # a file of the public project; the second answer comes from the edge's cache, see Cache-Status",
        f"  curl -i {raw}/{public}/-/raw/{demo_data.BRANCH}/README.md",
        "",
        "  # a file of the private project: refused without a token, redirected to the edge with one",
        f"  curl -L -H {_header(plan, 'alice')} {api}/{private}/-/raw/{demo_data.BRANCH}/README.md",
        "",
        "  # the API",
        f"  curl -H {_header(plan, 'alice')} {api}/api/v4/projects",
        f"  curl -H {_header(plan, 'alice')} {api}/api/v4/projects/{private.replace('/', '%2F')}/jobs",
    ]


def _header(plan: Plan, username: str) -> str:
    file = plan.data.secret_file(demo_data.token_name(username))
    return f'"PRIVATE-TOKEN: $(cat {quote(str(file))})"'
