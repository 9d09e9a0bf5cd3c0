"""OpenTelemetry's environment variables."""

from __future__ import annotations

import pytest

from svc.errors import UsageError
from svc.tracing.settings import read_trace_settings

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"},
        {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_trace_settings_without_endpoint_or_disabled_are_none(environ: dict[str, str]) -> None:
    assert read_trace_settings(environ) is None


def test_trace_settings_defaults_are_those_of_opentelemetry() -> None:
    found = read_trace_settings(ENDPOINT)
    assert found is not None
    assert (found.url, found.protocol, found.timeout) == ("http://collector:4318/v1/traces", "http/protobuf", 10)
    assert (found.schedule_delay, found.max_queue_spans, found.max_batch_spans) == (5, 2048, 512)
    assert dict(found.resource)["service.name"] == "svc"
    assert found.sampler_name == "parentbased_always_on"


def test_trace_settings_variables_for_traces_have_precedence() -> None:
    found = read_trace_settings(
        {
            **ENDPOINT,
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://other/x",
            "OTEL_EXPORTER_OTLP_HEADERS": "a=1",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=Bearer%20x, b=2=3,",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "5",
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "2500",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_SERVICE_NAME": "mine",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=other,deployment.environment.name=prod%2Ceu",
            "OTEL_TRACES_SAMPLER": "traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.25",
            "OTEL_BSP_MAX_QUEUE_SIZE": "100",
        }
    )
    assert found is not None
    assert (found.url, found.protocol, found.timeout, found.compresses) == ("https://other/x", "http/json", 2.5, True)
    assert found.headers == (("authorization", "Bearer x"), ("b", "2=3"))
    resource = dict(found.resource)
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("mine", "prod,eu")
    assert (found.sampled_share, found.max_batch_spans) == (0.25, 100)
    assert "other" not in repr(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://x"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://x:99999"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://x y"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:secret@x:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "file:///etc/passwd"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret-without-name"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=secret%0D%0Ax"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "ten"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
        ("OTEL_RESOURCE_ATTRIBUTES", "secret"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("OTEL_BSP_SCHEDULE_DELAY", "1s"),
    ],
)
def test_trace_settings_invalid_value_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_trace_settings({**ENDPOINT, name: value})
    assert name in caught.value.message
    assert "secret" not in caught.value.message
