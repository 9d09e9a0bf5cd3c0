"""Reads what an explanation of a request needs, and explains it."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path

from svc.gateway.observability.explanation import LimitFacts, RequestExplanation, explain_entry, explain_refused
from svc.gateway.observability.refusals import RefusedRequest, count_refused
from svc.keys.request_search import format_millis
from svc.keys.usage_query import list_attempts
from svc.ledger_queries.explanation_facts import LimitUse, read_limit_use, read_pace
from svc.stores.counters.key_limits import COUNTER_WINDOW_SECONDS
from svc.stores.database.base import Database, LedgerEntry


def read_entry_explanation(database: Database, entry: LedgerEntry) -> RequestExplanation:
    """Explain a request that is in the ledger. Raises StoreUnavailable."""
    return explain_entry(entry, list_attempts(entry), read_pace(database, entry))


def read_refused_explanation(database: Database, folder: Path, refused: RefusedRequest) -> RequestExplanation:
    """Explain a refused request. `folder` has the refused requests of this machine. Raises StoreUnavailable."""
    state = refused.limit_state
    if state is None or refused.key_id is None:
        return explain_refused(refused, LimitFacts())
    use = read_limit_use(database, refused.key_id, state, refused_at(refused))
    return explain_refused(refused, complete_limit_facts(use, folder, refused))


def complete_limit_facts(use: LimitUse, folder: Path, refused: RefusedRequest) -> LimitFacts:
    """Add what the files of refused requests in `folder` know. The request was refused by a limit of a key. Blocks."""
    assert refused.limit_state is not None
    assert refused.key_id is not None
    return LimitFacts(
        consumers=use.consumers,
        other_refusals=count_refused(
            folder,
            refused.key_id,
            format_millis(math.floor((refused_at(refused) - COUNTER_WINDOW_SECONDS) * 1000)),
            refused.time,
        ),
        is_issued=use.is_issued,
        is_own=refused.limit_state.scope == "ephemeral_key" or use.has_own_limit,
    )


def refused_at(refused: RefusedRequest) -> float:
    """Return when a request was refused, in Unix seconds."""
    return datetime.fromisoformat(refused.time).timestamp()
