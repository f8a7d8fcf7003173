"""A mailbox, and a server that sends there, for tests of invitations by mail."""

from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.forge import Forge, running_forge
from tests.support.mailbox import Mailbox, running_mailbox


@pytest.fixture(scope="module")
async def mailbox(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mailbox]:
    folder = tmp_path_factory.mktemp("mailbox")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(folder / "mailbox.pem"))
        async with running_mailbox(folder) as running:
            yield running


@pytest.fixture(scope="module")
async def postal_forge(
    new_database: Callable[[], str], mailbox: Mailbox, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    """A server that sends its mail to `mailbox`."""
    data = tmp_path_factory.mktemp("postal")
    async with running_forge(
        new_database(), data, smtp_url=mailbox.url, mail_from="forge@example.org"
    ) as forge:
        yield forge
