"""Signatures of deliveries, in both forms."""

import base64
import datetime
import hmac
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from api_server.status_checks.attempts import signature_headers

NOW = 1_700_000_000


def headers_of(secret: str | None, body: bytes = b"{}", timestamp: int = NOW) -> dict[str, str]:
    return signature_headers(body, webhook_id="m-1", timestamp=timestamp, secret=secret)


def test_the_plain_form_is_the_hex_hmac_of_the_body_as_gitlab_makes_it() -> None:
    signature = "6c52a647de5847fc387ead12919dc6a5b9ed08e9538583c83da266d958e33aec"
    assert headers_of("shared_secret")["X-Service-Signature"] == signature


def test_without_a_secret_nothing_is_signed() -> None:
    assert headers_of(None) == {"webhook-id": "m-1", "webhook-timestamp": str(NOW)}


@given(secret=st.text(min_size=1, max_size=255).filter(lambda text: not text.startswith("whsec_")))
def test_the_standard_webhooks_library_makes_the_same_signature_with_the_secrets_bytes(secret: str) -> None:
    moment = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    theirs = Webhook(secret.encode()).sign("m-1", moment, "{}")
    assert headers_of(secret)["webhook-signature"] == theirs


def test_a_secret_in_the_libraries_own_form_spells_the_key() -> None:
    secret = "whsec_" + base64.b64encode(b"k" * 24).decode()
    moment = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    assert headers_of(secret)["webhook-signature"] == Webhook(secret).sign("m-1", moment, "{}")
    # GitLab's header knows no spelled keys: it is keyed with the secret as it stands
    ours = hmac.digest(secret.encode(), b"{}", "sha256").hex()
    assert headers_of(secret)["X-Service-Signature"] == ours


def test_what_only_looks_like_that_form_is_a_secret_like_any_other() -> None:
    moment = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    theirs = Webhook(b"whsec_not base64!").sign("m-1", moment, "{}")
    assert headers_of("whsec_not base64!")["webhook-signature"] == theirs


def test_the_library_accepts_ours_while_it_is_new_and_refuses_it_later() -> None:
    webhook = Webhook(b"secret")
    assert webhook.verify(b"{}", headers_of("secret", timestamp=int(time.time()))) == {}
    with pytest.raises(WebhookVerificationError):
        webhook.verify(b"{}", headers_of("secret", timestamp=int(time.time()) - 3600))
