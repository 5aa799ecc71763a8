"""Secrets in the middle of a text."""

from __future__ import annotations

import re

MASK = "***"
# `--api-key …`, `HF_TOKEN=…`, `password: …`, an access token of Hugging Face. TOKENS and TOKENIZERS are no secrets.
_NAME = r"(?:TOKEN(?![SI])|SECRET|PASSWORD|PASSWD|CREDENTIAL|API[_-]?KEY|ACCESS[_-]?KEY)[\w-]*"
_NAMED = re.compile(rf"(?i)({_NAME}[\"']*\s*[=:]\s*|--[\w-]*{_NAME}\s+)[^\s,;]+")
_TOKEN = re.compile(r"\bhf_\w{8,}")


def masked(text: str) -> str:
    """The text without what its own words call a secret."""
    return _TOKEN.sub(MASK, _NAMED.sub(lambda match: match[1] + MASK, text))
