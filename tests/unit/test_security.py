import pytest

from svc.errors import AuthenticationFailed
from svc.security import Keyring, generate_secret, secret_from_headers
from svc.wire.key import ApiKey


def lookup(keyring: Keyring, secret: str | None) -> ApiKey:
    key = keyring.lookup_cached(secret)
    assert key is not None
    return key


def test_keyring_known_secret_is_not_in_repr_of_key() -> None:
    secret = generate_secret()
    key = lookup(Keyring([secret]), secret)
    assert secret not in repr(key)
    assert secret.startswith("svc_sk_")


@pytest.mark.parametrize("guess", [None, "", "x", "svc_sk_", "k" * 100_000, "\udcff\x00"])
def test_keyring_unknown_secret_raises_authentication_failed(guess: str | None) -> None:
    with pytest.raises(AuthenticationFailed):
        Keyring([generate_secret()]).lookup_cached(guess)


@pytest.mark.parametrize(
    ("authorization", "api_key", "expected"),
    [
        ("Bearer abc", None, "abc"),
        ("bearer   abc ", None, "abc"),
        ("Basic abc", None, None),
        ("Bearer", None, None),
        ("Bearer ", "xyz", "xyz"),
        (None, "xyz", "xyz"),
        ("", "", None),
    ],
)
def test_secret_from_headers_authorization_or_api_key_gives_secret(
    authorization: str | None, api_key: str | None, expected: str | None
) -> None:
    assert secret_from_headers(authorization, api_key) == expected


def test_api_key_model_outside_allow_list_may_not_be_used() -> None:
    assert ApiKey(id="1", name="n").may_use("any")
    assert not ApiKey(id="1", name="n", models=frozenset({"a"})).may_use("b")


def test_keyring_configured_keys_have_scopes_of_their_lists() -> None:
    keyring = Keyring(["reader", "both"], publishers=["writer", "both"])
    assert "registry:write" not in lookup(keyring, "reader").scopes
    assert lookup(keyring, "writer").scopes == {"registry:read", "registry:write"}
    assert lookup(keyring, "both").scopes > {"registry:write", "chat"}
