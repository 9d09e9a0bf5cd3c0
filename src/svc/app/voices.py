"""Offers the voices of this machine as models of the provider `local`, and keeps the list current."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.backends import build_backends
from svc.gateway.routing.fair_queue import FairQueue
from svc.gateway.routing.provider_entries import LOCAL_PROVIDER
from svc.gateway.routing.providers import build_provider
from svc.settings import ModelSettings, ProviderSettings, Settings, SpeechSettings
from svc.speech.metrics import SpeechMetrics
from svc.speech.synthesis.catalog import InstalledVoice, VoiceCatalog, open_catalog
from svc.speech.synthesis.process import VoiceProcess
from svc.wire.chat import UpstreamOverrides
from svc.wire.key import ApiKey
from svc.wire.speech_catalog import VoiceEntry
from svc.wire.synthesis import MAX_SPEECH_INPUT_CHARS

log = logging.getLogger("svc.speech")

VOICE_LIST_INTERVAL_SECONDS = 1.0
"""Seconds until a voice that was added or removed is noticed."""
_IGNORED_FIELDS = ("instructions",)
"""Request fields that have no meaning for a voice of this machine."""


@asynccontextmanager
async def run_voices(
    settings: Settings, context: GatewayContext, metrics: SpeechMetrics
) -> AsyncIterator[OfferedVoices]:
    """Offer the installed voices until the context ends.

    Their process starts with the first request, or as soon as the default voice is installed, which it then loads.
    """
    root = settings.registry_root
    process = VoiceProcess(root, settings.speech.max_syntheses, metrics.record_work)
    voices = OfferedVoices(context, open_catalog(root), process)
    await voices.refresh()
    process.start()
    refresh_task = asyncio.create_task(voices.keep_current(), name="voice list")
    try:
        yield voices
    finally:
        refresh_task.cancel()
        await asyncio.gather(refresh_task, return_exceptions=True)
        await process.stop()


class OfferedVoices:
    """The voices that the router knows."""

    def __init__(self, context: GatewayContext, catalog: VoiceCatalog, process: VoiceProcess) -> None:
        self._context, self._catalog, self._process = context, catalog, process
        self._offered: list[InstalledVoice] = []
        self._queue = _create_queue(context.config.current.settings.speech)

    @property
    def names(self) -> set[str]:
        """The names of the voices."""
        return {voice.name for voice in self._offered}

    def list_entries(self, key: ApiKey) -> list[VoiceEntry]:
        """Return the models that speak and that the key may use, also those of other providers."""
        installed = {voice.name: voice for voice in self._offered}
        default_voice = self._context.config.current.settings.speech.default_voice
        entries = []
        for name, backend in self._context.router.offered_models(key).items():
            if backend.kind != "speech":
                continue
            voice = installed.get(backend.model_id) if backend.provider_name == LOCAL_PROVIDER else None
            entries.append(
                VoiceEntry(
                    model=name,
                    provider=backend.provider_name,
                    quality=None if voice is None else "natural" if voice.is_natural else "fast",
                    languages=[] if voice is None else list(voice.languages),
                    is_default=name == default_voice,
                )
            )
        return entries

    async def keep_current(self) -> None:
        """Refresh the list periodically."""
        while True:
            await asyncio.sleep(VOICE_LIST_INTERVAL_SECONDS)
            try:
                await self.refresh()
            except Exception:  # the next refresh may succeed
                log.exception("the voices cannot be listed")

    async def refresh(self) -> None:
        """Read the installed voices, and change the router's backends if they differ."""
        found = await asyncio.to_thread(self._catalog.list_voices)
        if found == self._offered:
            return
        previous_names, self._offered = self.names, found
        default_voice = self._context.config.current.settings.speech.default_voice
        if default_voice in self.names - previous_names:
            self._process.preload(default_voice)
        self._context.router.remove_local_models(previous_names)
        entry = ProviderSettings(
            name=LOCAL_PROVIDER,
            models=tuple(_model_settings(voice) for voice in found),
            quirks=UpstreamOverrides(rejects=_IGNORED_FIELDS),
        )
        backends = build_backends(build_provider(entry, self._process.base_url, self._process.key))
        for backend in backends:
            backend.queue = self._queue
        self._context.router.put_backends(backends)
        self._context.ledger.prices.set_configured_prices(backends)


def _create_queue(settings: SpeechSettings) -> FairQueue:
    """Return the queue of all voices, in which a key leaves one synthesis to others."""
    queue = FairQueue("Text to speech")
    slots = settings.max_syntheses
    queue.configure(slots=slots, slots_per_key=max(1, slots - 1), size=settings.max_queue)
    return queue


def _model_settings(voice: InstalledVoice) -> ModelSettings:
    return ModelSettings(
        id=voice.name,
        kind="speech",
        context_window=MAX_SPEECH_INPUT_CHARS,
        use_case="text to speech, natural" if voice.is_natural else "text to speech, fast",
        input_price=0,
        output_price=0,
    )
