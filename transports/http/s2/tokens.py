"""Access tokens: issue, list, revoke (A.2, A.3). Who shows one may do what its scope says."""

from __future__ import annotations

from hashlib import sha256

from millpond.actors.errors import Code
from millpond.actors.messages import Failed
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import TOKENS
from millpond.transports.http.response import Response
from millpond.transports.http.s2.authorization import authorization_of, check_authorization
from millpond.transports.http.s2.codecs import info as info_form
from millpond.transports.http.s2.codecs.tokens import (
    Operation,
    decode_stored_token,
    encode_issued,
    encode_stored_token,
    encode_tokens,
    read_token,
)
from millpond.transports.http.s2.context import Call
from millpond.transports.http.s2.errors import CodedError, ErrorCode, error_of, invalid
from millpond.transports.http.s2.model import check_token_id

BODY_BYTES_MAX = 65_536
_JSON = (b"content-type", b"application/json")
_NO_STORE = (b"cache-control", b"no-store")


async def list_tokens(call: Call) -> None:
    """GET /v1/access-tokens: their ids and scopes; nobody has the tokens themselves."""
    call.require(Operation.LIST_ACCESS_TOKENS)
    query = info_form.read_list_query(call.request.query)
    prefix, after = (
        each.encode("utf-8", "surrogateescape") for each in (query.prefix, query.start_after)
    )
    found = [
        row
        for token_id, row in call.host.tokens.all()
        if token_id.startswith(prefix)
        and token_id > after
        and call.may(Operation.LIST_ACCESS_TOKENS, token_id)
    ]
    infos = [decode_stored_token(row.metadata) for row in found[: query.limit]]
    body = encode_tokens(infos, has_more=len(found) > query.limit)
    await call.say(Response(200, (_JSON,), body))


async def issue_token(call: Call) -> None:
    """POST /v1/access-tokens: a token that permits what is asked, told once and not kept."""
    call.check(Operation.ISSUE_ACCESS_TOKEN)
    info = read_token(await call.body(BODY_BYTES_MAX))
    token_id = info.id.encode()
    call.require(Operation.ISSUE_ACCESS_TOKEN, token_id)
    permit = authorization_of(info)
    check_authorization(permit)
    if info.expires_ms is not None and info.expires_ms <= call.host.now() * 1000:
        raise invalid("expires_at: that is over")
    token = call.host.tokens.make()
    digest, notes = sha256(token.encode()).digest(), encode_stored_token(permit.info)
    with call.inquiry() as inquiry:
        answer = await inquiry.ask(
            TOKENS, lambda number: m.IssueToken(number, token_id, digest, info.expires_ms, notes)
        )
    match answer:
        case m.Done():
            await call.say(Response(201, (_JSON, _NO_STORE), encode_issued(token)))
        case m.StreamFailed(code=Code.STREAM_EXISTS):
            text = f"there is an access token {info.id!r}"
            raise CodedError(ErrorCode.RESOURCE_ALREADY_EXISTS, text)
        case m.StreamFailed(code=Code.BUFFER_FULL):
            raise CodedError(ErrorCode.QUOTA_EXHAUSTED, "there are too many access tokens")
        case m.StreamFailed() | Failed():
            raise error_of(answer)
        case _:
            raise AssertionError(f"{answer} answers nothing about access tokens")


async def revoke_token(call: Call, token_id: bytes) -> None:
    """DELETE /v1/access-tokens/{id}: from now on it permits nothing, to open sessions neither."""
    check_token_id(token_id.decode("utf-8", "surrogateescape"))
    call.require(Operation.REVOKE_ACCESS_TOKEN, token_id)
    with call.inquiry() as inquiry:
        answer = await inquiry.ask(TOKENS, lambda number: m.RevokeToken(number, token_id))
    match answer:
        case m.Done():
            call.host.reauthorize()
            await call.say(Response(204))
        case m.StreamFailed(code=Code.UNKNOWN_STREAM):
            shown = token_id.decode("utf-8", "replace")
            text = f"there is no access token {shown!r}"
            raise CodedError(ErrorCode.ACCESS_TOKEN_NOT_FOUND, text)
        case m.StreamFailed() | Failed():
            raise error_of(answer)
        case _:
            raise AssertionError(f"{answer} answers nothing about access tokens")
