"""What can go wrong with a remote repository; the texts are for the user and free of credentials."""

import re


class RemoteError(Exception):
    """Git could not do it."""


class RemoteTimeoutError(RemoteError):
    """The time limit was over; git and all that it had started were killed."""


class AuthenticationFailedError(RemoteError):
    """The target refuses the credentials, or wants some where there are none."""


class HostKeyRefusedError(RemoteError):
    """The SSH server's key is not one of the expected keys."""


#: What git and ssh say, in the C locale.
_KINDS: tuple[tuple[re.Pattern[str], type[RemoteError]], ...] = (
    (re.compile(r"Host key verification failed|HOST IDENTIFICATION HAS CHANGED"), HostKeyRefusedError),
    (
        re.compile(
            r"Authentication failed|could not read (?:Username|Password)|Permission denied \("
            r"|requested URL returned error: 40[13]"
        ),
        AuthenticationFailedError,
    ),
)


def remote_error(failure: str, said: str) -> RemoteError:
    """The error for what git `said` when it failed with what the sentence `failure` names."""
    kind = next((kind for pattern, kind in _KINDS if pattern.search(said)), RemoteError)
    return kind(f"{failure}: {said or 'git gave no reason'}")
