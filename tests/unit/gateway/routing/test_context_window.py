import json

from svc.dialects.base import RequestBody
from svc.dialects.openai.routing_info import decode_routing_info
from svc.dialects.routing_info import RoutingInfo
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.load_balancer import fits_context_window
from svc.gateway.routing.providers import build_provider
from svc.settings import ModelSettings, ProviderSettings


def backend(window: int) -> Backend:
    models = (ModelSettings(id="m", context_window=window, max_output_tokens=1000),)
    return build_backends(build_provider(ProviderSettings(name="p", models=models), "http://127.0.0.1:1/v1", ""))[0]


def fits(content: object, **more: object) -> bool:
    """Whether a request with this content fits a context window of 32,000 tokens."""
    request = {"model": "m", "messages": [{"role": "user", "content": content}], **more}
    body = RequestBody(json.dumps(request, ensure_ascii=False).encode())
    return fits_context_window(backend(32_000), body, decode_routing_info(body))


def test_context_window_too_long_prompt_does_not_fit() -> None:
    assert fits("word " * 20_000)
    assert not fits("word " * 40_000)


def test_context_window_max_tokens_needs_room() -> None:
    assert fits("word " * 25_200)
    assert not fits("word " * 25_200, max_tokens=900)


def test_context_window_inline_image_is_not_counted_as_text() -> None:
    link = f"data:image/png;base64,{'iVBORw0KGgo' * 100_000}"
    assert fits([{"type": "image_url", "image_url": {"url": link}}])


def test_context_window_cjk_characters_count_as_tokens() -> None:
    assert fits("語" * 20_000)
    assert not fits("語" * 40_000)


def test_context_window_batch_input_is_not_one_prompt() -> None:
    body = RequestBody(b'{"input":"' + b"word " * 40_000 + b'"}')
    assert not fits_context_window(backend(32_000), body, RoutingInfo(model="m"))
    assert fits_context_window(backend(32_000), body, RoutingInfo(model="m", has_single_prompt=False))
