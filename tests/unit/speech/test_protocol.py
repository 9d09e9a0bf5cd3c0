"""Every order of messages. The session is a state machine without I/O, so tests pass plain values to it."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from svc.errors import ModelNotFound, RateLimited, SpeechFailed
from svc.speech import protocol
from svc.speech.protocol import SpeechSession
from svc.wire import speech as wire

CONFIG, FLUSH, RESET, CLOSE = (json.dumps({"type": kind}) for kind in ("config", "flush", "reset", "close"))


def sent_messages(session: SpeechSession) -> list[wire.ServerMessage]:
    return [action.message for action in session.take_actions() if isinstance(action, protocol.SendToClient)]


def live_session() -> SpeechSession:
    session = SpeechSession("s", now=0)
    session.receive(CONFIG, 0)
    session.on_attached(1, "toy")
    session.take_actions()
    return session


def test_session_config_attaches_worker_and_sends_ready():
    session = SpeechSession("s", now=0)
    session.receive(json.dumps({"type": "config", "model": "toy", "more": 1}), 0)
    (attach,) = session.take_actions()
    assert attach == protocol.AttachWorker(1, wire.ConfigMessage(model="toy"))
    session.on_attached(1, "toy")
    assert sent_messages(session) == [wire.ReadyEvent("s", "toy", 16000)]


@pytest.mark.parametrize("first", [b"ab", FLUSH])
def test_session_audio_or_flush_before_config_uses_defaults_and_is_kept(first):
    session = SpeechSession("s", now=0)
    session.receive(first, 0)
    assert session.take_actions() == [protocol.AttachWorker(1, wire.ConfigMessage())]
    assert not session.can_read
    session.on_attached(1, "toy")
    ready, action = session.take_actions()
    assert ready == protocol.SendToClient(wire.ReadyEvent("s", "toy"))
    assert action == (protocol.SendAudio(b"ab") if first == b"ab" else protocol.FlushWorker())


def test_session_reset_before_config_has_no_action():
    session = SpeechSession("s", now=0)
    session.receive(RESET, 0)
    assert session.take_actions() == []


def test_session_odd_byte_is_kept_for_next_message():
    session = live_session()
    for data in (b"a", b"bc", b"", b"d"):
        session.receive(data, 0)
    assert session.take_actions() == [protocol.SendAudio(b"ab"), protocol.SendAudio(b"cd")]


def test_session_reset_within_sample_drops_half_sample():
    session = live_session()
    for message in (b"abc", RESET, b"de"):
        session.receive(message, 0)
    assert session.take_actions() == [protocol.SendAudio(b"ab"), protocol.ResetWorker(), protocol.SendAudio(b"de")]


def test_session_two_flushes_get_two_finals_in_order():
    session = live_session()
    session.receive(bytes(3200), 0)
    session.receive(FLUSH, 0)
    session.receive(bytes(6400), 0)
    session.receive(FLUSH, 0)
    session.take_actions()
    session.on_final("one", 2)
    session.on_final("two", 3)
    session.on_final("not requested", 3)
    assert sent_messages(session) == [wire.Final("one", 100, 2), wire.Final("two", 200, 3)]


def test_session_partial_index_restarts_in_each_utterance():
    session = live_session()
    session.receive(bytes(3200) + b"", 0)
    session.receive(FLUSH, 0)  # the client is ahead of the worker
    session.take_actions()
    session.on_hypothesis(0, "one", False)
    session.on_final("one", 1)
    session.on_hypothesis(0, "two", False)
    session.on_hypothesis(0, "two", True)
    assert sent_messages(session) == [
        wire.Partial("one", False, 0),
        wire.Final("one", 100, 1),
        wire.Partial("two", False, 0),
        wire.Partial("two", True, 1),
    ]


def test_session_reset_during_decoding_drops_late_hypotheses():
    session = live_session()
    session.receive(bytes(3200), 0)
    session.receive(RESET, 0)
    session.on_hypothesis(0, "too late", False)
    session.on_hypothesis(1, "new", False)
    session.receive(FLUSH, 0)
    session.on_final("new", 1)
    assert sent_messages(session) == [wire.Partial("new", False, 0), wire.Final("new", 0, 1)]


def test_session_second_config_replaces_worker():
    session = live_session()
    session.receive(json.dumps({"type": "config", "model": "other"}), 0)
    assert session.take_actions() == [
        protocol.ReleaseWorker(),
        protocol.AttachWorker(2, wire.ConfigMessage(model="other")),
    ]
    session.on_attached(1, "toy")  # the reply to the first request is late
    assert session.take_actions() == []
    session.on_attached(2, "other")
    assert sent_messages(session) == [wire.ReadyEvent("s", "other")]


@pytest.mark.parametrize("message", [CONFIG, CLOSE])
def test_session_config_or_close_after_flush_waits_for_final(message):
    session = live_session()
    session.receive(FLUSH, 0)
    session.receive(message, 0)
    assert session.take_actions() == [protocol.FlushWorker()]
    session.on_final("text", 1)
    first, *others = session.take_actions()
    assert first == protocol.SendToClient(wire.Final("text", 0, 1))
    assert others[0] == protocol.ReleaseWorker()


def test_session_close_without_flush_closes_at_once():
    session = live_session()
    session.receive(bytes(3200), 0)
    session.take_actions()
    session.receive(CLOSE, 0)
    assert session.take_actions() == [
        protocol.ReleaseWorker(),
        protocol.SendToClient(wire.ClosedEvent("client_close")),
        protocol.CloseWebSocket(1000),
    ]
    session.receive(FLUSH, 0)
    session.check_timeouts(1e9, is_reading=True)
    session.shutdown()
    assert session.take_actions() == []


BAD = ["", "[]", "1", "null", "{", '"config"', "{}", '{"type":1}', '{"type":"bye"}', '{"type":"config","vad":"yes"}']
BAD += ['{"type":"config","model":1}', '{"type":"config","language":[]}', '{"type":"config","model_dir":{}}']
BAD += ['{"type":"config","model":"' + "x" * 5000 + '"}', "[" * 60000, "x" * 10_000_000, '{"type":"\ud800"}']


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_session_invalid_message_sends_error_and_stays_live(text):
    session = live_session()
    session.receive(text, 0)
    (message,) = sent_messages(session)
    assert isinstance(message, wire.ErrorEvent)
    assert message.code == "invalid_request"
    assert len(message.message) < 300
    assert session.state == "live"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelNotFound("none"), "model_not_found"),
        (SpeechFailed("bad"), "asr_error"),
        (RateLimited("full"), "rate_limit_exceeded"),
    ],
)
def test_session_attach_failure_sends_error_and_accepts_new_config(error, code):
    session = SpeechSession("s", now=0)
    session.receive(CONFIG, 0)
    session.on_attach_failed(1, error)
    session.receive(b"ab", 0)
    session.receive(FLUSH, 0)
    first, *others = sent_messages(session)
    assert first == wire.ErrorEvent(error.message, code)
    assert others[-1] == wire.Final("", 0, 0)
    session.receive(CONFIG, 0)
    session.on_attached(2, "toy")
    assert sent_messages(session) == [wire.ReadyEvent("s", "toy")]


def test_session_worker_lost_keeps_stable_text():
    session = live_session()
    session.receive(bytes(3200), 0)
    session.on_hypothesis(0, "this is stable", True)
    session.on_hypothesis(0, "this is stable and this", False)
    session.take_actions()
    session.on_worker_lost("worker lost")
    error, attach = session.take_actions()
    assert error == protocol.SendToClient(wire.ErrorEvent("worker lost"))
    session.on_attached(attach.attach_id, "toy")
    session.on_hypothesis(0, "goes on", False)
    session.receive(FLUSH, 0)
    session.on_final("goes on", 1)
    assert sent_messages(session) == [
        wire.Partial("this is stable goes on", False, 2),
        wire.Final("this is stable goes on", 100, 1),
    ]


def test_session_worker_lost_before_final_sends_stable_text_as_final():
    session = live_session()
    session.receive(bytes(3200), 0)
    session.on_hypothesis(0, "this is stable", True)
    session.receive(FLUSH, 0)
    session.take_actions()
    session.on_worker_lost("worker lost")
    assert sent_messages(session) == [wire.ErrorEvent("worker lost"), wire.Final("this is stable", 100, 0)]


def test_session_repeated_worker_losses_reject_session():
    session = live_session()
    for _ in range(protocol.MAX_CONSECUTIVE_WORKER_LOSSES):
        session.on_worker_lost("worker lost")
        (attach,) = [action for action in session.take_actions() if isinstance(action, protocol.AttachWorker)]
        session.on_attached(attach.attach_id, "toy")
    session.on_worker_lost("worker lost")
    assert session.state == "refused"


def test_session_idle_timeout_and_max_duration_close_session():
    session = SpeechSession("s", now=0, idle_timeout=10, max_duration=100)
    session.receive(CONFIG, 5)
    session.on_attached(1, "toy")
    session.take_actions()
    session.check_timeouts(14, is_reading=True)
    assert session.take_actions() == []
    session.check_timeouts(15, is_reading=True)
    assert wire.ClosedEvent("idle_timeout") in sent_messages(session)
    session = SpeechSession("s", now=0, idle_timeout=10, max_duration=100)
    session.receive(RESET, 99)
    session.check_timeouts(100, is_reading=True)
    assert sent_messages(session) == [wire.ClosedEvent("session_limit")]


def test_session_time_in_which_gateway_does_not_read_is_not_idle():
    session = SpeechSession("s", now=0, idle_timeout=10)
    session.receive(b"ab", 0)
    session.check_timeouts(50, is_reading=False)  # the model is loading
    session.on_attached(1, "toy")
    session.check_timeouts(59, is_reading=True)
    session.check_timeouts(100, is_reading=False)  # the worker still has too much audio
    session.receive(FLUSH, 100)
    session.check_timeouts(150, is_reading=True)  # the final is due
    session.on_final("a", 1)
    session.check_timeouts(159, is_reading=True)
    assert session.close_reason is None
    session.check_timeouts(160, is_reading=True)
    assert session.close_reason == "idle_timeout"


def test_session_worker_that_owes_a_response_is_killed_only_when_it_sends_nothing():
    timeout = protocol.WORKER_SILENCE_TIMEOUT_SECONDS
    session = live_session()
    session.check_worker(1000, has_unprocessed_audio=False, last_message_at=0)  # nobody speaks
    session.receive(FLUSH, 1000)
    session.take_actions()
    for now in range(1000, 2000, 10):  # the worker is busy with other sessions
        session.check_worker(now, has_unprocessed_audio=False, last_message_at=now - 60)
    assert session.take_actions() == []
    session.check_worker(2000 + timeout, has_unprocessed_audio=False, last_message_at=1990)
    assert session.take_actions() == [protocol.KillWorker()]
    session.on_worker_lost("lost")
    session.on_attached(2, "toy")
    session.take_actions()
    session.check_worker(3000, has_unprocessed_audio=True, last_message_at=0)  # another worker, which was idle
    assert session.take_actions() == []
    session.check_worker(3001 + timeout, has_unprocessed_audio=True, last_message_at=0)
    assert session.take_actions() == [protocol.KillWorker()]


def test_session_rejected_sends_rate_limit_error_and_closes():
    session = SpeechSession("s", now=0)
    session.reject(RateLimited("full"))
    error, close = session.take_actions()
    assert error.message.code == "rate_limit_exceeded"
    assert close == protocol.CloseWebSocket(1013)


class SessionDriver:
    """Simulates a worker that replies in order and may be lost, and checks every message to the client."""

    def __init__(self) -> None:
        self.session = SpeechSession("s", now=0)
        self.closed = False
        self.attached = self.epoch = self.index = self.flushes = self.finals = 0
        self.transcript = self.stable = ""
        self.work: list[protocol.SessionAction] = []

    def apply(self, event: bytes | str) -> None:
        session = self.session
        if isinstance(event, bytes) or event not in DRIVER_EVENTS:
            if not self.closed and event == FLUSH:
                self.flushes += 1
            session.receive(event, 0)
        elif event == "attached":
            session.on_attached(self.attached, "toy")
        elif event == "attach failed":
            session.on_attach_failed(self.attached, SpeechFailed("no"))
        elif event == "tick":
            session.check_timeouts(1, is_reading=True)
        elif session.state == "live":
            self.run_worker(event)
        self.check_actions()

    def run_worker(self, event: str) -> None:
        if event == "lost":
            self.session.on_worker_lost("worker lost")
        elif event == "work":
            self.step()
        else:
            self.transcript += " word"
            self.session.on_hypothesis(self.epoch, self.transcript.strip(), event == "stable")

    def step(self) -> None:
        """Run the next action that concerns an utterance."""
        while self.work:
            action = self.work.pop(0)
            if isinstance(action, protocol.FlushWorker):
                self.session.on_final(self.transcript.strip(), 1)
            elif isinstance(action, protocol.ResetWorker):
                self.epoch += 1
            else:
                continue
            self.transcript = ""
            return

    def check_actions(self) -> None:
        for action in self.session.take_actions():
            assert not self.closed, "an action follows the close"
            if isinstance(action, protocol.AttachWorker):
                self.attached, self.epoch, self.transcript, self.work = action.attach_id, 0, "", []
                if self.session._must_send_ready:  # a `config` starts a new transcript, also if no model follows
                    self.stable, self.index = "", 0
            elif isinstance(action, protocol.CloseWebSocket):
                self.closed = True
            elif isinstance(action, protocol.SendToClient):
                self.check_message(action.message)
            else:
                self.work.append(action)
                if isinstance(action, protocol.ResetWorker) and not self.session.has_pending_flush:
                    self.stable, self.index = "", 0

    def check_message(self, message: wire.ServerMessage) -> None:
        if isinstance(message, wire.Partial):
            assert message.text.startswith(self.stable)
            assert message.chunk_index == self.index
            self.index += 1
            self.stable = message.text if message.is_stable else self.stable
        elif isinstance(message, wire.Final):
            assert message.text.startswith(self.stable)
            self.finals += 1
            self.stable, self.index = "", 0
        elif isinstance(message, wire.ReadyEvent):
            self.stable, self.index = "", 0


DRIVER_EVENTS = ("attached", "attach failed", "lost", "hypothesis", "stable", "work", "tick")
EVENTS = st.lists(
    st.one_of(
        st.sampled_from([CONFIG, FLUSH, RESET, FLUSH, "bad", '{"type":"config","vad":3}', CLOSE]),
        st.sampled_from([*DRIVER_EVENTS, "attached", "hypothesis", "work"]),
        st.binary(max_size=5),
    ),
    max_size=40,
)


@settings(max_examples=500, deadline=None)
@example([CONFIG, "attached", "stable", CONFIG, FLUSH, "attach failed"])
@example([CONFIG, "attached", "stable", *["lost", "attached"] * protocol.MAX_CONSECUTIVE_WORKER_LOSSES, "lost", FLUSH])
@given(EVENTS)
def test_session_any_message_order_answers_every_flush_once(events):
    driver = SessionDriver()
    for event in events:
        driver.apply(event)
    for _ in range(len(events) + 1):  # the worker completes all actions
        driver.apply("attached")
        for _ in range(len(events) + 1):
            driver.apply("work")
    assert driver.session.state in ("new", "live", "refused", "closed")
    if not driver.closed:
        assert driver.finals == driver.flushes
        assert driver.session.can_read
    assert driver.finals <= driver.flushes


def test_session_words_count_from_first_audio_of_session():
    session = live_session()
    word = wire.WordTime("a", 10, 20)
    for _ in range(2):
        session.receive(bytes(3200), 0)
        session.receive(FLUSH, 0)
        session.take_actions()
    session.on_final("a", 1, (word,))
    session.on_final("a", 1, (word,))
    first, second = sent_messages(session)
    assert first.words == (word,)
    assert second.words == (wire.WordTime("a", 110, 120),)


def test_session_words_count_from_first_audio_also_after_another_config():
    session = live_session()
    session.receive(bytes(3200), 0)
    session.receive(CONFIG, 0)
    session.on_attach_failed(2, ModelNotFound("no"))
    session.receive(bytes(3200), 0)  # discarded
    session.receive(CONFIG, 0)
    session.on_attached(3, "toy")
    session.receive(bytes(3200), 0)
    session.receive(FLUSH, 0)
    session.take_actions()
    session.on_final("a", 1, (wire.WordTime("a", 10, 20),))
    (final,) = sent_messages(session)
    assert (final.duration_ms, final.words) == (100, (wire.WordTime("a", 210, 220),))


def test_session_final_after_lost_worker_has_no_words():
    session = live_session()
    session.receive(bytes(3200), 0)
    session.on_worker_lost("lost")
    session.on_attached(2, "toy")
    session.receive(bytes(3200), 0)
    session.receive(FLUSH, 0)
    session.take_actions()
    session.on_final("a", 1, (wire.WordTime("a", 10, 20),))
    assert sent_messages(session) == [wire.Final("a", 200, 1)]


def test_session_final_without_words_has_no_field():
    assert "words" not in wire.encode_server_message(wire.Final("a", 1, 1))
