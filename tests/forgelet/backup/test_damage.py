"""What is broken, cut off, strange or newer is told as such, and leaves nothing behind."""

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from api_server.audit.chain import HEADS_FOLDER
from api_server.state import secrets
from common.mistakes import Mistake
from forgelet.backup.backing_up import back_up
from forgelet.backup.contents import Places
from forgelet.backup.form import HEADER, MANIFEST, Seal, verify
from tests.support.database_roles import as_role

from .backups import NOW, PASSPHRASE, quiet, restored


@pytest.fixture(scope="module")
def text(new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A backup of an instance with a repository and an object that rows name."""
    places = Places(new_database(), tmp_path_factory.mktemp("small"))
    secrets.ensure_key(places.database_url, places.data_dir)
    head = places.data_dir / f"objects/{HEADS_FOLDER}/{0:019}-{0:064}"
    head.parent.mkdir(parents=True)
    head.write_text("a head of the audit trail, longer than a block\n" * 100)
    stream = io.BytesIO()
    back_up(places, PASSPHRASE, stream, NOW, quiet)
    return stream.getvalue()


def changed(text: bytes, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """With the content of members that `change(name, content)` gives; None leaves one out."""
    written = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(text)) as old, tarfile.open(fileobj=written, mode="w") as new:
        for entry in old:
            found = old.extractfile(entry)
            content = change(entry.name, found.read() if found is not None else b"")
            if content is not None:
                entry.size = len(content)
                new.addfile(entry, io.BytesIO(content))
    return written.getvalue()


def of_header(**values: Any) -> Callable[[str, bytes], bytes | None]:
    def change(name: str, content: bytes) -> bytes | None:
        return orjson.dumps(orjson.loads(content) | values) if name == "header.json" else content

    return change


def without(wanted: str) -> Callable[[str, bytes], bytes | None]:
    return lambda name, content: None if wanted in name else content


def with_settings_of_another(name: str, content: bytes) -> bytes:
    """Somebody has changed a table, and the digests to go with it, but has not the passphrase."""
    return content.replace(b'missing\\":[]', b'missing\\":[1]') if name == "manifest.json" else content


def with_member(name: str, **pax_headers: str) -> Callable[[bytes], bytes]:
    """With one more file behind the header."""

    def change(text: bytes) -> bytes:
        written = io.BytesIO()
        with tarfile.open(fileobj=io.BytesIO(text)) as old, tarfile.open(fileobj=written, mode="w") as new:
            for entry in old:
                new.addfile(entry, old.extractfile(entry))
                if entry.name == HEADER:
                    another = tarfile.TarInfo(name)
                    another.size, another.pax_headers = 1, pax_headers
                    new.addfile(another, io.BytesIO(b"x"))
        return written.getvalue()

    return change


def with_sealed(**files: str) -> Callable[[bytes], bytes]:
    """By somebody who has the passphrase."""

    def change(name: str, content: bytes) -> bytes | None:
        if name != HEADER:
            return content
        header = orjson.loads(content)
        header["sealed"] = Seal.again(PASSPHRASE, header["key"]).close({"files": files})
        return orjson.dumps(header)

    return lambda text: changed(text, change)


HUGE = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(10**13)}
MISTAKES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut off": (lambda text: text[: len(text) // 2], "The backup is cut off"),
    "without its end": (lambda text: changed(text, without("manifest")), "The backup is cut off"),
    "no backup": (lambda _: b"hello\n" * 1000, "This is no backup of forgelet"),
    "another tar": (lambda text: changed(text, without("header")), "This is no backup of forgelet"),
    "empty": (lambda _: b"", "This is no backup of forgelet"),
    "a table is gone": (lambda text: changed(text, without("remote_mirror_transitions")), "is damaged"),
    "changed by a stranger": (lambda text: changed(text, with_settings_of_another), "has not its passphrase"),
    "newer format": (lambda text: changed(text, of_header(format=2)), "The backup is of format 2"),
    "newer schema": (
        lambda text: changed(text, of_header(migrations=["9999_later"])),
        "its database has 9999_later",
    ),
    "out of its folder": (with_member("repositories/1/../../x"), "does not belong there"),
    "a file of ten terabytes of nothing": (with_member("repositories/1/x", **HUGE), "is no file"),
    "sizes that are none": (with_member("repositories/1/x", **{"GNU.sparse.map": "x"}), "is cut off"),
    "sealed files of somebody else": (
        with_sealed(**{"secret_key": "", "secrets/../../.ssh/authorized_keys": "x"}),
        "its sealed files are not those of an instance",
    ),
    "no secret key": (with_sealed(), "its sealed files are not those of an instance"),
    "absurd cost": (
        lambda text: changed(text, of_header(key={"name": "scrypt", "n": 2**40, "r": 8, "p": 1, "salt": ""})),
        "it does not say how its key is sealed",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(text: bytes, name: str) -> None:
    damage, sentence = MISTAKES[name]
    with pytest.raises(Mistake, match=sentence):
        verify(io.BytesIO(damage(text)), PASSPHRASE)


def test_every_changed_byte_of_a_part_is_found(text: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(text)) as tar:
        places = [(entry.name, entry.offset_data + entry.size // 2) for entry in tar if entry.size]
    assert len(places) > 5
    for name, place in places:
        broken = bytearray(text)
        broken[place] ^= 1
        with pytest.raises(Mistake):
            verify(io.BytesIO(broken), PASSPHRASE if name in (HEADER, MANIFEST) else None)


def test_another_passphrase_does_not_open_it(text: bytes) -> None:
    with pytest.raises(Mistake, match="The passphrase is not the one"):
        verify(io.BytesIO(text), "another one")
    assert verify(io.BytesIO(text), PASSPHRASE).passphrase_fits
    assert verify(io.BytesIO(text), None).passphrase_fits is None


def test_what_fails_at_the_very_end_leaves_nothing(text: bytes, empty: Places) -> None:
    with pytest.raises(Mistake, match="has not its passphrase"):
        restored(empty, changed(text, with_settings_of_another))
    assert not any(empty.data_dir.iterdir())
    with as_role(empty.database_url) as cursor:
        cursor.execute("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace")
        assert cursor.fetchone() == (0,)


def test_rows_that_do_not_fit_are_told_as_damage(text: bytes, empty: Places) -> None:
    def with_other_rows(name: str, content: bytes) -> bytes:
        return gzip.compress(b"x\ty\n") if name.endswith(".gz") else content

    with pytest.raises(Mistake, match=r"is damaged .rows of \w+ do not fit"):
        restored(empty, changed(text, with_other_rows))
    assert not any(empty.data_dir.iterdir())


@pytest.mark.parametrize("part", ["database/", "objects/"])
def test_what_breaks_off_within_a_part_is_said_in_one_sentence(text: bytes, empty: Places, part: str) -> None:
    with tarfile.open(fileobj=io.BytesIO(text)) as tar:
        found = max((one for one in tar if one.name.startswith(part)), key=lambda one: one.size)
    with pytest.raises(Mistake, match="The backup is cut off"):
        restored(empty, text[: found.offset_data + found.size // 2])
    assert not any(empty.data_dir.iterdir())


def test_what_is_not_empty_is_refused(text: bytes, empty: Places, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "a file").touch()
    with pytest.raises(Mistake, match="is not empty"):
        restored(Places(empty.database_url, full), text)
    with as_role(empty.database_url) as cursor:
        cursor.execute("CREATE TABLE strangers (id integer)")
    with pytest.raises(Mistake, match="The database is not empty"):
        restored(empty, text)
    with as_role(empty.database_url) as cursor:
        cursor.execute("DROP TABLE strangers")
    restored(empty, text)  # where nothing is any more
    with pytest.raises(Mistake, match="is not empty"):
        restored(empty, text)
