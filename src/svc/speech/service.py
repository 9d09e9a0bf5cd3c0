"""Speech of one gateway process: what its routes share, from `start` to `close`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from svc.errors import BundleNotFound, InvalidRequest, ModelNotFound, PermissionDenied, SvcError
from svc.security import Keyring
from svc.settings import Settings, SpeechSettings
from svc.speech.audio import LIVE, Format
from svc.speech.books import UPLOAD_PATH, Counts, Visits
from svc.speech.catalogue import Catalogue, Shelf
from svc.speech.model import Model, NoSpeechModel
from svc.speech.pool import Pool, Seat
from svc.speech.process import Listener
from svc.wire.key import Key
from svc.wire.speech import Config

log = logging.getLogger("svc.speech")

SHUTDOWN_PATIENCE = 3.0
"""Seconds for sessions to be told that the server stops."""


Pull = Callable[[str], object]
"""Brings a bundle into the registry's folder, by its reference, from wherever the configuration says."""


class Running(Protocol):
    """A live session."""

    def shutdown(self) -> None:
        """The server stops."""

    async def ended(self) -> None:
        """Waits for the end."""


class Service:
    """Belongs to one event loop."""

    def __init__(
        self, settings: Settings, keyring: Keyring, visits: Visits, shelf: Shelf, pull: Pull | None = None
    ) -> None:
        self.settings = settings.speech
        self.keyring = keyring
        self.visits = visits
        self.counts = Counts()
        self.pool = Pool(settings.speech.workers, settings.speech.max_sessions, self.counts)
        self.sessions: set[Running] = set()
        self._shelf = shelf
        self._catalogue = Catalogue(settings, shelf)
        self._pull = pull
        self._pulling = asyncio.Lock()
        self._warming: asyncio.Task[None] | None = None
        self._known: frozenset[str] = frozenset()
        """Installed models, when they were last looked at."""
        self.elsewhere: Callable[[str], str | None] = _nowhere
        """The endpoint of a model that is not for speech."""

    def configure(self, settings: Settings) -> None:
        """A changed configuration, for sessions from now on; the workers are as they were started."""
        self.settings = settings.speech
        self._catalogue = Catalogue(settings, self._shelf)

    def start(self) -> None:
        """Loads the default model in the background, if it is installed."""
        self._warming = asyncio.create_task(self._warm(), name="speech-warm")

    async def _warm(self) -> None:
        await self._installed()
        try:
            model, _ = await self._choose(Config())
        except SvcError as error:
            wanted = self.settings.default_model != SpeechSettings().default_model
            log.log(logging.WARNING if wanted else logging.INFO, "no speech yet: %s", error.message)
            return
        await self.pool.warm(model)

    async def key(self, secret: str | None) -> Key:
        """The calling key; raises AuthenticationFailed, PermissionDenied."""
        key = await self.keyring.authenticate(secret)
        if "speech" not in key.scopes:
            raise PermissionDenied("This key may not use speech.")
        return key

    async def models(self, key: Key) -> list[str]:
        """The names of the installed models that a key may use."""
        if "speech" not in key.scopes:
            return []
        return [name for name in await self._installed() if key.may_use(name)]

    async def _installed(self) -> list[str]:
        names = await asyncio.to_thread(self._catalogue.names)
        self._known = frozenset(names)
        return names

    def endpoint(self, model: str) -> str | None:
        """Where a model that is installed for speech is to be sent; None for any other."""
        return f"POST {UPLOAD_PATH}" if model in self._known else None

    async def attach(
        self, key: Key, config: Config, listener: Listener, *, format_: Format = LIVE, live: bool = True
    ) -> tuple[Seat, str, str | None]:
        """A seat, the model's name, the language. Raises what the catalogue and the pool raise."""
        asked = (config.model or self.settings.default_model).partition("@")[0]
        if not config.model_dir and not key.may_use(asked):  # before anything is fetched for it
            raise _not_for_this_key(asked)
        try:
            model, language = await self._choose(config)
        except (ModelNotFound, NoSpeechModel) as error:
            raise self._refusal(key, config, asked, error) from None
        if not key.may_use(model.name):
            raise _not_for_this_key(model.name)
        vad = config.vad is not False
        seat = await self.pool.attach(model, listener, vad=vad, language=language, format_=format_, live=live)
        return seat, model.name, language

    def _refusal(self, key: Key, config: Config, asked: str, error: ModelNotFound | NoSpeechModel) -> SvcError:
        """What the client gets for a model that is not here, or is not for speech."""
        if config.model_dir:  # the error says which folder, and what it lacks
            return error
        if endpoint := self.elsewhere(asked):
            return ModelNotFound(f"The model {asked[:64]!r} is not for speech: send it to {endpoint}.", param="model")
        if isinstance(error, NoSpeechModel):  # without a name, it is the operator's default that is wrong
            text = f"The model {asked[:64]!r} is installed here, and is not for speech. See: svc models ls"
            return InvalidRequest(text, param="model") if config.model else error
        return _not_for_this_key(asked) if key.models is not None else error  # no list of all that are installed

    async def _choose(self, config: Config) -> tuple[Model, str | None]:
        """From what is here, after the registry was asked if need be. Raises what the catalogue raises."""
        if self._pull is not None:
            lacking = await asyncio.to_thread(self._catalogue.lacking, config)
            if lacking is not None:
                await self._fetch(self._pull, lacking)
        return await asyncio.to_thread(self._catalogue.choose, config)

    async def _fetch(self, pull: Pull, reference: str) -> None:
        """One at a time. A failure is only logged: the catalogue says what is not here."""
        async with self._pulling:
            try:
                await asyncio.to_thread(pull, reference)
            except (BundleNotFound, InvalidRequest):
                log.info("the registry has no %s", reference[:64])
            except SvcError as error:
                log.warning("the speech model %s was not fetched: %s", reference[:64], error.message)

    async def stop_sessions(self) -> None:
        """Tells every session that the server stops, and waits a little until they are told."""
        sessions = list(self.sessions)
        for session in sessions:
            session.shutdown()
        if sessions:
            _, late = await asyncio.wait(
                [asyncio.ensure_future(session.ended()) for session in sessions], timeout=SHUTDOWN_PATIENCE
            )
            for waiting in late:
                waiting.cancel()

    async def close(self) -> None:
        """Ends the workers."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        await self.stop_sessions()
        await self.pool.close()


def _nowhere(model: str) -> str | None:
    return None


def _not_for_this_key(name: str) -> ModelNotFound:
    return ModelNotFound(f"There is no speech model {name[:64]!r} for this key.", param="model")
