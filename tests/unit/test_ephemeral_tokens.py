"""The token of an ephemeral key: what it holds, and that no change of it is accepted."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.ephemeral_tokens import (
    MAX_TOKEN_CHARACTERS,
    EphemeralClaims,
    build_ephemeral_key,
    derive_signing_key,
    encode_token,
    find_parent_reference,
    stretch_configured_secret,
    verify_token,
)
from svc.security import hash_secret
from svc.wire.key import ApiKey

REFERENCE = "key_0123456789abcdef"
SIGNING_KEY = derive_signing_key(hash_secret("svc_sk_parent"))
CLAIMS = EphemeralClaims("ek_1", 1000, 2000, ("chat",), ("gpt-4o-mini",), 3, 0.25, {"user": "7"})
TOKEN = encode_token(REFERENCE, SIGNING_KEY, CLAIMS)
SUBPROTOCOL_CHARACTERS = re.compile(r"[A-Za-z0-9._-]+")


def test_encode_token_claims_survive_verification() -> None:
    assert verify_token(TOKEN, SIGNING_KEY) == CLAIMS
    assert find_parent_reference(TOKEN) == REFERENCE
    assert TOKEN.startswith("svc_ek_key_0123456789abcdef.")


def test_encode_token_has_only_characters_of_a_subprotocol() -> None:
    assert SUBPROTOCOL_CHARACTERS.fullmatch(TOKEN)


def test_verify_token_with_key_of_another_parent_returns_none() -> None:
    assert verify_token(TOKEN, derive_signing_key(hash_secret("svc_sk_other"))) is None


CHARACTERS = st.sampled_from("ABCabc019_-.") | st.characters(exclude_categories=["Cs"])


@given(position=st.integers(0, len(TOKEN) - 1), character=CHARACTERS)
def test_verify_token_with_a_changed_character_returns_none(position: int, character: str) -> None:
    changed = TOKEN[:position] + character + TOKEN[position + 1 :]
    if changed != TOKEN:
        assert verify_token(changed, SIGNING_KEY) is None


@pytest.mark.parametrize("position", range(len(TOKEN)))
def test_verify_token_with_any_bit_of_a_character_flipped_returns_none(position: int) -> None:
    for bit in range(7):
        changed = TOKEN[:position] + chr(ord(TOKEN[position]) ^ (1 << bit)) + TOKEN[position + 1 :]
        assert verify_token(changed, SIGNING_KEY) is None


@given(start=st.integers(0, len(TOKEN)), end=st.integers(0, len(TOKEN)))
def test_verify_token_part_or_extension_returns_none(start: int, end: int) -> None:
    for changed in (TOKEN[start:end], TOKEN + TOKEN[start:end], TOKEN[:start] + TOKEN[end:]):
        if changed != TOKEN:
            assert verify_token(changed, SIGNING_KEY) is None


@given(st.text(max_size=200), st.binary(max_size=64))
def test_verify_token_arbitrary_text_returns_none(text: str, key: bytes) -> None:
    for candidate in (text, f"svc_ek_{text}", f"svc_ek_{REFERENCE}.{text}.{'A' * 43}"):
        assert verify_token(candidate, derive_signing_key(key)) is None


def test_verify_token_parts_of_two_tokens_returns_none() -> None:
    wider = encode_token(REFERENCE, SIGNING_KEY, msgspec.structs.replace(CLAIMS, rpm=0, models=None))
    head, claims, signature = TOKEN.split(".")
    assert verify_token(f"{head}.{wider.split('.')[1]}.{signature}", SIGNING_KEY) is None
    assert verify_token(f"{head}.{claims}.{wider.split('.')[2]}", SIGNING_KEY) is None
    assert verify_token(f"{head.replace('0123', '0124')}.{claims}.{signature}", SIGNING_KEY) is None


def test_verify_token_signed_claims_of_another_form_returns_none() -> None:
    for claims in ({}, [1, 2], ["ek_1", 1, 2, ["chat"], None, 0, None, {}, "more"], "x"):
        token = encode_token(REFERENCE, SIGNING_KEY, claims)  # type: ignore[arg-type]
        assert verify_token(token, SIGNING_KEY) is None


def test_find_parent_reference_of_a_token_that_is_too_long_is_none() -> None:
    tags = {f"t{number}": "x" * 256 for number in range(16)}
    token = encode_token(REFERENCE, SIGNING_KEY, msgspec.structs.replace(CLAIMS, tags=tags))
    assert len(token) > MAX_TOKEN_CHARACTERS
    assert find_parent_reference(token) is None


def test_stretch_configured_secret_reference_reveals_no_digest() -> None:
    reference, signing_key = stretch_configured_secret("weak")
    digest = hash_secret("weak").hex()
    assert re.fullmatch("c[0-9a-f]{16}", reference)
    assert reference[1:] not in digest
    assert signing_key.hex() != derive_signing_key(hash_secret("weak")).hex()
    assert stretch_configured_secret("weak") == (reference, signing_key)


SCOPES = st.frozensets(st.sampled_from(["chat", "speech", "admin", "metrics", "registry:read"]))
MODELS = st.none() | st.frozensets(st.sampled_from(["a", "b", "c"]))
TAGS = st.dictionaries(st.sampled_from(["team", "user"]), st.sampled_from(["x", "y"]))


@given(SCOPES, MODELS, TAGS, st.floats(0, 5000), SCOPES, MODELS, TAGS, st.integers(0, 5000))
def test_build_ephemeral_key_never_exceeds_its_parent(
    parent_scopes: frozenset[str],
    parent_models: frozenset[str] | None,
    parent_tags: dict[str, str],
    parent_expires: float,
    scopes: frozenset[str],
    models: frozenset[str] | None,
    tags: dict[str, str],
    expires: int,
) -> None:
    parent = ApiKey(
        "key_1", "one", parent_scopes, models=parent_models, rpm=5, tags=parent_tags, expires=parent_expires
    )
    claims = EphemeralClaims(
        "ek_1", 0, expires, tuple(scopes), None if models is None else tuple(models), 900, 1e6, tags
    )
    key = build_ephemeral_key(claims, parent, b"digest")
    assert key.scopes == scopes & parent_scopes
    for model in "abcd":
        assert key.may_use(model) == (parent.may_use(model) and (models is None or model in models))
    assert key.expires == min(expires, parent_expires)
    assert (key.id, key.name, key.rpm, key.ephemeral_id) == ("key_1", "one", 5, "ek_1")
    assert key.tags == tags | parent_tags
