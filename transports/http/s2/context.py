"""S2 requests: the basin and stream of a request, and the permissions of its client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from millpond.actors.errors import StorageFailed
from millpond.actors.messages import Rights
from millpond.actors.streams.names import basin_cell, qualified_name, stream_cell
from millpond.transports.http.context import RequestContext
from millpond.transports.http.request import Request
from millpond.transports.http.response import ResponseWriter
from millpond.transports.http.s2.authorization import RIGHTS, Authorization, stored_authorization
from millpond.transports.http.s2.codecs.compression import read_body
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.encryption import EncryptionKey
from millpond.transports.http.s2.errors import (
    CodedError,
    ErrorCode,
    bad_header,
    bad_json,
    coded_error,
)
from millpond.transports.http.s2.interface import BasinRow, S2NodeServices
from millpond.transports.http.s2.model import check_basin, check_stream
from millpond.transports.http.s2.usage import S2Usage

BASIN_HEADER = b"s2-basin"
KEY_HEADER = b"s2-encryption-key"


def is_json(content_type: str | None) -> bool:
    """True for a body of JSON, by its content type."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


class S2Target(msgspec.Struct, frozen=True, gc=False):
    """A stream: its basin and name, its cell, what rights and rules call it, and what this client
    calls it (less what its token puts before all names)."""

    basin: bytes
    stream: bytes
    cell: bytes
    qualified_name: bytes
    shown: bytes


def target_in(
    services: S2NodeServices, basin: bytes, stream: bytes, shown: bytes | None = None
) -> S2Target:
    """A stream of a basin, by its whole name. `shown` None: the client calls it by that."""
    shown = stream if shown is None else shown
    if basin == services.basins.own:
        return S2Target(basin, stream, stream_cell(stream), stream, shown)
    return S2Target(basin, stream, basin_cell(basin, stream), qualified_name(basin, stream), shown)


class S2Context(RequestContext[S2NodeServices]):
    """A request of S2: its basin and stream, and the operations that the client may do there."""

    __slots__ = ("_is_issued", "usage")

    def __init__(
        self,
        services: S2NodeServices,
        request: Request,
        usage: S2Usage,
        writer: ResponseWriter | None = None,
    ) -> None:
        super().__init__(services, request, writer)
        self.usage = usage
        token = request.principal.token
        self._is_issued = token is not None and services.tokens.is_issued_form(token)

    def header(self, name: bytes) -> str | None:
        """The last value of a header; None: there is none. Raises CodedError (bad_header)."""
        found = self.request.header(name)
        if found is None:
            return None
        try:
            return found.decode()
        except UnicodeDecodeError:
            raise bad_header(f"{name.decode()}: not UTF-8") from None

    def decompressed(self, data: bytes, bytes_max: int) -> bytes:
        """The body `data`, decompressed. Raises CodedError: bad_header; invalid above the limit."""
        return read_body(data, self.header(b"content-encoding"), bytes_max)

    async def body(self, bytes_max: int) -> bytes:
        """The whole body, decompressed; the limit holds before and after decompression.

        Raises CodedError (bad_header, invalid), and what `Request.body` raises.
        """
        return self.decompressed(await self.request.body(bytes_max), bytes_max)

    async def json_body(self, bytes_max: int) -> bytes:
        """The whole body of a request whose body is JSON; like `body`, and raises CodedError
        (bad_json) where it is not declared as JSON. A web page may send other types to any address
        without being asked."""
        body = await self.body(bytes_max)
        if not is_json(self.header(b"content-type")):
            raise bad_json("content-type: expected application/json")
        return body

    async def optional_json_body(self, bytes_max: int) -> bytes:
        """The same of a request that needs no body: without a content type it has none."""
        if self.header(b"content-type") is None:
            await self.body(bytes_max)
            return b""
        return await self.json_body(bytes_max)

    # The target.

    def basin(self) -> bytes:
        """The basin of a request about streams: the header's, or the first label of the host.

        Raises CodedError: authn for an unknown client, bad_header where nothing names one, or
        what cannot be one.
        """
        self.check_known()
        named = self.header(BASIN_HEADER)
        if named is None:
            named = self._basin_of_host()
        if named is None:
            raise bad_header("s2-basin: the request names no basin")
        check_basin(named, ErrorCode.BAD_HEADER)
        return named.encode()

    def _basin_of_host(self) -> str | None:
        """The basin of an endpoint like `http://{basin}.localhost:7404`."""
        host = (self.header(b"host") or "").partition(":")[0]
        first, dot, rest = host.partition(".")
        if not dot or rest.replace(".", "").isdigit():
            return None
        # A client that may not see basins gets no hint; its permissions are checked later.
        name = first.encode()
        is_told = self.services.basins.find(name) is not None or not self.sees_basin(name)
        return first if is_told else None

    def target(self, stream: bytes) -> S2Target:
        """A stream of that basin, whether it is there or not. Raises CodedError (bad_path)."""
        return self.target_named(self.basin(), stream, ErrorCode.BAD_PATH)

    def basin_at(self, name: bytes) -> bytes:
        """The basin that the path names. Raises CodedError (authn, bad_path)."""
        self.check_known()
        check_basin(name.decode("utf-8", "replace"), ErrorCode.BAD_PATH)
        return name

    def target_of(self, basin: bytes, stream: bytes) -> S2Target:
        """A stream of the basin that the path names. Raises CodedError (bad_path)."""
        return self.target_named(self.basin_at(basin), stream, ErrorCode.BAD_PATH)

    def target_named(self, basin: bytes, shown: bytes, code: ErrorCode) -> S2Target:
        """A stream by the name that this client uses. Raises CodedError with `code`."""
        stream = self.stream_prefix + shown if self._is_issued else shown
        check_stream(stream if shown else shown, code)
        return self.target_in(basin, stream)

    def target_in(self, basin: bytes, stream: bytes) -> S2Target:
        """A stream by its whole name."""
        shown = stream.removeprefix(self.stream_prefix) if self._is_issued else None
        return target_in(self.services, basin, stream, shown)

    def require_basin(self, name: bytes) -> BasinRow:
        """A basin that is there. Raises CodedError: basin_not_found, basin_deletion_pending."""
        found = self.services.basins.find(name)
        if found is None:
            shown = name.decode("utf-8", "replace")
            if self.services.basins.is_removed(name):
                text = f"the basin {shown} is being deleted"
                raise CodedError(ErrorCode.BASIN_DELETION_PENDING, text)
            self.require_names()
            raise CodedError(ErrorCode.BASIN_NOT_FOUND, f"the basin {shown} does not exist")
        return found

    def require_names(self) -> None:
        """Before a name is left out or said to be unknown. Raises CodedError if the store lost
        names."""
        try:
            self.services.basins.check_complete()
        except StorageFailed as exc:
            raise coded_error(exc.code) from None

    # Rights.

    @property
    def authorization(self) -> Authorization | None:
        """The permissions of a token that S2 issued; None: no such token, or not a valid one."""
        token = self.request.principal.token
        if not self._is_issued or token is None:
            return None
        found = self.services.tokens.find(token)
        return None if found is None else stored_authorization(found.metadata)

    @property
    def stream_prefix(self) -> bytes:
        """The prefix that the client's token adds to all stream names."""
        authorization = self.authorization
        return b"" if authorization is None else authorization.prefix

    def require(self, operation: Operation, at: S2Target | bytes | None = None) -> None:
        """This operation, in a stream, in a basin, with an access token of this id; None: with
        some of them, or with nothing that has a name.

        It counts. Raises CodedError: authn for an unknown client, permission_denied.
        """
        self.check(operation, at)
        self.usage.count(operation, at.basin if isinstance(at, S2Target) else at)

    def check(self, operation: Operation, at: S2Target | bytes | None = None) -> None:
        """Require an operation like `require`, without counting it."""
        if not self.may(operation, at):
            raise self._denial()

    def may(self, operation: Operation, at: S2Target | bytes | None = None) -> bool:
        """True if the operation is permitted; see `require`."""
        if self._is_issued:
            authorization = self.authorization
            if authorization is None:
                return False
            if isinstance(at, S2Target):
                return authorization.allows(operation, at.basin, at.stream)
            return authorization.allows(operation, at, None)
        if self.services.is_stranger(self.request.principal):
            return False
        needed = RIGHTS[operation]
        is_open = operation is Operation.GET_BASIN_CONFIG and at == self.services.basins.own
        if needed is None or is_open:
            return self.services.may_use_streams(self.request.principal)
        name = at.qualified_name if isinstance(at, S2Target) else b""
        return bool(self.rights_in(name) & needed)

    @property
    def is_known(self) -> bool:
        """True if the client may do anything at all, or has a token of S2 that is valid."""
        if self._is_issued:
            return self.authorization is not None
        return not self.services.is_stranger(self.request.principal) and super().is_known

    def check_known(self) -> None:
        """Check the credentials, before anything else of the request (S2X-50). Raises CodedError
        (authn)."""
        if not self.is_known:
            raise self._denial()

    def _denial(self) -> CodedError:
        if self.is_known:
            text = "the access token does not permit this"
            return CodedError(ErrorCode.PERMISSION_DENIED, text)
        return CodedError(ErrorCode.AUTHN, "unknown or missing access token")

    def sees_basin(self, name: bytes) -> bool:
        """True if the client may learn that this basin exists. The node's own is no secret."""
        if self._is_issued:
            authorization = self.authorization
            return authorization is not None and authorization.sees_basin(name)
        return name == self.services.basins.own or self.may(Operation.GET_BASIN_CONFIG)

    def rights_listed(self, basin: bytes, names: Iterable[bytes]) -> Iterator[Rights | None]:
        """The rights in streams, by their whole names, that a list may show."""
        if self._is_issued:
            authorization, prefix = self.authorization, self.stream_prefix
            for name in names:
                is_seen = authorization is not None and authorization.sees_stream(name)
                yield Rights.LIST if is_seen and name != prefix else None
            return
        authorize, principal = self.services.authorize_stream, self.request.principal
        is_own = basin == self.services.basins.own
        for name in names:
            yield authorize(principal, name if is_own else qualified_name(basin, name))

    def encryption_key(self) -> EncryptionKey:
        """The key that the request brings, or none. Raises CodedError (bad_header) for what is none
        at a glance: no more is looked at before it is needed (S2X-03)."""
        return EncryptionKey.of_header(self.request.header(KEY_HEADER))
