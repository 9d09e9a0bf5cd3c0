"""Which offers answer for a model: the model's own, then its fallbacks, in order. No sockets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from svc.errors import ModelNotFound
from svc.gateway.offers import Offer


class Router:
    """Model name -> offers to try. The first provider that offers a name wins it."""

    def __init__(self, offers: Iterable[Offer], fallbacks: Mapping[str, tuple[str, ...]]) -> None:
        self._fallbacks = fallbacks
        self._offers: dict[str, Offer] = {}
        self._chains: dict[str, tuple[Offer, ...]] = {}
        for offer in offers:
            self._offers.setdefault(offer.model_id, offer)
        self._link()

    def put(self, offers: Iterable[Offer]) -> None:
        """Adds offers, or replaces those of the same provider and model (a provider that moved)."""
        for offer in offers:
            present = self._offers.get(offer.model_id)
            if present is None or present.provider_name == offer.provider_name:
                self._offers[offer.model_id] = offer
        self._link()

    def _link(self) -> None:
        self._chains = {name: self._chain(name) for name in {*self._offers, *self._fallbacks}}

    def _chain(self, name: str) -> tuple[Offer, ...]:
        names = dict.fromkeys((name, *self._fallbacks.get(name, ())))
        return tuple(self._offers[each] for each in names if each in self._offers)

    def offers(self) -> list[Offer]:
        """Every model that is offered, one offer each."""
        return list(self._offers.values())

    def route(self, model: str) -> tuple[Offer, ...]:
        """Where a request for `model` may go, best first; raises ModelNotFound."""
        chain = self._chains.get(model)
        if not chain:
            raise ModelNotFound(f"The model {shown(model)} is not offered here.", param="model")
        return chain


def shown(model: str) -> str:
    """A name of a client's, fit for a message: no control characters, not endless."""
    text = "".join(letter if letter.isprintable() else "?" for letter in model[:100])
    return f"'{text}'"
