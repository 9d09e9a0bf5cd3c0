"""Every order of messages: the session is a machine without I/O, so it can be driven by plain values."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.errors import ModelNotFound, RateLimited, SpeechFailed
from svc.speech import session as protocol
from svc.speech.session import Session
from svc.wire import speech as wire

CONFIG, FLUSH, RESET, CLOSE = (json.dumps({"type": kind}) for kind in ("config", "flush", "reset", "close"))


def sent(session: Session) -> list[wire.ServerMessage]:
    return [order.message for order in session.orders() if isinstance(order, protocol.Send)]


def live() -> Session:
    session = Session("s", now=0)
    session.receive(CONFIG, 0)
    session.opened(1, "toy")
    session.orders()
    return session


def test_config_then_ready():
    session = Session("s", now=0)
    session.receive(json.dumps({"type": "config", "model": "toy", "more": 1}), 0)
    (attach,) = session.orders()
    assert attach == protocol.Attach(1, wire.Config(model="toy"))
    session.opened(1, "toy")
    assert sent(session) == [wire.Ready("s", "toy", 16000)]


@pytest.mark.parametrize("first", [b"ab", FLUSH])
def test_audio_or_flush_before_any_config_uses_the_defaults_and_loses_nothing(first):
    session = Session("s", now=0)
    session.receive(first, 0)
    assert session.orders() == [protocol.Attach(1, wire.Config())]
    assert not session.reading
    session.opened(1, "toy")
    ready, order = session.orders()
    assert ready == protocol.Send(wire.Ready("s", "toy"))
    assert order == (protocol.Feed(b"ab") if first == b"ab" else protocol.Flush())


def test_reset_before_any_config_is_nothing():
    session = Session("s", now=0)
    session.receive(RESET, 0)
    assert session.orders() == []


def test_an_odd_byte_waits_for_the_next_frame():
    session = live()
    for data in (b"a", b"bc", b"", b"d"):
        session.receive(data, 0)
    assert session.orders() == [protocol.Feed(b"ab"), protocol.Feed(b"cd")]


def test_session_reset_within_a_sample_drops_its_first_half():
    session = live()
    for message in (b"abc", RESET, b"de"):
        session.receive(message, 0)
    assert session.orders() == [protocol.Feed(b"ab"), protocol.Reset(), protocol.Feed(b"de")]


def test_flush_twice_is_answered_twice_and_in_order():
    session = live()
    session.receive(bytes(3200), 0)
    session.receive(FLUSH, 0)
    session.receive(bytes(6400), 0)
    session.receive(FLUSH, 0)
    session.orders()
    session.done("one", 2)
    session.done("two", 3)
    session.done("never asked for", 3)
    assert sent(session) == [wire.Final("one", 100, 2), wire.Final("two", 200, 3)]


def test_partials_count_from_zero_in_each_utterance_whatever_was_sent_ahead():
    session = live()
    session.receive(bytes(3200) + b"", 0)
    session.receive(FLUSH, 0)  # the client is further on than the worker
    session.orders()
    session.heard(0, "one", False)
    session.done("one", 1)
    session.heard(0, "two", False)
    session.heard(0, "two", True)
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
    session.heard(0, "too late", False)
    session.heard(1, "new", False)
    session.receive(FLUSH, 0)
    session.done("new", 1)
    assert sent(session) == [wire.Partial("new", False, 0), wire.Final("new", 0, 1)]


def test_config_twice_replaces_the_session():
    session = live()
    session.receive(json.dumps({"type": "config", "model": "other"}), 0)
    assert session.orders() == [protocol.Release(), protocol.Attach(2, wire.Config(model="other"))]
    session.opened(1, "toy")  # the answer to the first comes late
    assert session.orders() == []
    session.opened(2, "other")
    assert sent(session) == [wire.Ready("s", "other")]


@pytest.mark.parametrize("message", [CONFIG, CLOSE])
def test_what_ends_the_session_waits_for_the_final_that_is_owed(message):
    session = live()
    session.receive(FLUSH, 0)
    session.receive(message, 0)
    assert session.orders() == [protocol.Flush()]
    session.done("said", 1)
    first, *others = session.orders()
    assert first == protocol.Send(wire.Final("said", 0, 1))
    assert others[0] == protocol.Release()


def test_close_without_flush():
    session = live()
    session.receive(bytes(3200), 0)
    session.orders()
    session.receive(CLOSE, 0)
    assert session.orders() == [
        protocol.Release(),
        protocol.Send(wire.Closed("client_close")),
        protocol.Close(1000),
    ]
    session.receive(FLUSH, 0)
    session.tick(1e9)
    session.shutdown()
    assert session.orders() == []


BAD = ["", "[]", "1", "null", "{", '"config"', "{}", '{"type":1}', '{"type":"bye"}', '{"type":"config","vad":"yes"}']
BAD += ['{"type":"config","model":1}', '{"type":"config","language":[]}', '{"type":"config","model_dir":{}}']
BAD += ['{"type":"config","model":"' + "x" * 5000 + '"}', "[" * 60000, "x" * 10_000_000, '{"type":"\ud800"}']


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_message_that_is_wrong_is_an_error_and_the_session_goes_on(text):
    session = live()
    session.receive(text, 0)
    (message,) = sent(session)
    assert isinstance(message, wire.Error)
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
    session = Session("s", now=0)
    session.receive(CONFIG, 0)
    session.refused(1, error)
    session.receive(b"ab", 0)
    session.receive(FLUSH, 0)
    first, *others = sent(session)
    assert first == wire.Error(error.message, code)
    assert others[-1] == wire.Final("", 0, 0)
    session.receive(CONFIG, 0)
    session.opened(2, "toy")
    assert sent(session) == [wire.Ready("s", "toy")]


def test_a_worker_that_dies_takes_nothing_back():
    session = live()
    session.receive(bytes(3200), 0)
    session.heard(0, "this is stable", True)
    session.heard(0, "this is stable and this", False)
    session.orders()
    session.lost("it died")
    error, attach = session.orders()
    assert error == protocol.Send(wire.Error("it died"))
    session.opened(attach.number, "toy")
    session.heard(0, "goes on", False)
    session.receive(FLUSH, 0)
    session.done("goes on", 1)
    assert sent(session) == [
        wire.Partial("this is stable goes on", False, 2),
        wire.Final("this is stable goes on", 100, 1),
    ]


def test_a_worker_that_dies_before_the_final_leaves_what_was_stable():
    session = live()
    session.receive(bytes(3200), 0)
    session.heard(0, "this is stable", True)
    session.receive(FLUSH, 0)
    session.orders()
    session.lost("it died")
    assert sent(session) == [wire.Error("it died"), wire.Final("this is stable", 100, 0)]


def test_workers_that_die_again_and_again():
    session = live()
    for _ in range(protocol.MAX_LOSSES):
        session.lost("it died")
        (attach,) = [order for order in session.orders() if isinstance(order, protocol.Attach)]
        session.opened(attach.number, "toy")
    session.lost("it died")
    assert session.state == "refused"


def test_time():
    session = Session("s", now=0, idle_timeout=10, max_duration=100)
    session.receive(CONFIG, 5)
    session.opened(1, "toy")
    session.orders()
    session.tick(14)
    assert session.orders() == []
    session.tick(15)
    assert wire.Closed("idle_timeout") in sent(session)
    session = Session("s", now=0, idle_timeout=10, max_duration=100)
    session.receive(RESET, 99)
    session.tick(100)
    assert sent(session) == [wire.Closed("session_limit")]


def test_no_room():
    session = Session("s", now=0)
    session.turn_away(RateLimited("full"))
    error, close = session.orders()
    assert error.message.code == "rate_limit_exceeded"
    assert close == protocol.Close(1013)


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
        self.session = Session("s", now=0)
        self.closed = False
        self.attached = self.epoch = self.index = self.flushes = self.finals = 0
        self.said = self.stable = ""
        self.work: list[protocol.Order] = []

    def happen(self, event: bytes | str) -> None:
        session = self.session
        if isinstance(event, bytes) or event not in EVENTS_OF_THE_WORLD:
            if not self.closed and event == FLUSH:
                self.flushes += 1
            session.receive(event, 0)
        elif event == "opened":
            session.opened(self.attached, "toy")
        elif event == "refused":
            session.refused(self.attached, SpeechFailed("no"))
        elif event == "tick":
            session.tick(1)
        elif session.state == "live":
            self.worker(event)
        self.look()

    def worker(self, event: str) -> None:
        if event == "lost":
            self.session.lost("died")
        elif event == "works":
            self.step()
        else:
            self.said += " word"
            self.session.heard(self.epoch, self.said.strip(), event == "stable")

    def step(self) -> None:
        """The next order that is about utterances."""
        while self.work:
            order = self.work.pop(0)
            if isinstance(order, protocol.Flush):
                self.session.done(self.said.strip(), 1)
            elif isinstance(order, protocol.Reset):
                self.epoch += 1
            else:
                continue
            self.said = ""
            return

    def look(self) -> None:
        for order in self.session.orders():
            assert not self.closed, "nothing comes after the close"
            if isinstance(order, protocol.Attach):
                self.attached, self.epoch, self.said, self.work = order.number, 0, "", []
            elif isinstance(order, protocol.Close):
                self.closed = True
            elif isinstance(order, protocol.Send):
                self.told(order.message)
            else:
                self.work.append(order)
                if isinstance(order, protocol.Reset) and not self.session.waiting_since_flush:
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
        elif isinstance(message, wire.Ready):
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
        assert world.session.reading
    assert world.finals <= world.flushes
