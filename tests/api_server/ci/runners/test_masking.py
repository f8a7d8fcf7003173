"""Secrets are hidden in logs, wherever the log is cut into pieces."""

from hypothesis import given
from hypothesis import strategies as some

from api_server.ci.jobs.logs.masking import mask

letters = some.binary(max_size=12).map(lambda text: bytes(97 + byte % 3 for byte in text))


@given(some.lists(letters, max_size=8), some.lists(letters, max_size=3))
def test_the_result_does_not_depend_on_where_the_log_is_cut(
    pieces: list[bytes], secrets: list[bytes]
) -> None:
    stored, held = b"", b""
    for piece in pieces:
        done, held = mask(held + piece, secrets)
        stored += done
    whole, rest = mask(b"".join(pieces), secrets)
    assert (stored, held) == (whole, rest)


@given(letters, some.lists(letters, max_size=3))
def test_offsets_stay_and_no_secret_is_left(text: bytes, secrets: list[bytes]) -> None:
    done, held = mask(text, secrets)
    assert len(done) + len(held) == len(text)
    assert text.endswith(held)
    assert not any(secret in done for secret in secrets if secret)
    assert not held or any(secret.startswith(held) and secret != held for secret in secrets)


def test_a_secret_becomes_as_many_x() -> None:
    assert mask(b"token=s3cret!\n", [b"s3cret"]) == (b"token=xxxxxx!\n", b"")


def test_an_end_that_may_be_a_beginning_is_held_back() -> None:
    assert mask(b"token=s3c", [b"s3cret"]) == (b"token=", b"s3c")


def test_without_secrets_nothing_is_held() -> None:
    assert mask(b"abc", []) == (b"abc", b"")


def test_a_piece_full_of_secrets_is_masked() -> None:
    stored, held = mask(b"s3cret12 " * 29_000, [b"s3cret12", b"k" * 2000])
    assert (stored, held) == (b"xxxxxxxx " * 29_000, b"")
