"""The settings of the trace export, from OpenTelemetry's environment variables.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from svc import __version__
from svc.errors import UsageError
from svc.tracing.sampler import Sampler
from svc.tracing.span import Attributes

TRACES_PATH: Final = "/v1/traces"
DEFAULT_SERVICE_NAME: Final = "svc"
PROTOBUF, JSON = "http/protobuf", "http/json"
_SAMPLERS: Final = ("always_on", "always_off", "traceidratio")
_PARENT_PREFIX: Final = "parentbased_"


class TraceExportSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how spans are exported. Times are in seconds."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    timeout: float = 10.0
    """Seconds for one batch, with its retries."""
    protocol: str = PROTOBUF
    compresses: bool = False
    certificate_path: str | None = None
    """A file with the certificates that a collector with https is checked against."""
    resource: Attributes = ()
    sampler_name: str = _PARENT_PREFIX + "always_on"
    sampled_share: float = 1.0
    schedule_delay: float = 5.0
    """Seconds between two exports."""
    max_queue_spans: int = 2048
    max_batch_spans: int = 512

    def __repr__(self) -> str:
        return f"TraceExportSettings({self.protocol})"  # url and headers may hold credentials

    def create_sampler(self) -> Sampler:
        """Return the sampler of the settings."""
        name = self.sampler_name.removeprefix(_PARENT_PREFIX)
        share = {"always_on": 1.0, "always_off": 0.0}.get(name, self.sampled_share)
        return Sampler(share, uses_parent=self.sampler_name.startswith(_PARENT_PREFIX))


def read_trace_settings(
    environ: Mapping[str, str], default_service_name: str = DEFAULT_SERVICE_NAME
) -> TraceExportSettings | None:
    """Return the settings, or None if no endpoint is set. Raises UsageError that names a variable.

    `default_service_name` is the name without OTEL_SERVICE_NAME.
    """
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    url = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    is_disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_disabled or environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none" or not (base or url):
        return None
    if url:
        _check_url("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url)
    else:
        _check_url("OTEL_EXPORTER_OTLP_ENDPOINT", base)
        url = base.rstrip("/") + TRACES_PATH
    protocol = _select(environ, "OTEL_EXPORTER_OTLP_PROTOCOL") or PROTOBUF
    if protocol not in (PROTOBUF, JSON):
        raise UsageError(f"OTEL_EXPORTER_OTLP_PROTOCOL must be {PROTOBUF} or {JSON}: gRPC is not supported.")
    compression = _select(environ, "OTEL_EXPORTER_OTLP_COMPRESSION") or "none"
    if compression not in ("none", "gzip"):
        raise UsageError("OTEL_EXPORTER_OTLP_COMPRESSION must be gzip or none.")
    max_queue = _read_count(environ, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)
    sampler_name = environ.get("OTEL_TRACES_SAMPLER", "").strip() or _PARENT_PREFIX + "always_on"
    if sampler_name.removeprefix(_PARENT_PREFIX) not in _SAMPLERS:
        names = ", ".join([*_SAMPLERS, *[_PARENT_PREFIX + name for name in _SAMPLERS]])
        raise UsageError(f"OTEL_TRACES_SAMPLER must be one of {names}.")
    return TraceExportSettings(
        url=url,
        headers=_read_pairs("OTEL_EXPORTER_OTLP_HEADERS", _select(environ, "OTEL_EXPORTER_OTLP_HEADERS")),
        timeout=_read_milliseconds(
            "OTEL_EXPORTER_OTLP_TIMEOUT",
            _select(environ, "OTEL_EXPORTER_OTLP_TIMEOUT"),
            environ.get("OTEL_BSP_EXPORT_TIMEOUT") or "10000",
        ),
        protocol=protocol,
        compresses=compression == "gzip",
        certificate_path=_select(environ, "OTEL_EXPORTER_OTLP_CERTIFICATE") or None,
        resource=_read_resource(environ, default_service_name),
        sampler_name=sampler_name,
        sampled_share=_read_share(environ),
        schedule_delay=_read_milliseconds(
            "OTEL_BSP_SCHEDULE_DELAY", environ.get("OTEL_BSP_SCHEDULE_DELAY", ""), "5000"
        ),
        max_queue_spans=max_queue,
        max_batch_spans=min(max_queue, _read_count(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)),
    )


def _select(environ: Mapping[str, str], name: str) -> str:
    """Return the variable for traces, or else the one for all signals."""
    name_for_traces = name.replace("_OTLP_", "_OTLP_TRACES_")
    return environ.get(name_for_traces, "").strip() or environ.get(name, "").strip()


def _check_url(name: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"{name} must be a URL that begins with http:// or https://.")
    if "@" in parts.netloc:  # urllib would look up the password as a part of the host name
        raise UsageError(f"{name} must not have a user name or a password: use OTEL_EXPORTER_OTLP_HEADERS.")


def _read_pairs(name: str, text: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of `key=value,key=value`, whose values are percent-encoded."""
    pairs: list[tuple[str, str]] = []
    for item in text.split(","):
        key, separator, value = item.partition("=")
        if not item.strip():
            continue
        key, value = key.strip(), unquote(value.strip())
        if not separator or not key.isascii() or not key.isprintable() or " " in key or not key:
            raise UsageError(f"{name} must be a list such as key1=value1,key2=value2.")
        if not value.isprintable():
            raise UsageError(f"{name}: the value of {key} has a character that cannot be printed.")
        pairs.append((key, value))
    return tuple(pairs)


def _read_resource(environ: Mapping[str, str], default_service_name: str) -> Attributes:
    attributes = {
        "service.name": default_service_name,
        "service.version": __version__,
        "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        "telemetry.sdk.name": DEFAULT_SERVICE_NAME,
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": __version__,
        **dict(_read_pairs("OTEL_RESOURCE_ATTRIBUTES", environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))),
    }
    if service_name := environ.get("OTEL_SERVICE_NAME", "").strip():
        attributes["service.name"] = service_name
    return tuple(attributes.items())


def _read_milliseconds(name: str, text: str, default: str) -> float:
    try:
        milliseconds = int(text.strip() or default)
    except ValueError:
        milliseconds = 0
    if not 1 <= milliseconds <= 3_600_000:
        raise UsageError(f"{name} must be a number of milliseconds from 1 to 3600000.")
    return milliseconds / 1000


def _read_count(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        count = int(environ.get(name, "").strip() or default)
    except ValueError:
        count = 0
    if not 1 <= count <= 1_000_000:
        raise UsageError(f"{name} must be a number from 1 to 1000000.")
    return count


def _read_share(environ: Mapping[str, str]) -> float:
    try:
        share = float(environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError("OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1.")
    return share
