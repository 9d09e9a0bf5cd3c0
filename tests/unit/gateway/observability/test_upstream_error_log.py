import pytest

from svc.errors import ProviderFailed, SvcError
from svc.gateway.observability.upstream_error_log import (
    MAX_REMEMBERED_ERRORS,
    REPEAT_INTERVAL_SECONDS,
    UpstreamErrorLog,
)


def unreachable(cause: str) -> SvcError:
    return ProviderFailed("The provider could not be reached.", reason=f"no connection to api.example:443: {cause}")


def test_another_cause_is_another_kind(caplog: pytest.LogCaptureFixture) -> None:
    troubles = UpstreamErrorLog()
    for moment in range(3):
        for cause in ("ConnectionRefusedError", "SSLCertVerificationError"):
            troubles.log_error("openai", unreachable(cause), "req_1", 100.0 + moment)
    assert [record.getMessage().split()[-3] for record in caplog.records] == [
        "ConnectionRefusedError)",
        "SSLCertVerificationError)",
    ]
    troubles.log_error("openai", unreachable("ConnectionRefusedError"), "req_2", 100.0 + REPEAT_INTERVAL_SECONDS)
    assert "[request req_2; 2 more like it" in caplog.records[-1].getMessage()


def test_words_that_differ_behind_their_beginning_are_of_one_kind(caplog: pytest.LogCaptureFixture) -> None:
    troubles = UpstreamErrorLog()
    for number in range(5):
        said = f"The provider failed: The server had an error while it processed request {number}."
        troubles.log_error("openai", ProviderFailed(said), "req_1", 100.0)
    assert len(caplog.records) == 1


def test_kinds_without_end_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    troubles = UpstreamErrorLog()
    for number in range(3 * MAX_REMEMBERED_ERRORS):
        troubles.log_error("openai", ProviderFailed(f"{number}"), "req_1", 100.0)
    assert len(caplog.records) == 3 * MAX_REMEMBERED_ERRORS
    assert len(troubles._last_logged) <= MAX_REMEMBERED_ERRORS
