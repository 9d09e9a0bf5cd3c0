"""The counters that the workers of one machine share, as one worker opens them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from svc.stores.counters.shared_memory import SharedCounters


@dataclass(frozen=True)
class SharedCountersSlot:
    """Counters that this process shares with other workers, and its slot in them."""

    path: Path
    slot_index: int
    slot_count: int

    @property
    def metrics_dir(self) -> Path:
        """Return the folder to which workers write their metrics."""
        return self.path.with_suffix(".metrics")

    def open(self) -> SharedCounters:
        return SharedCounters(self.path, worker=self.slot_index, workers=self.slot_count)
