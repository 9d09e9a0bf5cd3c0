from pathlib import Path

import pytest

from svc import settings
from svc.errors import ModelNotFound, UsageError
from svc.gateway.routing.backends import build_backends
from svc.gateway.routing.provider_warnings import provider_warnings
from svc.gateway.routing.providers import Provider, build_providers
from svc.gateway.routing.router import Router
from svc.gateway.routing.unconfigured_providers import models_without_key


def load(tmp_path: Path, environ: dict[str, str], text: str = "") -> list[Provider]:
    path = tmp_path / "svc.toml"
    path.write_text(text)
    return build_providers(settings.load(environ, config=str(path)))


def router(providers: list[Provider], fallbacks: dict[str, tuple[str, ...]] | None = None) -> Router:
    return Router([backend for provider in providers for backend in build_backends(provider)], fallbacks or {})


def test_providers_without_api_key_are_omitted(tmp_path: Path) -> None:
    assert load(tmp_path, {}) == []
    assert [provider.name for provider in load(tmp_path, {"PROVIDER_C_API_KEY": "k"})] == ["groq"]


def test_provider_key_gateway_variable_precedes_vendor_variable(tmp_path: Path) -> None:
    (provider,) = load(tmp_path, {"OPENAI_API_KEY": "usual"})
    assert provider.key == "usual"
    (provider,) = load(tmp_path, {"OPENAI_API_KEY": "usual", "PROVIDER_A_API_KEY": "ours"})
    assert provider.key == "ours"


def test_models_without_key_reason_names_the_variables(tmp_path: Path) -> None:
    text = """
        [[providers]]
        name = "mine"
        base_url = "http://127.0.0.1:5/v1"
        api_key_env = "MINE_KEY"
        models = [{ id = "m" }]
    """
    (tmp_path / "svc.toml").write_text(text)
    loaded = settings.load({"PROVIDER_C_API_KEY": "k"}, config=str(tmp_path / "svc.toml"))
    found = models_without_key(loaded, build_providers(loaded))
    assert found["gpt-4o"] == "the provider openai has no API key (set OPENAI_API_KEY or PROVIDER_A_API_KEY)"
    assert found["m"] == "the provider mine has no API key (set MINE_KEY)"
    assert "llama-3.1-8b-instant" not in found


def test_models_without_key_reason_omits_a_name_that_may_be_a_key(tmp_path: Path) -> None:
    text = "[[providers]]\nname = 'mine'\nbase_url = 'http://x/v1'\napi_key_env = 'a1b2SECRET'\nmodels = [{ id = 'm' }]"
    (tmp_path / "svc.toml").write_text(text)
    loaded = settings.load({}, config=str(tmp_path / "svc.toml"))
    assert models_without_key(loaded, [])["m"] == "the provider mine has no API key"


def test_providers_built_in_keys_give_all_models(tmp_path: Path) -> None:
    keys = {f"PROVIDER_{letter}_API_KEY": "k" for letter in "ABC"}
    backends = router(load(tmp_path, keys)).backends()
    windows = {
        name: [b.model.context_window for b in backends if b.provider.name == name] for name in ("openai", "groq")
    }
    assert len(backends) == 13
    assert windows == {"openai": [128_000] * 3 + [8192] * 2 + [4096, 2000], "groq": [32_768] * 3}
    assert all(backend.model.use_case for backend in backends)


def test_provider_request_head_has_address_and_key(tmp_path: Path) -> None:
    environ = {"PROVIDER_A_API_KEY": "sk-1", "PROVIDER_A_BASE_URL": "http://127.0.0.1:81/v1/"}
    (provider,) = load(tmp_path, environ)
    before_path, head = build_backends(provider)[0].request_head
    assert before_path == b"POST /v1"
    assert head.startswith(b" HTTP/1.1\r\nhost: 127.0.0.1:81\r\n")
    assert b"authorization: Bearer sk-1\r\n" in head.replace(b"Authorization", b"authorization")
    assert "sk-1" not in repr(provider)


def test_provider_openai_compatible_needs_only_configuration(tmp_path: Path) -> None:
    text = """
        [[providers]]
        name = "vllm"
        base_url = "http://127.0.0.1:5/v1"
        models = [{ id = "q", upstream_id = "Q/x", context_window = 10 }]
    """
    (provider,) = load(tmp_path, {}, text)
    (backend,) = router([provider]).route("q")
    assert (backend.profile.model, backend.origin.port, backend.provider.name) == ("Q/x", 5, "vllm")


def test_provider_entry_with_built_in_name_overrides_it(tmp_path: Path) -> None:
    text = "[[providers]]\nname = 'openai'\nbase_url = 'http://127.0.0.1:7/v1'"
    (provider,) = load(tmp_path, {"OPENAI_API_KEY": "k"}, text)
    assert provider.address.port == 7
    assert len(provider.models) == 7


X_ENTRY = "[[providers]]\nname = 'x'\nbase_url = 'http://h'\n"
W_ENTRY = X_ENTRY.replace("x", "w")


@pytest.mark.parametrize(
    "text",
    [
        "[[providers]]\nname = 'x'",
        "[[providers]]\nname = 'x'\nbase_url = 'ftp://h'",
        "[[providers]]\nname = 'x'\nbase_url = 'http://h:99999'",
        "[[providers]]\nname = 'x'\nbase_url = 'http://h/\\r\\nx: y'",
        "[[providers]]\nname = 'x'\nbase_url = 'http://h'\ndialect = 'klingon'",
        "[[providers]]\nname = 'x'\nbase_url = 'http://h'\nmodels = [{ id = 'm' }, { id = 'm' }]",
        "[[providers]]\nname = 'x'\nbase_url = 'http://h'\naccounts = [{ weight = 2 }]",
        "[[providers]]\nname = 'x'\nbase_url = 'http://h'\n[[providers]]\nname = 'x'\nbase_url = 'http://h'",
    ],
)
def test_provider_invalid_entry_raises_usage_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"x|klingon|same name"):
        load(tmp_path, {}, text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[[providers]]\npreset = 'mistral'\n[[providers]]\npreset = 'mistral'", 4),
        (f"{X_ENTRY}models = [{{ id = 'm' }}, {{ id = 'm' }}]", 4),
        (f"{X_ENTRY}models = [{{ id = 'm' }}, # {{ id = 'm' }}\n{{ id = 'n#' }}, {{ id = 'm' }}]", 5),
        (f"{X_ENTRY}# name = 'x'\n[[aliases]]\nname = 'x'\nmodel = 'm'\n{X_ENTRY}", 9),
        (f"{W_ENTRY}models = [{{ id = 'm' }}]\n{X_ENTRY}models = [\n{{ id = 'm' }},\n{{ id = 'm' }}]", 10),
    ],
)
def test_provider_error_names_line_of_second_occurrence(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(UsageError, match=f"svc.toml, line {line}: "):
        load(tmp_path, {}, text)


@pytest.mark.parametrize(
    ("written", "host", "head"),
    [
        ("https://bücher.example/v1", "xn--bcher-kva.example", b"xn--bcher-kva.example"),
        ("https://BÜCHER.example:8443/v1", "xn--bcher-kva.example", b"xn--bcher-kva.example:8443"),
        ("https://例え.テスト/v1", "xn--r8jz45g.xn--zckzah", b"xn--r8jz45g.xn--zckzah"),
    ],
)
def test_provider_international_host_name_is_idna_encoded(tmp_path: Path, written: str, host: str, head: bytes) -> None:
    (provider,) = load(tmp_path, {"OPENAI_API_KEY": "k", "PROVIDER_A_BASE_URL": written})
    backend = build_backends(provider)[0]
    assert backend.origin.host == host
    assert b"\r\nhost: " + head + b"\r\n" in backend.request_head[1]


@pytest.mark.parametrize("host", ["straße.example", "ü..example", "ü" * 70 + ".example", "\udcfc.example"])
def test_provider_host_name_not_encodable_raises_usage_error(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError, match="host name in the address of provider openai"):
        load(tmp_path, {"OPENAI_API_KEY": "k", "PROVIDER_A_BASE_URL": f"https://{host}/v1"})


@pytest.mark.parametrize("url", ["https://x.example/ü", "https://ü:é@x.example", "https://ａ／b.example"])
def test_provider_non_ascii_outside_host_raises_usage_error(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="not an http or https address"):
        load(tmp_path, {"OPENAI_API_KEY": "k", "PROVIDER_A_BASE_URL": url})


@pytest.mark.parametrize("url", ["http://x/v1?api-version=1", "http://u:p@x/v1", "http://x/v1#f", "http://x:0/v1"])
def test_provider_url_with_query_user_or_fragment_raises_usage_error(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="only a host, a port and a path"):
        load(tmp_path, {"OPENAI_API_KEY": "k", "PROVIDER_A_BASE_URL": url})


@pytest.mark.parametrize(
    ("letter", "url", "suggestion"),
    [
        ("A", "http://h:8000/v1/chat/completions", "http://h:8000/v1."),
        ("A", "http://h/chat/completions/", "http://h/v1."),
        ("A", "https://h/api/v4/chat/completions", "https://h/api/v4."),
        ("A", "https://h/v1/messages", "https://h/v1."),
        ("B", "https://h/v1/messages", "https://h."),
        ("B", "https://h/messages", "https://h."),
        ("B", "https://h/of/v1/chat/completions", "https://h/of."),
        ("A", "h.example/v1", "https://api.example.com/v1."),
        ("B", "ftp://h.example", "https://api.example.com."),
        *(
            ("A", f"https://{host}/v1", "api.example.com or 10.0.0.5.")
            for host in ("a..b", ".a", "a.b..", "a" * 64, "a,b", "a%20b", "a;b")
        ),
    ],
)
def test_provider_invalid_url_error_suggests_a_valid_one(
    tmp_path: Path, letter: str, url: str, suggestion: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, {f"PROVIDER_{letter}_API_KEY": "k", f"PROVIDER_{letter}_BASE_URL": url})
    assert caught.value.message.endswith(f" {suggestion}")


@pytest.mark.parametrize(
    ("letter", "path", "expected"),
    [
        ("A", "/v1/chat/completions", "/chat/completions, which each request adds: it should look like https://h/v1."),
        ("B", "/v1/messages", "/messages, which each request adds: it should look like https://h."),
        *(
            (
                "A",
                path,
                "/messages, which belongs to the dialect anthropic, and the provider's is openai: if it speaks "
                'anthropic, write dialect = "anthropic" and the address https://h; if it speaks openai, the address '
                "should look like https://h/v1.",
            )
            for path in ("/v1/messages", "/messages/")
        ),
        *(
            (
                "B",
                path,
                "/chat/completions, which belongs to the dialect openai, and the provider's is anthropic: if it speaks "
                'openai, write dialect = "openai" and the address https://h/v1; if it speaks anthropic, the address '
                "should look like https://h.",
            )
            for path in ("/v1/chat/completions", "/chat/completions")
        ),
    ],
)
def test_provider_url_with_chat_path_error_names_its_dialect(
    tmp_path: Path, letter: str, path: str, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, {f"PROVIDER_{letter}_API_KEY": "k", f"PROVIDER_{letter}_BASE_URL": f"https://h{path}"})
    name = {"A": "openai", "B": "anthropic"}[letter]
    assert caught.value.message == f"The address of provider {name} ends in {expected}"


def test_provider_url_suggested_for_other_dialect_is_accepted(tmp_path: Path) -> None:
    entry = "[[providers]]\nname = 'x'\nbase_url = '{}'\ndialect = '{}'\n"
    for dialect, path, other, base in (
        ("openai", "/v1/messages", "anthropic", ""),
        ("anthropic", "/v1/chat/completions", "openai", "/v1"),
    ):
        with pytest.raises(UsageError, match=f'write dialect = "{other}" and the address http://h{base};'):
            load(tmp_path, {}, entry.format(f"http://h{path}", dialect))
        (provider,) = load(tmp_path, {}, entry.format(f"http://h{base}", other))
        assert provider.address.path + provider.dialect.chat_path == path


@pytest.mark.parametrize("host", ["h", "h.", "h_1.example", "10.0.0.5", "[::1]:80", "[fe80::1%25eth0]"])
def test_provider_valid_host_is_accepted(tmp_path: Path, host: str) -> None:
    (provider,) = load(tmp_path, {"PROVIDER_A_API_KEY": "k", "PROVIDER_A_BASE_URL": f"http://{host}/models"})
    assert provider.address.netloc == host


def test_provider_key_with_line_break_error_does_not_show_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, {"OPENAI_API_KEY": "sk\r\nx: y"})
    assert "sk" not in caught.value.message.replace("asks", "")


def test_fallbacks_replace_models_without_key_in_order(tmp_path: Path) -> None:
    providers = load(tmp_path, {"PROVIDER_C_API_KEY": "k"})
    chains = {"gpt-4o-mini": ("claude-3-haiku-20240307", "llama-3.1-8b-instant"), "mixtral-8x7b-32768": ("gpt-4o",)}
    found = router(providers, chains)
    assert [backend.model.id for backend in found.route("gpt-4o-mini")] == ["llama-3.1-8b-instant"]
    assert [backend.model.id for backend in found.route("mixtral-8x7b-32768")] == ["mixtral-8x7b-32768"]
    assert "gpt-4o-mini" not in [backend.model.id for backend in found.backends()]
    with pytest.raises(ModelNotFound):
        found.route("gpt-4o")


@pytest.mark.parametrize(
    ("text", "unknown", "line"),
    [
        ('[routing.fallbacks]\n"gpt-4o" = ["gpt-4o-mini", "gpt-4o-mimi"]', "gpt-4o-mimi", 2),
        ('# gpt-9\n[routing]\nretries = 1\n[routing.fallbacks]\ngpt-9 = ["gpt-4o"]', "gpt-9", 5),
        ('[routing]\nfallbacks = { "gpt-4o" = [\n  "" ] }', "", 2),
    ],
)
def test_fallback_unknown_model_error_names_it_and_its_line(tmp_path: Path, text: str, unknown: str, line: int) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, {}, text)
    assert f"svc.toml, line {line}: " in caught.value.message
    assert repr(unknown) in caught.value.message


def test_fallback_to_itself_raises_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line 2: .*'gpt-4o' contains the model itself"):
        load(tmp_path, {}, '[routing.fallbacks]\n"gpt-4o" = ["gpt-4o-mini", "gpt-4o"]')


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ('[[aliases]]\nname = "a"\nmodel = "gpt-4o-mimi"', "'gpt-4o-mimi'; did you mean 'gpt-4o-mini'?", 3),
        ('# gpt-9\n[[aliases]]\nname = "a"\nmodel = "gpt-9"', "a model that no provider has: 'gpt-9'", 4),
        ('aliases = [\n{ name = "b", model = "a" },\n{ name = "a", model = "gpt-4o" }]', "has: 'a'", 2),
        ('[[aliases]]\nname = "gpt-4o"\nmodel = "gpt-4o"', "'gpt-4o' names itself", 2),
        (f'[[aliases]]\nname = "{"n" * 513}"\nmodel = "gpt-4o"', "512 printable characters, unlike 'nnn", 2),
        ('[[aliases]]\nname="a"\nmodel="gpt-4o"\n[[aliases]]\nname="a"\nmodel="gpt-4o"', "have the name 'a'", 5),
    ],
)
def test_alias_invalid_error_names_it_and_its_line(tmp_path: Path, text: str, problem: str, line: int) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, {}, text)
    assert problem in caught.value.message
    assert f"svc.toml, line {line}: " in caught.value.message


def test_alias_with_control_character_raises_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"512 printable characters, unlike 'a\\x00b'"):
        load(tmp_path, {}, '[[aliases]]\nname = "a\\u0000b"\nmodel = "gpt-4o"')


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ('name = "a"', "there is no required field `model`"),
        ('model = "gpt-4o"', "`name`"),
        ('name = ""\nmodel = "gpt-4o"', "length"),
        ('name = "a"\nmodel = 1', "Expected string"),
        ('name = "a"\nmodel = "gpt-4o"\nkind = "chat"', "unknown key `kind`"),
    ],
)
def test_alias_malformed_entry_raises_usage_error(tmp_path: Path, entry: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, {}, f"[[aliases]]\n{entry}")
    assert "svc.toml, line " in caught.value.message
    assert "aliases" in caught.value.message
    assert problem in caught.value.message


def test_alias_of_model_without_key_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "svc.toml"
    path.write_text(
        '[[aliases]]\nname = "a"\nmodel = "gpt-4o"\n[[aliases]]\nname = "b"\nmodel = "mixtral-8x7b-32768"\n'
    )
    loaded = settings.load({"GROQ_API_KEY": "k"}, config=str(path))
    assert provider_warnings(loaded, build_providers(loaded)) == [
        f"{path}, line 2: the alias 'a' is not available: "
        "the provider openai has no API key (set OPENAI_API_KEY or PROVIDER_A_API_KEY)."
    ]


def test_price_of_one_token_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "svc.toml"
    path.write_text(
        "[[providers]]\nname = 'a'\nbase_url = 'http://127.0.0.1:5/v1'\nmodels = [\n"
        "  { id = 'm', input_price = 0.0000025, output_price = 10 },\n  { id = 'n', input_price = 0 },\n]\n"
    )
    loaded = settings.load({}, config=str(path))
    assert provider_warnings(loaded, build_providers(loaded)) == [
        f"{path}, line 4: input_price of 'm' is 2.5e-06 USD per million tokens. "
        "If one token costs that much, write 2.5."
    ]


def test_model_not_found_message_escapes_and_truncates_name(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound) as caught:
        router([]).route("x\r\n\x1b[31m" + "y" * 10_000)
    assert len(caught.value.message) < 200
    assert caught.value.message.isprintable()


def test_providers_missing_base_url_error_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "svc.toml").write_text("[[providers]]\nname = 'p'\n")
    with pytest.raises(UsageError) as caught:
        build_providers(settings.load({}, config=str(tmp_path / "svc.toml")))
    assert caught.value.message == f"{tmp_path}/svc.toml, line 2: Provider p needs a base_url."
