"""What is masked in a text, and what is not."""

from __future__ import annotations

import pytest

from seatrial.history.masking import masked

S = "s3cr3t-Value/1+2"


@pytest.mark.parametrize("text", [
    f"HF_TOKEN={S}", f"export WANDB_API_KEY={S};", f"--password {S}", f"--hf-token={S} --x", f"token: {S}, done",
    f'{{"api_key": "{S}"}}', f"AWS_SECRET_ACCESS_KEY = {S}", f"passwd:{S}", f"my-credential-file={S}",
    f"x --secret\t{S}",
])  # fmt: skip
def test_what_is_named_a_secret_is_masked(text: str) -> None:
    assert S not in masked(text)
    assert "***" in masked(text)


def test_an_access_token_is_known_by_its_look() -> None:
    assert masked("login with hf_abcdefgh12345678 failed") == "login with *** failed"


@pytest.mark.parametrize("text", [
    "max_tokens=4096", "TOKENIZERS_PARALLELISM=false", "12,000 tokens/s: fine", "the token is not there", "",
    "hf_model", "tokenizer: byte", "no secret here",
])  # fmt: skip
def test_what_is_none_stays(text: str) -> None:
    assert masked(text) == text
