"""Credentials in URLs: hidden wherever a URL is shown.

A URL that is given wrongly is shown as well, so this reads text and parses no URL.
"""

from __future__ import annotations

import re

HIDDEN = "***"
_PASSWORD = re.compile(r"(://[^\s:/?#@]*:)\S*@")
_USER_ALONE = re.compile(r"(://)[^\s:/?#@]+@")
_OPTION = re.compile(r"([?&]\w*(?:password|secret|token)=)[^\s&#'\"]+", re.IGNORECASE)


def hide_credentials(text: str) -> str:
    """The text, which may be a URL or a sentence with some, without passwords: what stands between
    `://user:` and the last `@` of the word, a user without a password, and `?password=`."""
    if "://" not in text:
        return text
    text = _PASSWORD.sub(rf"\1{HIDDEN}@", text)
    text = _USER_ALONE.sub(rf"\1{HIDDEN}@", text)
    return _OPTION.sub(rf"\1{HIDDEN}", text)
