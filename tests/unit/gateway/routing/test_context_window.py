import json

from svc.dialects.base import RequestBody
from svc.dialects.openai.routing_info import decode_routing_info
from svc.dialects.routing_info import RoutingInfo
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.context_window import fits_context_window
from svc.gateway.routing.providers import build_provider
from svc.settings import ModelSettings, ProviderSettings


def offer(window: int) -> Backend:
    models = (ModelSettings(id="m", context_window=window, max_output_tokens=1000),)
    return build_backends(build_provider(ProviderSettings(name="p", models=models), "http://127.0.0.1:1/v1", ""))[0]


def fit(content: object, **more: object) -> bool:
    """Whether a request with this content goes to a model with room for 32,000 tokens."""
    asked = {"model": "m", "messages": [{"role": "user", "content": content}], **more}
    body = RequestBody(json.dumps(asked, ensure_ascii=False).encode())
    return fits_context_window(offer(32_000), body, decode_routing_info(body))


def test_a_prompt_that_is_clearly_too_long() -> None:
    assert fit("word " * 20_000)
    assert not fit("word " * 40_000)


def test_what_is_to_be_answered_needs_room_too() -> None:
    assert fit("word " * 25_200)
    assert not fit("word " * 25_200, max_tokens=900)


def test_an_image_by_value_is_not_text() -> None:
    link = f"data:image/png;base64,{'iVBORw0KGgo' * 100_000}"
    assert fit([{"type": "image_url", "image_url": {"url": link}}])


def test_every_letter_may_be_a_token_elsewhere() -> None:
    assert fit("語" * 20_000)
    assert not fit("語" * 40_000)


def test_a_batch_of_inputs_is_not_one_prompt() -> None:
    body = RequestBody(b'{"input":"' + b"word " * 40_000 + b'"}')
    assert not fits_context_window(offer(32_000), body, RoutingInfo(model="m"))
    assert fits_context_window(offer(32_000), body, RoutingInfo(model="m", has_single_prompt=False))
