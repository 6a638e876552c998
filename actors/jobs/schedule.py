"""When the jobs of a channel are due, and what they are unique by; only of those that have any."""

from __future__ import annotations

from millpond.actors.store.message_attributes import MessageAttributes


class JobSchedule:
    """Side tables of a channel. `due` are the delays that a restart would know of."""

    __slots__ = ("_ids", "_names", "due")

    def __init__(self, terms: MessageAttributes | None = None) -> None:
        self.due: dict[int, float] = {} if terms is None else dict(terms.due)
        self._names: dict[int, bytes] = {} if terms is None else dict(terms.names)
        # Of two with one name, which only a repair may leave, the younger has it.
        self._ids = {self._names[message_id]: message_id for message_id in sorted(self._names)}

    def __bool__(self) -> bool:
        return bool(self.due or self._names)

    def find(self, name: bytes) -> int | None:
        """The job that has the name; it may have expired."""
        return self._ids.get(name)

    def terms_of(self, message_id: int) -> tuple[float, bytes]:
        """When a job is due, 0: now; and its name, empty: it has none."""
        return self.due.get(message_id, 0.0), self._names.get(message_id, b"")

    def claim(self, message_id: int, name: bytes) -> None:
        """The job is the one of this name from now on."""
        self._names[message_id] = name
        self._ids[name] = message_id

    def forget(self, message_id: int) -> None:
        """The job left, and its name is free."""
        self.due.pop(message_id, None)
        name = self._names.pop(message_id, None)
        if name is not None and self._ids.get(name) == message_id:
            del self._ids[name]
