"""Every order of messages: the session is a machine without I/O, so it can be driven by plain values."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.errors import ModelNotFound, RateLimited, SpeechFailed
from svc.speech import protocol
from svc.speech.protocol import SpeechSession
from svc.wire import speech as wire

CONFIG, FLUSH, RESET, CLOSE = (json.dumps({"type": kind}) for kind in ("config", "flush", "reset", "close"))


def sent(session: SpeechSession) -> list[wire.ServerMessage]:
    return [order.message for order in session.take_actions() if isinstance(order, protocol.SendToClient)]


def live() -> SpeechSession:
    session = SpeechSession("s", now=0)
    session.receive(CONFIG, 0)
    session.on_attached(1, "toy")
    session.take_actions()
    return session


def test_config_then_ready():
    session = SpeechSession("s", now=0)
    session.receive(json.dumps({"type": "config", "model": "toy", "more": 1}), 0)
    (attach,) = session.take_actions()
    assert attach == protocol.AttachWorker(1, wire.ConfigMessage(model="toy"))
    session.on_attached(1, "toy")
    assert sent(session) == [wire.ReadyEvent("s", "toy", 16000)]


@pytest.mark.parametrize("first", [b"ab", FLUSH])
def test_audio_or_flush_before_any_config_uses_the_defaults_and_loses_nothing(first):
    session = SpeechSession("s", now=0)
    session.receive(first, 0)
    assert session.take_actions() == [protocol.AttachWorker(1, wire.ConfigMessage())]
    assert not session.can_read
    session.on_attached(1, "toy")
    ready, order = session.take_actions()
    assert ready == protocol.SendToClient(wire.ReadyEvent("s", "toy"))
    assert order == (protocol.SendAudio(b"ab") if first == b"ab" else protocol.FlushWorker())


def test_reset_before_any_config_is_nothing():
    session = SpeechSession("s", now=0)
    session.receive(RESET, 0)
    assert session.take_actions() == []


def test_an_odd_byte_waits_for_the_next_frame():
    session = live()
    for data in (b"a", b"bc", b"", b"d"):
        session.receive(data, 0)
    assert session.take_actions() == [protocol.SendAudio(b"ab"), protocol.SendAudio(b"cd")]


def test_session_reset_within_a_sample_drops_its_first_half():
    session = live()
    for message in (b"abc", RESET, b"de"):
        session.receive(message, 0)
    assert session.take_actions() == [protocol.SendAudio(b"ab"), protocol.ResetWorker(), protocol.SendAudio(b"de")]


def test_flush_twice_is_answered_twice_and_in_order():
    session = live()
    session.receive(bytes(3200), 0)
    session.receive(FLUSH, 0)
    session.receive(bytes(6400), 0)
    session.receive(FLUSH, 0)
    session.take_actions()
    session.on_final("one", 2)
    session.on_final("two", 3)
    session.on_final("never asked for", 3)
    assert sent(session) == [wire.Final("one", 100, 2), wire.Final("two", 200, 3)]


def test_partials_count_from_zero_in_each_utterance_whatever_was_sent_ahead():
    session = live()
    session.receive(bytes(3200) + b"", 0)
    session.receive(FLUSH, 0)  # the client is further on than the worker
    session.take_actions()
    session.on_hypothesis(0, "one", False)
    session.on_final("one", 1)
    session.on_hypothesis(0, "two", False)
    session.on_hypothesis(0, "two", True)
    assert sent(session) == [
        wire.Partial("one", False, 0),
        wire.Final("one", 100, 1),
        wire.Partial("two", False, 0),
        wire.Partial("two", True, 1),
    ]


def test_reset_during_decoding_drops_what_comes_late():
    session = live()
    session.receive(bytes(3200), 0)
    session.receive(RESET, 0)
    session.on_hypothesis(0, "too late", False)
    session.on_hypothesis(1, "new", False)
    session.receive(FLUSH, 0)
    session.on_final("new", 1)
    assert sent(session) == [wire.Partial("new", False, 0), wire.Final("new", 0, 1)]


def test_config_twice_replaces_the_session():
    session = live()
    session.receive(json.dumps({"type": "config", "model": "other"}), 0)
    assert session.take_actions() == [
        protocol.ReleaseWorker(),
        protocol.AttachWorker(2, wire.ConfigMessage(model="other")),
    ]
    session.on_attached(1, "toy")  # the answer to the first comes late
    assert session.take_actions() == []
    session.on_attached(2, "other")
    assert sent(session) == [wire.ReadyEvent("s", "other")]


@pytest.mark.parametrize("message", [CONFIG, CLOSE])
def test_what_ends_the_session_waits_for_the_final_that_is_owed(message):
    session = live()
    session.receive(FLUSH, 0)
    session.receive(message, 0)
    assert session.take_actions() == [protocol.FlushWorker()]
    session.on_final("said", 1)
    first, *others = session.take_actions()
    assert first == protocol.SendToClient(wire.Final("said", 0, 1))
    assert others[0] == protocol.ReleaseWorker()


def test_close_without_flush():
    session = live()
    session.receive(bytes(3200), 0)
    session.take_actions()
    session.receive(CLOSE, 0)
    assert session.take_actions() == [
        protocol.ReleaseWorker(),
        protocol.SendToClient(wire.ClosedEvent("client_close")),
        protocol.CloseWebSocket(1000),
    ]
    session.receive(FLUSH, 0)
    session.check_timeouts(1e9)
    session.shutdown()
    assert session.take_actions() == []


BAD = ["", "[]", "1", "null", "{", '"config"', "{}", '{"type":1}', '{"type":"bye"}', '{"type":"config","vad":"yes"}']
BAD += ['{"type":"config","model":1}', '{"type":"config","language":[]}', '{"type":"config","model_dir":{}}']
BAD += ['{"type":"config","model":"' + "x" * 5000 + '"}', "[" * 60000, "x" * 10_000_000, '{"type":"\ud800"}']


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_message_that_is_wrong_is_an_error_and_the_session_goes_on(text):
    session = live()
    session.receive(text, 0)
    (message,) = sent(session)
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
def test_a_model_that_fails_is_an_error_and_another_config_may_come(error, code):
    session = SpeechSession("s", now=0)
    session.receive(CONFIG, 0)
    session.on_attach_failed(1, error)
    session.receive(b"ab", 0)
    session.receive(FLUSH, 0)
    first, *others = sent(session)
    assert first == wire.ErrorEvent(error.message, code)
    assert others[-1] == wire.Final("", 0, 0)
    session.receive(CONFIG, 0)
    session.on_attached(2, "toy")
    assert sent(session) == [wire.ReadyEvent("s", "toy")]


def test_a_worker_that_dies_takes_nothing_back():
    session = live()
    session.receive(bytes(3200), 0)
    session.on_hypothesis(0, "this is stable", True)
    session.on_hypothesis(0, "this is stable and this", False)
    session.take_actions()
    session.on_worker_lost("it died")
    error, attach = session.take_actions()
    assert error == protocol.SendToClient(wire.ErrorEvent("it died"))
    session.on_attached(attach.attach_id, "toy")
    session.on_hypothesis(0, "goes on", False)
    session.receive(FLUSH, 0)
    session.on_final("goes on", 1)
    assert sent(session) == [
        wire.Partial("this is stable goes on", False, 2),
        wire.Final("this is stable goes on", 100, 1),
    ]


def test_a_worker_that_dies_before_the_final_leaves_what_was_stable():
    session = live()
    session.receive(bytes(3200), 0)
    session.on_hypothesis(0, "this is stable", True)
    session.receive(FLUSH, 0)
    session.take_actions()
    session.on_worker_lost("it died")
    assert sent(session) == [wire.ErrorEvent("it died"), wire.Final("this is stable", 100, 0)]


def test_workers_that_die_again_and_again():
    session = live()
    for _ in range(protocol.MAX_CONSECUTIVE_WORKER_LOSSES):
        session.on_worker_lost("it died")
        (attach,) = [order for order in session.take_actions() if isinstance(order, protocol.AttachWorker)]
        session.on_attached(attach.attach_id, "toy")
    session.on_worker_lost("it died")
    assert session.state == "refused"


def test_time():
    session = SpeechSession("s", now=0, idle_timeout=10, max_duration=100)
    session.receive(CONFIG, 5)
    session.on_attached(1, "toy")
    session.take_actions()
    session.check_timeouts(14)
    assert session.take_actions() == []
    session.check_timeouts(15)
    assert wire.ClosedEvent("idle_timeout") in sent(session)
    session = SpeechSession("s", now=0, idle_timeout=10, max_duration=100)
    session.receive(RESET, 99)
    session.check_timeouts(100)
    assert sent(session) == [wire.ClosedEvent("session_limit")]


def test_no_room():
    session = SpeechSession("s", now=0)
    session.reject(RateLimited("full"))
    error, close = session.take_actions()
    assert error.message.code == "rate_limit_exceeded"
    assert close == protocol.CloseWebSocket(1013)


EVENTS = st.lists(
    st.one_of(
        st.sampled_from([CONFIG, FLUSH, RESET, FLUSH, "bad", '{"type":"config","vad":3}', "opened", "refused", "lost"]),
        st.sampled_from(["heard", "heard", "stable", "done", "done", "tick", CLOSE]),
        st.binary(max_size=5),
    ),
    max_size=40,
)


class World:
    """Plays the worker, which answers in order and may die, and checks all that the client is told."""

    def __init__(self) -> None:
        self.session = SpeechSession("s", now=0)
        self.closed = False
        self.attached = self.epoch = self.index = self.flushes = self.finals = 0
        self.said = self.stable = ""
        self.work: list[protocol.SessionAction] = []

    def happen(self, event: bytes | str) -> None:
        session = self.session
        if isinstance(event, bytes) or event not in EVENTS_OF_THE_WORLD:
            if not self.closed and event == FLUSH:
                self.flushes += 1
            session.receive(event, 0)
        elif event == "opened":
            session.on_attached(self.attached, "toy")
        elif event == "refused":
            session.on_attach_failed(self.attached, SpeechFailed("no"))
        elif event == "tick":
            session.check_timeouts(1)
        elif session.state == "live":
            self.worker(event)
        self.look()

    def worker(self, event: str) -> None:
        if event == "lost":
            self.session.on_worker_lost("died")
        elif event == "works":
            self.step()
        else:
            self.said += " word"
            self.session.on_hypothesis(self.epoch, self.said.strip(), event == "stable")

    def step(self) -> None:
        """The next order that is about utterances."""
        while self.work:
            order = self.work.pop(0)
            if isinstance(order, protocol.FlushWorker):
                self.session.on_final(self.said.strip(), 1)
            elif isinstance(order, protocol.ResetWorker):
                self.epoch += 1
            else:
                continue
            self.said = ""
            return

    def look(self) -> None:
        for order in self.session.take_actions():
            assert not self.closed, "nothing comes after the close"
            if isinstance(order, protocol.AttachWorker):
                self.attached, self.epoch, self.said, self.work = order.attach_id, 0, "", []
            elif isinstance(order, protocol.CloseWebSocket):
                self.closed = True
            elif isinstance(order, protocol.SendToClient):
                self.told(order.message)
            else:
                self.work.append(order)
                if isinstance(order, protocol.ResetWorker) and not self.session.has_pending_flush:
                    self.stable, self.index = "", 0

    def told(self, message: wire.ServerMessage) -> None:
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


EVENTS_OF_THE_WORLD = ("opened", "refused", "lost", "heard", "stable", "works", "tick")
EVENTS = st.lists(
    st.one_of(
        st.sampled_from([CONFIG, FLUSH, RESET, FLUSH, "bad", '{"type":"config","vad":3}', CLOSE]),
        st.sampled_from([*EVENTS_OF_THE_WORLD, "opened", "heard", "works"]),
        st.binary(max_size=5),
    ),
    max_size=40,
)


@settings(max_examples=500, deadline=None)
@given(EVENTS)
def test_every_order_of_messages(events):
    world = World()
    for event in events:
        world.happen(event)
    for _ in range(len(events) + 1):  # the worker comes to its end
        world.happen("opened")
        for _ in range(len(events) + 1):
            world.happen("works")
    assert world.session.state in ("new", "live", "refused", "closed")
    if not world.closed:
        assert world.finals == world.flushes
        assert world.session.can_read
    assert world.finals <= world.flushes
