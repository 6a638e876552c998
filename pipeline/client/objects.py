"""The objects of a replica, read by executors: a folder, or a store of the package obstore with the
credentials of its environment variables or of the option `storeOptions`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from millpond.pipeline.errors import PipelineError

CONNECT_S, ANSWER_S = 5, 30
RETRIES = 10


class NoObject(Exception):
    """The object is not there, any more."""


class StoreAway(Exception):
    """The store did not answer, for as long as a reader waits for it."""


class Objects(Protocol):
    """The objects below the address of a replica. Methods raise NoObject, StoreAway, and
    PipelineError (bad_store) where the store refuses."""

    def get(self, name: str) -> bytes:
        """A whole object."""

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`, which is not behind the end of the object."""


def open_objects(url: str, options: Mapping[str, str], limit_s: float) -> Objects:
    """The objects at an address; requests are repeated for `limit_s`. Raises PipelineError."""
    if url.startswith("file:"):
        return FolderObjects(Path(unquote(urlsplit(url).path)))
    return CloudObjects(url, options, limit_s)


class FolderObjects:
    """Objects as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str) -> bytes:
        return self._read(name, 0, None)

    def get_range(self, name: str, start: int, end: int) -> bytes:
        return self._read(name, start, end)

    def _read(self, name: str, start: int, end: int | None) -> bytes:
        try:
            with (self._folder / name).open("rb") as file:
                file.seek(start)
                return file.read(-1 if end is None else end - start)
        except (FileNotFoundError, NotADirectoryError):
            if (self._folder / "format").is_file():
                raise NoObject(name) from None
            raise StoreAway(f"{self._folder} has no replica; is it mounted?") from None
        except PermissionError as error:
            raise _refused(str(self._folder), error.strerror or "no permission") from None
        except OSError as error:
            raise StoreAway(f"{self._folder}: {error.strerror}") from None


class CloudObjects:
    """Objects of a bucket."""

    def __init__(self, url: str, options: Mapping[str, str], limit_s: float) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            text = f"{url}: the package obstore is missing"
            raise PipelineError("bad_option", text, "pip install 'millpond[replica]'") from None
        self._url = url
        self._obstore: Any = obstore
        self._errors = obstore.exceptions
        own = {name.lower(): value for name, value in options.items()}
        allows = own.pop("aws_allow_http", os.environ.get("AWS_ALLOW_HTTP", ""))
        opened: Any = from_url  # its types are those of one store
        try:
            self._store: Any = opened(
                url,
                config=own or None,
                client_options={
                    "timeout": f"{ANSWER_S}s",
                    "connect_timeout": f"{CONNECT_S}s",
                    "allow_http": allows.lower() in ("1", "true"),
                },
                retry_config={
                    "max_retries": RETRIES,
                    "retry_timeout": timedelta(seconds=limit_s),
                },
            )
        except (self._errors.BaseError, ValueError, TypeError) as error:
            raise PipelineError("bad_option", f"storeOptions: {_first_line(error)}") from None

    def get(self, name: str) -> bytes:
        return self._told(name, lambda: bytes(self._obstore.get(self._store, name).bytes()))

    def get_range(self, name: str, start: int, end: int) -> bytes:
        ask = self._obstore.get_range
        return self._told(name, lambda: bytes(ask(self._store, name, start=start, end=end)))

    def _told(self, name: str, ask: Any) -> bytes:
        errors = self._errors
        try:
            found: bytes = ask()
            return found
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise _refused(self._url, "there is no such bucket") from None
            raise NoObject(name) from None
        except (
            errors.PermissionDeniedError,
            errors.UnauthenticatedError,
            PermissionError,
        ) as error:
            raise _refused(self._url, _first_line(error)) from None
        except errors.BaseError as error:
            raise StoreAway(f"{self._url}: {_first_line(error)}") from None


def _refused(where: str, text: str) -> PipelineError:
    hint = "see the option storeOptions and the environment variables of the executors"
    return PipelineError("bad_store", f"{where}: {text}", hint)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
