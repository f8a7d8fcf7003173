"""Backups that tests make of a running server, and restores of them."""

import asyncio
import datetime
import io

from forgelet.backup.backing_up import BackedUp, Progress, back_up
from forgelet.backup.contents import Places
from forgelet.backup.restoring import Restored, check_is_empty, restore
from tests.support.forge import Forge

PASSPHRASE = "correct horse battery staple"
NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)


def quiet(*_: object) -> None:
    """Ignore progress."""


def places_of(forge: Forge) -> Places:
    return Places(forge.settings.database_url, forge.settings.data_dir)


async def backed_up(forge: Forge, progress: Progress = quiet) -> tuple[bytes, BackedUp]:
    stream = io.BytesIO()
    made = await asyncio.to_thread(back_up, places_of(forge), PASSPHRASE, stream, NOW, progress)
    return stream.getvalue(), made


def restored(places: Places, text: bytes, passphrase: str = PASSPHRASE) -> Restored:
    check_is_empty(places)
    return restore(places, passphrase, io.BytesIO(text), quiet)
