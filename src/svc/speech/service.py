"""The speech state of one gateway process, which its routes share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from svc.errors import BundleNotFound, InvalidRequest, ModelNotFound, PermissionDenied, SvcError
from svc.security import Keyring
from svc.settings import Settings, SpeechSettings
from svc.speech.accounting import UPLOAD_TRANSCRIPTION_PATH, SpeechRequestTracker
from svc.speech.audio import LIVE_AUDIO_FORMAT, AudioFormat
from svc.speech.metrics import SpeechMetrics
from svc.speech.model import NotASpeechModel, RecognitionModel
from svc.speech.model_catalog import SpeechBundleSource, SpeechModelCatalog
from svc.speech.pool import SpeechWorkerPool, WorkerSlot
from svc.speech.worker_process import RecognitionListener
from svc.wire.key import ApiKey
from svc.wire.speech import ConfigMessage
from svc.wire.speech_catalog import TranscriptionModelEntry

log = logging.getLogger("svc.speech")

SESSION_SHUTDOWN_TIMEOUT_SECONDS = 3.0
"""Seconds until open sessions must be closed when the server stops."""


PullBundle = Callable[[str], object]
"""Pulls a bundle into the registry folder by its reference."""


class StoppableSession(Protocol):
    """A live session."""

    def shutdown(self) -> None:
        """Close the session because the server stops."""

    async def wait_closed(self) -> None:
        """Wait until the session is closed."""


class SpeechService:
    """The shared state of the speech routes. Belongs to one event loop."""

    def __init__(
        self,
        settings: Settings,
        keyring: Keyring,
        request_tracker: SpeechRequestTracker,
        bundle_source: SpeechBundleSource,
        pull_bundle: PullBundle | None = None,
        *,
        metrics: SpeechMetrics,
    ) -> None:
        self.settings = settings.speech
        self.stream_keep_alive = settings.gateway.stream_keep_alive
        """Seconds without an event after which a streamed transcript gets a keep-alive."""
        self.keyring = keyring
        self.request_tracker = request_tracker
        self.metrics = metrics
        self.pool = SpeechWorkerPool(settings.speech.workers, settings.speech.max_sessions, self.metrics)
        self.sessions: set[StoppableSession] = set()
        self._bundle_source = bundle_source
        self._model_catalog = SpeechModelCatalog(settings, bundle_source)
        self._pull_bundle = pull_bundle
        self._pull_lock = asyncio.Lock()
        self._preload_task: asyncio.Task[None] | None = None
        self._installed_models: frozenset[str] = frozenset()
        """The models that the last listing found."""
        self.find_other_endpoint: Callable[[str], str | None] = _no_endpoint
        """Returns the endpoint of a model that is not for speech, or None."""

    def configure(self, settings: Settings) -> None:
        """Apply changed settings to later sessions. Running workers keep theirs."""
        self.settings = settings.speech
        self.stream_keep_alive = settings.gateway.stream_keep_alive
        self._model_catalog = SpeechModelCatalog(settings, self._bundle_source)

    def start(self) -> None:
        """Load the default model in the background if it is installed."""
        self._preload_task = asyncio.create_task(self._preload_default_model(), name="speech-warm")

    async def _preload_default_model(self) -> None:
        await self._list_installed()
        try:
            model, _ = await self._resolve_model(ConfigMessage())
        except SvcError as error:
            is_configured = self.settings.default_model != SpeechSettings().default_model
            log.log(
                logging.WARNING if is_configured else logging.INFO,
                "the default speech model is not available: %s",
                error.message,
            )
            return
        await self.pool.preload(model)

    async def authenticate(self, secret: str | None) -> ApiKey:
        """Return the key of the request. Raises AuthenticationFailed and PermissionDenied."""
        key = await self.keyring.authenticate(secret)
        if "speech" not in key.scopes:
            raise PermissionDenied("This key may not use speech.")
        return key

    async def list_models(self, key: ApiKey) -> list[str]:
        """Return the names of the installed models that the key may use."""
        if "speech" not in key.scopes:
            return []
        return [name for name in await self._list_installed() if key.may_use(name)]

    async def describe_models(self, key: ApiKey) -> list[TranscriptionModelEntry]:
        """Return the installed models that the key may use, with their languages."""
        names, default = await self.list_models(key), self.settings.default_model
        languages = await asyncio.to_thread(self._model_catalog.languages_of, names)
        return [
            TranscriptionModelEntry(model=name, languages=languages[name], is_default=name == default) for name in names
        ]

    async def _list_installed(self) -> list[str]:
        names = await asyncio.to_thread(self._model_catalog.model_names)
        self._installed_models = frozenset(names)
        return names

    def endpoint_for(self, model: str) -> str | None:
        """Return the endpoint of an installed speech model, or None for any other model."""
        return f"POST {UPLOAD_TRANSCRIPTION_PATH}" if model in self._installed_models else None

    async def acquire_slot(
        self,
        key: ApiKey,
        config: ConfigMessage,
        listener: RecognitionListener,
        *,
        format_: AudioFormat = LIVE_AUDIO_FORMAT,
        live: bool = True,
        with_words: bool = False,
        request_id: str = "",
    ) -> tuple[WorkerSlot, str, str | None]:
        """Return a worker slot, the model's name and the language. Raises what the catalog and the pool raise."""
        requested_model = (config.model or self.settings.default_model).partition("@")[0]
        if not config.model_dir and not key.may_use(requested_model):  # before the model is pulled
            raise _model_not_allowed(requested_model)
        try:
            model, language = await self._resolve_model(config)
        except (ModelNotFound, NotASpeechModel) as error:
            raise self._explain_missing_model(key, config, requested_model, error) from None
        if not key.may_use(model.name):
            raise _model_not_allowed(model.name)
        vad = config.vad is not False
        slot = await self.pool.acquire_slot(
            model,
            listener,
            vad=vad,
            language=language,
            format_=format_,
            live=live,
            with_words=with_words,
            request_id=request_id,
        )
        return slot, model.name, language

    def _explain_missing_model(
        self, key: ApiKey, config: ConfigMessage, requested_model: str, error: ModelNotFound | NotASpeechModel
    ) -> SvcError:
        """Return the error for a model that is not installed or is not for speech."""
        if config.model_dir:  # the error names the folder and the missing file
            return error
        if endpoint := self.find_other_endpoint(requested_model):
            return ModelNotFound(
                f"The model {requested_model[:64]!r} is not a speech model. Use {endpoint}.", param="model"
            )
        if isinstance(error, NotASpeechModel):  # without a name the configured default is wrong
            text = f"The model {requested_model[:64]!r} is installed, but is not a speech model. See: svc models ls"
            return InvalidRequest(text, param="model") if config.model else error
        return (
            _model_not_allowed(requested_model) if key.models is not None else error
        )  # the error would list all installed models

    async def _resolve_model(self, config: ConfigMessage) -> tuple[RecognitionModel, str | None]:
        """Resolve an installed model, after a pull if necessary. Raises what the catalog raises."""
        if self._pull_bundle is not None:
            missing_reference = await asyncio.to_thread(self._model_catalog.missing_reference, config)
            if missing_reference is not None:
                await self._pull_missing(self._pull_bundle, missing_reference)
        return await asyncio.to_thread(self._model_catalog.resolve, config)

    async def _pull_missing(self, pull_bundle: PullBundle, reference: str) -> None:
        """Pull one bundle at a time. Only logs a failure: the catalog reports the missing model."""
        async with self._pull_lock:
            try:
                await asyncio.to_thread(pull_bundle, reference)
            except (BundleNotFound, InvalidRequest):
                log.info("the registry has no bundle %s", reference[:64])
            except SvcError as error:
                log.warning("the speech model %s was not pulled: %s", reference[:64], error.message)

    async def wait_for_sessions(self) -> None:
        """Wait until no session is open."""
        while self.sessions:
            await asyncio.gather(*[session.wait_closed() for session in self.sessions])

    async def stop_sessions(self) -> None:
        """Close every session and wait up to SESSION_SHUTDOWN_TIMEOUT_SECONDS."""
        sessions = list(self.sessions)
        for session in sessions:
            session.shutdown()
        if sessions:
            _, unfinished = await asyncio.wait(
                [asyncio.ensure_future(session.wait_closed()) for session in sessions],
                timeout=SESSION_SHUTDOWN_TIMEOUT_SECONDS,
            )
            for task in unfinished:
                task.cancel()

    async def close(self) -> None:
        """Close the sessions and stop the workers."""
        if self._preload_task is not None:
            self._preload_task.cancel()
            await asyncio.gather(self._preload_task, return_exceptions=True)
        await self.stop_sessions()
        await self.pool.close()


def _no_endpoint(model: str) -> str | None:
    return None


def _model_not_allowed(name: str) -> ModelNotFound:
    return ModelNotFound(f"This key has no speech model {name[:64]!r}.", param="model")
