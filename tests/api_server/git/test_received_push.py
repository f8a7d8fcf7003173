"""The head of a push request, read piece by piece."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.git.received_push import (
    MalformedPushError,
    Push,
    PushParser,
    RefUpdate,
    Verdict,
    refusal_of,
    refused_names,
    refused_refs,
)

SHAS = st.text("0123456789abcdef", min_size=40, max_size=40)
REFS = st.from_regex(r"refs/(heads|tags)/[^\x00-\x20\x7f\ud800-\udfff]{1,40}", fullmatch=True)
UPDATES = st.lists(st.builds(RefUpdate, SHAS, SHAS, REFS), max_size=8)
OPTIONS = st.lists(st.from_regex(r"[a-z.=]{1,20}", fullmatch=True), max_size=3)


def packet(line: bytes) -> bytes:
    return b"%04x%s" % (len(line) + 4, line)


def request(updates: list[RefUpdate], options: list[str], shallow: list[str]) -> bytes:
    """A request's head as git writes it."""
    lines = [f"shallow {sha}".encode() for sha in shallow]
    for n, update in enumerate(updates):
        capabilities = b"\0 report-status-v2 push-options agent=git/2" if n == 0 else b""
        lines.append(f"{update.old} {update.new} {update.ref}".encode() + capabilities + b"\n")
    head = b"".join(map(packet, lines)) + b"0000"
    return head + b"".join(packet(o.encode()) for o in options) + b"0000" if updates else head


@given(UPDATES, OPTIONS, st.lists(SHAS, max_size=2), st.binary(max_size=30), st.data())
def test_what_git_writes_is_read_however_it_is_cut(updates, options, shallow, pack, data) -> None:
    head = request(updates, options, shallow)
    body = head + pack
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    parser = PushParser()
    taken = b""
    for piece in pieces:
        taken += piece
        if parser.feed(piece):
            break
    assert parser.updates == updates
    assert parser.options == (options if updates else [])
    assert bytes(parser.received) == taken
    assert len(taken) >= len(head)


@given(UPDATES, OPTIONS, st.data())
def test_a_head_cut_short_is_never_complete(updates, options, data) -> None:
    head = request(updates, options, [])
    assert not PushParser().feed(head[: data.draw(st.integers(0, len(head) - 1))])


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waits_for_more_and_never_fails_otherwise(garbage: bytes) -> None:
    parser = PushParser()
    try:
        parser.feed(garbage)
    except MalformedPushError:
        return
    assert len(parser.updates) * 83 <= len(garbage)


@pytest.mark.parametrize(
    "line",
    [
        b"push-cert\0report-status",
        b"",
        b"refs/heads/main",
        b"%s %s " % (b"0" * 40, b"1" * 40),
        b"%s %s refs/heads/main" % (b"A" * 40, b"1" * 40),
        b"shallow short",
    ],
)
def test_a_line_that_is_no_ref_update_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedPushError):
        PushParser().feed(packet(line))


@pytest.mark.parametrize(
    "commands", [b"", request([RefUpdate("0" * 40, "1" * 40, "refs/heads/x")], [], [])[:-4]]
)
@pytest.mark.parametrize("length", [b"0001", b"0002", b"0003", b"0004", b"xyz0", b" 012", b"+123"])
def test_an_impossible_packet_length_is_refused(commands: bytes, length: bytes) -> None:
    """Among the commands and among the options, which follow them."""
    parser = PushParser()
    assert not parser.feed(commands)
    with pytest.raises(MalformedPushError):
        parser.feed(length)


def test_the_number_of_updates_is_bounded() -> None:
    line = packet(b"%s %s refs/heads/%s" % (b"0" * 40, b"1" * 40, b"x" * 60_000))
    parser = PushParser()
    with pytest.raises(MalformedPushError, match="too many"):
        parser.feed(line * 1000)


@pytest.mark.parametrize(
    ("update", "refusal"),
    [
        (RefUpdate("0" * 40, "1" * 40, "refs/heads/\udcff"), "not a valid name"),
        (RefUpdate("0" * 40, "1" * 40, "HEAD..x"), "not a valid name"),
        (RefUpdate("0" * 40, "1" * 40, "refs/keep-around/x"), "kept by the server"),
        (RefUpdate("0" * 40, "1" * 40, f"refs/tags/{'a' * 40}"), "not a valid name"),
        (RefUpdate("0" * 40, "1" * 40, "refs/heads/HEAD"), "not a valid name"),
        (RefUpdate("0" * 40, "1" * 40, "HEAD"), "not a valid name"),
        (RefUpdate("1" * 40, "0" * 40, "refs/heads/HEAD"), None),
        (RefUpdate("2" * 40, "1" * 40, "refs/heads/refs/heads/main"), None),
        (RefUpdate("0" * 40, "1" * 40, "refs/notes/HEAD"), None),
        (RefUpdate("1" * 40, "0" * 40, "refs/heads/main"), "not allowed to delete"),
        (RefUpdate("0" * 40, "1" * 40, "refs/heads/main"), None),
        (RefUpdate("2" * 40, "1" * 40, "refs/heads/main"), None),
    ],
)
def test_a_push_is_refused_for_its_refs(update: RefUpdate, refusal: str | None) -> None:
    push, verdict = Push((update,)), Verdict(fast_forward_only=frozenset({"refs/heads/main"}))
    refused = refused_names(push) | refused_refs(push, verdict)
    found = refusal_of(push, verdict, refused)
    assert found is None if refusal is None else refusal in (found or "")
    assert refused == ({} if refusal is None else {update.ref: found})
