"""Rate limits and budgets: reservations before a request, commits after it."""
