"""The metrics of gateway and registry, from their HELP texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from svc.gateway.observability.prometheus import METRIC_HELP
from svc.registry.metrics import REGISTRY_METRIC_HELP
from tests.documentation.reference.markdown import table


def metrics_table(families: Mapping[str, tuple[str, str]]) -> str:
    """Name, type and HELP of each metric."""
    return table(("Name", "Type", "Meaning"), ((f"`{name}`", *family) for name, family in families.items()))


REGIONS: dict[str, Callable[[], str]] = {
    "metrics.gateway": partial(metrics_table, METRIC_HELP),
    "metrics.registry": partial(metrics_table, REGISTRY_METRIC_HELP),
}
