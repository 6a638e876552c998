"""Signatures of webhooks and their keys (DSS-24 to DSS-26)."""

from __future__ import annotations

from base64 import urlsafe_b64decode

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from millpond.node.webhooks.keys import lease_tokens, webhook_key
from millpond.transports.http.webhooks.signature import WebhookKey, jwk_set

SEED = bytes(range(1, 33))
BODY = b'{"subscription_id":"s1","wake_id":"w_1","generation":1,"streams":[]}'
KID = "ds_WWpn_pfHui9YKR4CZtQsDGMu7_Gch2zYChfSvnxgtPk"
X = "ebVWLo_mVPlAeLES6KmLp5AfhTrmlb7X4OORC60ElmQ"
SIGNATURE = "ckEKVQ_k1K1c9cDD2t2YVgoZNe1FtqelKaV4hM2XJ9xR99JZcSg68FGC0_KBytNWpvpZ1OUrgLZIOCbsqztNBA"


def test_the_worked_example() -> None:
    key = WebhookKey(SEED)
    assert key.header(1795347000, BODY).decode() == f"t=1795347000,kid={KID},ed25519={SIGNATURE}"
    assert jwk_set([key]) == {
        "keys": [{"kty": "OKP", "crv": "Ed25519", "x": X, "kid": KID, "use": "sig", "alg": "EdDSA"}]
    }
    assert SEED.hex() not in repr(key)


def test_another_library_verifies_it() -> None:
    key = WebhookKey(SEED)
    signature = key.header(5, b"body").rpartition(b"=")[2]
    public = Ed25519PublicKey.from_public_bytes(urlsafe_b64decode(key.x + "="))
    public.verify(urlsafe_b64decode(signature + b"=="), b"5.body")


def test_keys_of_an_identity() -> None:
    kids = {webhook_key(SEED, number).kid for number in (1, 2)}
    kids.add(webhook_key(b"x" * 32, 1).kid)
    kids.add(WebhookKey(SEED).kid)
    assert len(kids) == 4 and webhook_key(SEED, 1).kid in kids
    token = lease_tokens(SEED).issue(b"id", b"n", 1, 0.0)
    assert lease_tokens(SEED).verify(b"id", b"n", token)
    assert lease_tokens(b"x" * 32).verify(b"id", b"n", token) is None
