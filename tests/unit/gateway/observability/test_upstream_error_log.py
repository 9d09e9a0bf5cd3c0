import pytest

from svc.errors import ProviderFailed, SvcError
from svc.gateway.observability.upstream_error_log import (
    MAX_REMEMBERED_ERRORS,
    REPEAT_INTERVAL_SECONDS,
    UpstreamErrorLog,
)


def unreachable(cause: str) -> SvcError:
    return ProviderFailed("The provider cannot be reached.", reason=f"no connection to api.example:443: {cause}")


def test_upstream_error_log_different_causes_are_logged_separately(caplog: pytest.LogCaptureFixture) -> None:
    error_log = UpstreamErrorLog()
    for moment in range(3):
        for cause in ("ConnectionRefusedError", "SSLCertVerificationError"):
            error_log.log_error("openai", unreachable(cause), "req_1", 100.0 + moment)
    assert [record.getMessage().split()[-3] for record in caplog.records] == [
        "ConnectionRefusedError)",
        "SSLCertVerificationError)",
    ]
    error_log.log_error("openai", unreachable("ConnectionRefusedError"), "req_2", 100.0 + REPEAT_INTERVAL_SECONDS)
    assert "[request req_2; 2 similar errors suppressed" in caplog.records[-1].getMessage()


def test_upstream_error_log_messages_with_same_prefix_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    error_log = UpstreamErrorLog()
    for number in range(5):
        message = f"The provider failed: The server had an error while it processed request {number}."
        error_log.log_error("openai", ProviderFailed(message), "req_1", 100.0)
    assert len(caplog.records) == 1


def test_upstream_error_log_many_kinds_memory_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    error_log = UpstreamErrorLog()
    for number in range(3 * MAX_REMEMBERED_ERRORS):
        error_log.log_error("openai", ProviderFailed(f"{number}"), "req_1", 100.0)
    assert len(caplog.records) == 3 * MAX_REMEMBERED_ERRORS
    assert len(error_log._last_logged) <= MAX_REMEMBERED_ERRORS
