"""Access tokens: issue, list, revoke (A.2, A.3). A token permits the operations of its scope."""

from __future__ import annotations

import logging
from hashlib import sha256

from millpond.actors.errors import Code
from millpond.actors.messages import Failed
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import TOKENS
from millpond.transports.http.response import Response
from millpond.transports.http.s2.authorization import (
    authorization_of,
    check_authorization,
    issued_by,
)
from millpond.transports.http.s2.codecs import info as info_codec
from millpond.transports.http.s2.codecs.tokens import (
    Operation,
    decode_stored_token,
    encode_issued,
    encode_stored_token,
    encode_tokens,
    read_token,
)
from millpond.transports.http.s2.context import S2Context
from millpond.transports.http.s2.errors import CodedError, ErrorCode, error_of, invalid
from millpond.transports.http.s2.model import check_token_id

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 65_536
_JSON = (b"content-type", b"application/json")
_NO_STORE = (b"cache-control", b"no-store")


async def list_tokens(context: S2Context) -> Response:
    """GET /v1/access-tokens: their ids and scopes; nobody has the tokens themselves."""
    context.check_known()
    query = info_codec.read_list_query(context.request.query)
    context.require(Operation.LIST_ACCESS_TOKENS)
    context.require_names()
    prefix, after = (
        each.encode("utf-8", "surrogateescape") for each in (query.prefix, query.start_after)
    )
    found = [
        row
        for token_id, row in context.services.tokens.all()
        if token_id.startswith(prefix)
        and token_id > after
        and context.may(Operation.LIST_ACCESS_TOKENS, token_id)
    ]
    infos = [decode_stored_token(row.metadata) for row in found[: query.limit]]
    body = encode_tokens(infos, has_more=len(found) > query.limit)
    return Response(200, (_JSON,), body)


async def issue_token(context: S2Context) -> Response:
    """POST /v1/access-tokens: issue a token; it is shown once and not stored. A client with a token
    hands on no more than it has."""
    context.check(Operation.ISSUE_ACCESS_TOKEN)
    info = read_token(await context.json_body(BODY_BYTES_MAX))
    check_authorization(authorization_of(info))
    if info.expires_ms is not None and info.expires_ms <= context.services.now() * 1000:
        raise invalid("expires_at: this time is in the past")
    token_id = info.id.encode()
    context.require(Operation.ISSUE_ACCESS_TOKEN, token_id)
    issuer = context.authorization
    if issuer is not None:
        info = issued_by(issuer, info)
        check_authorization(authorization_of(info))  # its own prefix made the names longer
    token = context.services.tokens.make()
    digest, metadata = sha256(token.encode()).digest(), encode_stored_token(info)
    with context.cell_client() as cells:
        reply = await cells.request(
            TOKENS, lambda number: m.IssueToken(number, token_id, digest, info.expires_ms, metadata)
        )
    match reply:
        case m.Done():
            log.info("access token issued: id=%r by=%r", info.id, info.issuer)
            return Response(201, (_JSON, _NO_STORE), encode_issued(token))
        case m.StreamFailed(code=Code.STREAM_EXISTS):
            text = f"the access token {info.id!r} exists already"
            raise CodedError(ErrorCode.RESOURCE_ALREADY_EXISTS, text)
        case m.StreamFailed(code=Code.BUFFER_FULL):
            raise CodedError(ErrorCode.QUOTA_EXHAUSTED, "there are too many access tokens")
        case m.StreamFailed() | Failed():
            raise error_of(reply)
        case _:
            raise AssertionError(f"{reply} answers nothing about access tokens")


async def revoke_token(context: S2Context, token_id: bytes) -> Response:
    """DELETE /v1/access-tokens/{id}: revoke it, for open sessions too."""
    context.check_known()
    check_token_id(token_id.decode("utf-8", "surrogateescape"), ErrorCode.BAD_PATH)
    context.require(Operation.REVOKE_ACCESS_TOKEN, token_id)
    with context.cell_client() as cells:
        reply = await cells.request(TOKENS, lambda number: m.RevokeToken(number, token_id))
    match reply:
        case m.Done():
            context.services.reauthorize()
            return Response(204)
        case m.StreamFailed(code=Code.UNKNOWN_STREAM):
            shown = token_id.decode("utf-8", "replace")
            text = f"the access token {shown!r} does not exist"
            raise CodedError(ErrorCode.ACCESS_TOKEN_NOT_FOUND, text)
        case m.StreamFailed() | Failed():
            raise error_of(reply)
        case _:
            raise AssertionError(f"{reply} answers nothing about access tokens")
