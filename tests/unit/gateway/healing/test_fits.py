import json

from svc.gateway.healing.fits import fits
from svc.gateway.offers import Offer, offers_of
from svc.gateway.providers import provider_of
from svc.settings import ModelSettings, ProviderSettings


def offer(window: int) -> Offer:
    models = (ModelSettings(id="m", context_window=window, max_output_tokens=1000),)
    return offers_of(provider_of(ProviderSettings(name="p", models=models), "http://127.0.0.1:1/v1", ""))[0]


def body(content: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}, ensure_ascii=False).encode()


def test_a_prompt_that_is_clearly_too_long() -> None:
    assert fits(offer(32_000), body("word " * 20_000), None)
    assert not fits(offer(32_000), body("word " * 40_000), None)


def test_what_is_to_be_answered_needs_room_too() -> None:
    assert fits(offer(32_000), body("word " * 25_200), None)
    assert not fits(offer(32_000), body("word " * 25_200), 900)


def test_an_image_by_value_is_not_text() -> None:
    link = f"data:image/png;base64,{'iVBORw0KGgo' * 100_000}"
    assert fits(offer(32_000), body([{"type": "image_url", "image_url": {"url": link}}]), None)


def test_every_letter_may_be_a_token_elsewhere() -> None:
    assert fits(offer(32_000), body("語" * 20_000), None)
    assert not fits(offer(32_000), body("語" * 40_000), None)
