"""Where to restore to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forgelet.backup import sealing
from forgelet.backup.places import Places
from forgelet.local.embedded_postgres import Cluster
from tests.support.database_roles import as_role
from tests.support.forge import new_name


@pytest.fixture(scope="module", autouse=True)
def cheap_passphrases() -> Iterator[None]:
    """To try one takes a third of a second else, which is meant."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sealing._COST, "n", 2**10)
        yield


@pytest.fixture
def empty(postgres: Cluster, tmp_path: Path) -> Iterator[Places]:
    """An empty database, and a folder that is not there yet."""
    name = new_name("restored").replace("-", "_")
    with as_role(postgres.url()) as owner:
        owner.execute(f"CREATE DATABASE {name}")
    yield Places(postgres.url(name), tmp_path / "restored")
    with as_role(postgres.url()) as owner:
        owner.execute(f"DROP DATABASE {name} WITH (FORCE)")
