"""The order of turns, and the places of keys."""

from __future__ import annotations

import pytest

from svc.gateway.routing.fair_queue import FairQueue


class Work:
    """A request with a number of parts, which records its turns."""

    def __init__(self, turns: list[str], name: str, parts: int) -> None:
        self.key_id = name[0]
        self._turns, self._name, self._parts = turns, name, parts

    @property
    def remaining_turns(self) -> int:
        return self._parts

    def start_turn(self) -> None:
        self._turns.append(self._name)

    def complete_part(self, queue: FairQueue) -> None:
        self._parts -= 1
        queue.end_turn(self)


def create_queue(*, slots: int = 1, size: int = 100, slots_per_key: int = 0) -> FairQueue:
    queue = FairQueue("The model m")
    queue.configure(slots=slots, size=size, slots_per_key=slots_per_key)
    return queue


def add(queue: FairQueue, turns: list[str], *requests: tuple[str, int]) -> dict[str, Work]:
    works = {name: Work(turns, name, parts) for name, parts in requests}
    for work in works.values():
        queue.add(work)
    return works


def run(queue: FairQueue, turns: list[str], works: dict[str, Work]) -> str:
    """Complete each turn, in a queue with one slot."""
    done = 0
    while done < len(turns):
        done += 1
        works[turns[done - 1]].complete_part(queue)
    return " ".join(turns)


def test_queue_short_request_waits_for_one_part_of_a_long_one() -> None:
    queue, turns = create_queue(), []
    works = add(queue, turns, ("a1", 5), ("a2", 1), ("b1", 1))
    assert run(queue, turns, works) == "a1 b1 a2 a1 a1 a1 a1"
    assert queue.length == 0


def test_queue_keys_take_turns_whatever_their_number_of_requests() -> None:
    queue, turns = create_queue(), []
    works = add(queue, turns, ("a1", 2), ("a2", 2), ("a3", 2), ("b1", 3))
    assert run(queue, turns, works) == "a1 b1 a2 b1 a3 b1 a1 a2 a3"


def test_queue_free_slot_goes_to_the_key_with_the_fewest() -> None:
    queue, turns = create_queue(slots=3), []
    works = add(queue, turns, ("a1", 1), ("a2", 1), ("a3", 1), ("a4", 1), ("b1", 1), ("b2", 1), ("c1", 1))
    assert turns == ["a1", "a2", "a3"]
    for name in ("a1", "a2", "a3"):
        works[name].complete_part(queue)
    assert turns[3:] == ["b1", "c1", "a4"]


def test_queue_key_leaves_a_slot_to_others() -> None:
    queue, turns = create_queue(slots=3, slots_per_key=2), []
    works = add(queue, turns, ("a1", 1), ("a2", 1), ("a3", 1), ("b1", 1))
    assert turns == ["a1", "a2", "b1"]
    works["b1"].complete_part(queue)
    assert turns == ["a1", "a2", "b1"]
    works["a1"].complete_part(queue)
    assert turns == ["a1", "a2", "b1", "a3"]


def test_queue_removed_requests_get_no_turn_and_free_their_slot() -> None:
    queue, turns = create_queue(), []
    works = add(queue, turns, ("a1", 9), ("a2", 9), ("b1", 1))
    queue.remove(works["a2"])
    queue.remove(works["a1"])
    queue.remove(works["a1"])
    assert turns == ["a1", "b1"]
    works["b1"].complete_part(queue)
    assert (turns, queue.length) == (["a1", "b1"], 0)


@pytest.mark.parametrize(("size", "own", "others"), [(2, 1, 0), (8, 4, 0), (9, 5, 0), (8, 2, 4), (8, 0, 8)])
def test_queue_key_has_as_many_places_as_are_free(size: int, own: int, others: int) -> None:
    queue, turns = create_queue(size=size), []
    add(queue, turns, *[(f"o{number}", 1) for number in range(others)])
    accepted = 0
    while (refusal := queue.find_refusal("a")) is None:
        add(queue, turns, (f"a{accepted}", 1))
        accepted += 1
    assert accepted == own
    assert (refusal.limit, refusal.status, int(refusal.headers["retry-after"]) >= 1) == ("queue", 429, True)
    assert "The model m" in refusal.message
    assert (queue.find_refusal("new") is None) == (own + others < size)


def test_queue_more_slots_start_waiting_requests() -> None:
    queue, turns = create_queue(), []
    add(queue, turns, ("a1", 1), ("a2", 1), ("a3", 1))
    queue.configure(slots=2, size=100)
    assert turns == ["a1", "a2"]
