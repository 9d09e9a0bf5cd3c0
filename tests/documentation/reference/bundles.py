"""`model_metadata.json` and the entries of a registry's index, from the structs that read them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from svc.bundles.metadata import BundleMetadata
from svc.gateway.local_model.supervisor import Sampling
from svc.pipeline.steps import schema
from svc.speech.synthesis.voice import VoiceDescription
from svc.wire.bundle import BundleEntry
from tests.documentation.reference.markdown import docstring, struct_rows, table

HEAD = ("Field", "Type", "Default", "Meaning")


def fields(struct: type[Any]) -> str:
    """The fields of one object."""
    return table(HEAD, struct_rows(struct))


def steps(union: Any) -> str:
    """A section for each step."""
    sections = []
    for step in get_args(union):
        text = docstring(step)
        sections.append(f"#### `{step.__name__}`\n\n{text}\n\n{fields(step)}")
    return "\n".join(sections)


REGIONS: dict[str, Callable[[], str]] = {
    "bundles.metadata": partial(fields, BundleMetadata),
    "bundles.sampling": partial(fields, Sampling),
    "bundles.voice": partial(fields, VoiceDescription),
    "bundles.preprocessing": partial(steps, schema.PreprocessingStep),
    "bundles.postprocessing": partial(steps, schema.PostprocessingStep),
    "bundles.entry": partial(fields, BundleEntry),
}
