"""The join of workers' spans with their requests."""

from __future__ import annotations

from svc.tracing.sampler import SampledTrace
from svc.tracing.worker_spans import MAX_UNJOINED_REQUESTS, MAX_WAITING_SPANS, WorkerSpan, WorkerSpans

TRACE = SampledTrace(b"t" * 16, trace_state="a=1")
PARENT = b"p" * 8


def make_worker_span(name: str = "transcribe tiny") -> WorkerSpan:
    return WorkerSpan(name, 10, 20, [("process.pid", 7)], None)


class Added:
    """Keeps what the exporter gets."""

    def __init__(self) -> None:
        self.spans: list[WorkerSpan] = []

    def add(self, span: WorkerSpan) -> bool:
        self.spans.append(span)
        return True


def test_worker_span_before_the_end_of_its_request_waits_for_it() -> None:
    added = Added()
    spans = WorkerSpans(added.add)
    spans.add_span("r", make_worker_span())
    assert not added.spans
    spans.add_request("r", TRACE, PARENT)
    (built,) = added.spans[0].build_spans()
    assert (built.trace_id, built.parent_id, built.trace_state) == (b"t" * 16, PARENT, "a=1")
    assert (built.name, built.start_ns, built.end_ns) == ("transcribe tiny", 10, 20)


def test_worker_spans_after_the_end_of_their_request_follow_at_once() -> None:
    added = Added()
    spans = WorkerSpans(added.add)
    spans.add_request("r", TRACE, PARENT)
    spans.add_span("r", make_worker_span("first"))
    spans.add_span("r", make_worker_span("second"))
    assert [span.build_spans()[0].name for span in added.spans] == ["first", "second"]


def test_worker_spans_of_unsampled_requests_are_dropped_with_the_oldest_first() -> None:
    added = Added()
    spans = WorkerSpans(added.add)
    for number in range(MAX_UNJOINED_REQUESTS + 1):
        spans.add_span(f"r{number}", make_worker_span())
    spans.add_request("r0", TRACE, PARENT)
    assert not added.spans
    spans.add_request("r1", TRACE, PARENT)
    assert len(added.spans) == 1


def test_worker_spans_of_one_request_are_bounded() -> None:
    added = Added()
    spans = WorkerSpans(added.add)
    for _ in range(MAX_WAITING_SPANS + 1):
        spans.add_span("r", make_worker_span())
    spans.add_request("r", TRACE, PARENT)
    assert len(added.spans) == MAX_WAITING_SPANS


def test_sampled_requests_are_kept_up_to_a_bound() -> None:
    added = Added()
    spans = WorkerSpans(added.add)
    for number in range(MAX_UNJOINED_REQUESTS + 1):
        spans.add_request(f"r{number}", TRACE, PARENT)
    spans.add_span("r0", make_worker_span())
    assert not added.spans
    spans.add_span("r1", make_worker_span())
    assert len(added.spans) == 1
