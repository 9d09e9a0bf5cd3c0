"""Which offers answer for a model: those of each provider that has it, then those of its fallbacks. No sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from svc.errors import ModelNotFound
from svc.gateway.offers import EMBEDDED, Offer
from svc.gateway.refused_models import model_not_found, shown
from svc.wire.key import Key


class Router:
    """Model name -> offers to try, in the order of the providers: one that fails is followed by the next."""

    def __init__(
        self,
        offers: Iterable[Offer],
        fallbacks: Mapping[str, tuple[str, ...]],
        unkeyed: Mapping[str, str] | None = None,
    ) -> None:
        """`unkeyed`: models that are left out, and which key they lack."""
        self._fallbacks = fallbacks
        self._unkeyed: Mapping[str, str] = unkeyed or {}
        self.elsewhere: Callable[[str], str | None] = _nowhere
        """The endpoint of a model that is not for chat."""
        self._offers: dict[str, dict[str, Offer]] = {}
        """By model, then by provider, in the order in which the providers are tried."""
        self._chains: dict[str, tuple[Offer, ...]] = {}
        self.put(offers)

    def replace(
        self, offers: Iterable[Offer], fallbacks: Mapping[str, tuple[str, ...]], unkeyed: Mapping[str, str]
    ) -> None:
        """Takes other offers in place of all but those of the embedded model, whose process goes on."""
        embedded = [offer for offer in self.offers() if offer.provider_name == EMBEDDED]
        self._offers, self._fallbacks, self._unkeyed = {}, fallbacks, unkeyed
        self.put([*offers, *embedded])

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

    def endpoint(self, model: str) -> str | None:
        """Where a model that is offered for chat is to be sent; None for any other."""
        return "POST /v1/chat/completions" if model in self._offers else None

    def route(self, model: str, key: Key | None = None) -> tuple[Offer, ...]:
        """Where a request for `model` may go, best first; by what the key may use, if one is given.

        Raises ModelNotFound.
        """
        chain: tuple[Offer, ...] | None = self._chains.get(model)
        if key is not None and key.models is not None and chain is not None:  # nor by way of a fallback
            chain = tuple(offer for offer in chain if key.may_use(offer.model_id)) if key.may_use(model) else None
        if not chain:
            raise self.not_found(model, key)
        return chain

    def not_found(self, model: str, key: Key | None) -> ModelNotFound:
        """Why a key cannot have a model. Of models that are not on the key's list, it says nothing."""
        offered = [offer.model_id for offer in self.models() if key is None or key.may_use(offer.model_id)]
        name, endpoint = shown(model), self.elsewhere(model)
        if key is not None and not key.may_use(model):
            return model_not_found(f"This API key may not use the model {name}.", offered)
        if model in self._unkeyed:
            return model_not_found(f"The model {name} is not offered here: {self._unkeyed[model]}.", offered)
        if endpoint is not None:
            return model_not_found(f"The model {name} is not for chat: send it to {endpoint}.", offered)
        return model_not_found(f"The model {name} is not offered here.", offered)


def _nowhere(model: str) -> str | None:
    return None
