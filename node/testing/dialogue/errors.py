"""What may be wrong with a dialogue."""


class BadScript(ValueError):
    """The text is no dialogue; the message has the number of the line."""


class DialogueMismatch(AssertionError):
    """The node said something else; the message shows the dialogue so far."""
