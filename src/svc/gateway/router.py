"""Which offers answer for a model: those of each provider that has it, then those of its fallbacks. No sockets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from svc.errors import ModelNotFound
from svc.gateway.offers import Offer
from svc.wire.key import Key


class Router:
    """Model name -> offers to try, in the order of the providers: one that fails is followed by the next."""

    def __init__(self, offers: Iterable[Offer], fallbacks: Mapping[str, tuple[str, ...]]) -> None:
        self._fallbacks = fallbacks
        self._offers: dict[str, dict[str, Offer]] = {}
        """By model, then by provider, in the order in which the providers are tried."""
        self._chains: dict[str, tuple[Offer, ...]] = {}
        self.put(offers)

    def put(self, offers: Iterable[Offer]) -> None:
        """Adds offers, or replaces those of the same provider and model (a provider that moved)."""
        for offer in offers:
            self._offers.setdefault(offer.model_id, {})[offer.provider_name] = offer
        self._link()

    def _link(self) -> None:
        self._chains = {name: self._chain(name) for name in {*self._offers, *self._fallbacks}}

    def _chain(self, name: str) -> tuple[Offer, ...]:
        names = dict.fromkeys((name, *self._fallbacks.get(name, ())))
        return tuple(offer for each in names for offer in self._offers.get(each, {}).values())

    def models(self) -> list[Offer]:
        """Every model that is offered, by the provider that is tried first."""
        return [next(iter(offers.values())) for offers in self._offers.values()]

    def offers(self) -> list[Offer]:
        """Every model at every provider that offers it."""
        return [offer for offers in self._offers.values() for offer in offers.values()]

    def route(self, model: str, key: Key | None = None) -> tuple[Offer, ...]:
        """Where a request for `model` may go, best first; by what the key may use, if one is given.

        Raises ModelNotFound.
        """
        chain: tuple[Offer, ...] | None = self._chains.get(model)
        if key is not None and key.models is not None and chain is not None:  # nor by way of a fallback
            chain = tuple(offer for offer in chain if key.may_use(offer.model_id)) if key.may_use(model) else None
        if not chain:
            raise ModelNotFound(f"The model {shown(model)} is not offered here.", param="model")
        return chain


def shown(model: str) -> str:
    """A name of a client's, fit for a message: no control characters, not endless."""
    text = "".join(letter if letter.isprintable() else "?" for letter in model[:100])
    return f"'{text}'"
