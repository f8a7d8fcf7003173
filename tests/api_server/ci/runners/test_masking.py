"""Secrets are hidden in logs, wherever the log is cut into pieces."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as some

from api_server.ci.jobs.logs import MAX_SECRETS, mask

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


def test_of_two_secrets_that_begin_in_one_place_the_longest_is_hidden() -> None:
    assert mask(b"abcdef", [b"abc", b"abcde", b"bcdef"]) == (b"xxxxxf", b"")


@pytest.mark.parametrize(
    "secrets",
    [
        [b"bbbbbbbb", b"a" * 9_990 + b"00000000"],
        [b"bbbbbbbb", b"fljob-cccccccc", b"a" * 60_000 + b"00000000"],
        [b"a" * 9_990 + b"%08d" % number for number in range(13)],
        [b"a" * MAX_SECRETS],
        [b"%08d" % number for number in range(MAX_SECRETS // 8)],
    ],
    ids=["two", "three", "thirteen", "one as long as all", "many"],
)
@pytest.mark.parametrize("text", [b"a" * 2**17, b"a" * (2**17 - 1) + b"b", b"12345678" * 2**14])
def test_the_hardest_logs_and_secrets_take_milliseconds(text: bytes, secrets: list[bytes]) -> None:
    began = time.thread_time()
    done, held = mask(text, secrets)
    # by the processor's clock; a twentieth of it is usual, minutes were
    assert time.thread_time() - began < 0.1
    assert len(done) + len(held) == len(text)
    assert not any(secret in done for secret in secrets)


def test_an_end_that_would_take_long_to_compare_is_held_back_until_more_has_come() -> None:
    secret = b"a" * 9_990 + b"0"
    text = b"a" * 20_000 + b"b"
    done, held = mask(text, [secret])
    assert done + held == text
    assert 0 < len(held) < len(secret)
    more = b"done\n" * 2_000
    assert mask(held + more, [secret]) == (held + more, b"")
