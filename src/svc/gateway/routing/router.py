"""Finds the backends of a model: those of each provider that has it, then those of its fallbacks. No sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from svc.errors import InvalidRequest, ModelNotFound
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.model_errors import model_not_found, quote_name
from svc.gateway.routing.provider_entries import LOCAL_PROVIDER
from svc.wire.key import ApiKey


class Router:
    """Maps a model name to its backends, in the order of the attempts."""

    def __init__(
        self,
        backends: Iterable[Backend],
        fallbacks: Mapping[str, tuple[str, ...]],
        models_without_key: Mapping[str, str] | None = None,
        paths_by_kind: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        is_served_by: Callable[[Backend], bool] = lambda _: True,
    ) -> None:
        """`models_without_key`: models that are not offered, and the missing key of each.

        `paths_by_kind`: the endpoint for each kind of model. `aliases`: the model of each alias. `is_served_by`:
        whether a backend can serve an endpoint for models of its kind.
        """
        self._is_served_by = is_served_by
        self._paths_by_kind: Mapping[str, str] = paths_by_kind or {}
        self._fallbacks = fallbacks
        self._aliases: Mapping[str, str] = aliases or {}
        self._models_without_key: Mapping[str, str] = models_without_key or {}
        self.find_other_endpoint: Callable[[str], str | None] = _no_endpoint
        """Returns the endpoint of a model that this router does not know, such as a speech model."""
        self._backends: dict[str, dict[str, Backend]] = {}
        """Backends by model, then by provider, in the order of the attempts."""
        self._backends_with_fallbacks: dict[str, tuple[Backend, ...]] = {}
        """The backends of each model or alias, then those of its fallbacks."""
        self.put_backends(backends)

    def replace(
        self,
        backends: Iterable[Backend],
        fallbacks: Mapping[str, tuple[str, ...]],
        models_without_key: Mapping[str, str],
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Replace all backends except those of the embedded model, whose process continues."""
        embedded = [backend for backend in self.backends() if backend.provider_name == LOCAL_PROVIDER]
        self._backends, self._fallbacks, self._models_without_key = {}, fallbacks, models_without_key
        self._aliases = aliases or {}
        self.put_backends([*backends, *embedded])

    def put_backends(self, backends: Iterable[Backend]) -> None:
        """Add backends, or replace those of the same provider and model (such as after a change of address)."""
        for backend in backends:
            self._backends.setdefault(backend.model_id, {})[backend.provider_name] = backend
        self._backends_with_fallbacks = {
            name: self._add_fallbacks(self._aliases.get(name, name))
            for name in {*self._backends, *self._fallbacks, *self._aliases}
        }

    def remove_local_models(self, names: Iterable[str]) -> None:
        """Remove models of this machine that are no longer installed."""
        for name in names:
            by_provider = self._backends.get(name, {})
            by_provider.pop(LOCAL_PROVIDER, None)
            if not by_provider:
                self._backends.pop(name, None)
        self.put_backends(())

    def _add_fallbacks(self, name: str) -> tuple[Backend, ...]:
        names = dict.fromkeys((name, *self._fallbacks.get(name, ())))
        backends = [backend for model in names for backend in self._backends.get(model, {}).values()]
        backends = [backend for backend in backends if backend.kind == backends[0].kind]
        # If none is left, the client gets the error of the first one.
        return tuple(filter(self._is_served_by, backends)) or tuple(backends)

    def first_backends(self) -> list[Backend]:
        """Return the first backend of each model."""
        return [next(iter(by_provider.values())) for by_provider in self._backends.values()]

    def offered_models(self, key: ApiKey | None) -> dict[str, Backend]:
        """Return the models and aliases that a key may use, each with its first backend."""
        offered = {backend.model_id: backend for backend in self.first_backends()}
        for alias, model in self._aliases.items():
            if by_provider := self._backends.get(model):
                offered[alias] = next(iter(by_provider.values()))
            else:  # hides a model of the same name
                offered.pop(alias, None)
        return {name: backend for name, backend in offered.items() if key is None or self._may_use(key, name)}

    def _may_use(self, key: ApiKey, name: str) -> bool:
        """Return whether the key's list of models has the name, or the model of this alias."""
        return key.may_use(name) or (name in self._aliases and key.may_use(self._aliases[name]))

    def resolve_alias(self, name: str) -> str:
        """Return the model of an alias, or the name itself."""
        return self._aliases.get(name, name)

    def backends(self) -> list[Backend]:
        """Return all backends."""
        return [backend for by_provider in self._backends.values() for backend in by_provider.values()]

    def endpoint_for(self, model: str) -> str | None:
        """Return method and path of the endpoint of a model, or None if this router does not know the model."""
        backends = self._backends_with_fallbacks.get(model)
        path = self._paths_by_kind.get(backends[0].kind) if backends else None
        return f"POST {path}" if path else None

    def route(self, model: str, key: ApiKey | None = None, kind: str = "chat") -> tuple[Backend, ...]:
        """Return the backends of `model`, in the order of the attempts. With `key`, only those that the key may use.

        Raises ModelNotFound, and InvalidRequest for a model of another kind.
        """
        backends: tuple[Backend, ...] | None = self._backends_with_fallbacks.get(model)
        if key is not None and key.models is not None and backends is not None:
            backends = self._allowed_backends(model, key, backends)
        if not backends:
            raise self.model_not_found_error(model, key)
        if backends[0].kind != kind:
            raise self._wrong_kind_error(model)
        return backends

    def _allowed_backends(self, name: str, key: ApiKey, backends: tuple[Backend, ...]) -> tuple[Backend, ...]:
        """Return the backends that a key with a list of models may use. The list applies to fallbacks as well."""
        if not self._may_use(key, name):
            return ()
        model = self._aliases.get(name, name)
        allowed = [backend for backend in backends if backend.model_id == model or key.may_use(backend.model_id)]
        return tuple(allowed or self._backends.get(model, {}).values())  # none of them serves its endpoint

    def _wrong_kind_error(self, model: str) -> InvalidRequest:
        message, endpoint = f"The model {quote_name(model)} is not for this endpoint", self.endpoint_for(model)
        return InvalidRequest(f"{message}: send it to {endpoint}." if endpoint else f"{message}.", param="model")

    def model_not_found_error(self, model: str, key: ApiKey | None) -> ModelNotFound:
        """Return the error for a model that a key cannot use. The error reveals no model that the key may not use."""
        available_models = self.offered_models(key)
        name, endpoint = quote_name(model), self.find_other_endpoint(model)
        if key is not None and not self._may_use(key, model):
            return model_not_found(f"This API key may not use the model {name}.", available_models)
        if reason := self._models_without_key.get(self._aliases.get(model, model)):
            return model_not_found(f"The model {name} is not available here: {reason}.", available_models)
        if endpoint is not None:
            return model_not_found(
                f"The model {name} is not for this endpoint: send it to {endpoint}.", available_models
            )
        return model_not_found(f"The model {name} is not available here.", available_models)


def _no_endpoint(model: str) -> str | None:
    return None
