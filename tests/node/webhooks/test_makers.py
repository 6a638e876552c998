"""Makers of subscriptions: their rights of today, and their credentials at rest."""

from __future__ import annotations

import msgspec

from millpond.actors.subscriptions.messages import Maker
from millpond.actors.subscriptions.subscription import StoredConfig
from millpond.node.webhooks.makers import Makers, Scope
from millpond.transports.server.interface import Principal
from tests.actors.subscriptions.harness import HOOK

CLIENT = Principal(b"secret token", b"k" * 32, "10.0.0.7", "http", b"c" * 32)


def test_the_scope_is_that_of_the_client_today() -> None:
    asked: list[Principal] = []
    scopes: list[Scope] = [("a/*",), None, ()]

    def scope(principal: Principal) -> Scope:
        asked.append(principal)
        return scopes[len(asked) - 1]

    makers = Makers(b"s" * 32, scope)
    maker = Maker("http://node", ("old",), makers.credentials(CLIENT))
    assert [makers.scope_of(maker) for _ in scopes] == scopes
    assert asked == [CLIENT] * 3
    # A node that was started again has the same key.
    asked.clear()
    assert Makers(b"s" * 32, scope).scope_of(maker) == ("a/*",) and asked == [CLIENT]


def test_a_token_is_not_stored_in_clear_and_another_identity_opens_nothing() -> None:
    makers = Makers(b"s" * 32, lambda principal: None)
    sealed = makers.credentials(CLIENT)
    assert b"secret" not in sealed and b"10.0.0.7" not in sealed
    assert makers.credentials(CLIENT) == sealed, "a client that puts it again changes nothing"
    other = Makers(b"t" * 32, lambda principal: None)
    assert other.scope_of(Maker("", None, sealed)) == ()
    assert makers.scope_of(Maker("", None, sealed[:-1])) == ()


def test_a_subscription_of_an_older_version_keeps_the_scope_that_it_stored() -> None:
    old = msgspec.msgpack.encode([HOOK, ["http://node", ["a/*"]], 7, b"nonce"])
    found = msgspec.msgpack.decode(old, type=StoredConfig)
    assert found.maker == Maker("http://node", ("a/*",))
    assert Makers(b"s" * 32, lambda principal: None).scope_of(found.maker) == ("a/*",)
