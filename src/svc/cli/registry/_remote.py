"""Registries on other machines: clients for publishing, and OCI repositories, with their credentials."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svc import plugins
from svc.bundles.oci_credentials import OciCredentials, find_credentials
from svc.errors import CommandFailed

if TYPE_CHECKING:
    from svc.bundles import oci
    from svc.bundles.registry_client import RegistryClient


def publishing_key() -> str | None:
    """Return `SVC_REGISTRY_KEY`, else `SVC_API_KEY`."""
    return os.environ.get("SVC_REGISTRY_KEY") or os.environ.get("SVC_API_KEY") or None


def publishing_client(url: str) -> RegistryClient:
    """Return a client that can publish. Raises CommandFailed when no key is set."""
    key = publishing_key()
    if key is None:
        raise CommandFailed(
            f"Publishing at {url} needs a key with the scope registry:write in SVC_REGISTRY_KEY "
            "(svc up prints one; svc keys create --scope registry:write creates one)."
        )
    client: RegistryClient = plugins.load("bundles", "registry_client").RegistryClient(url, key=key)
    return client


def open_oci_repository(reference: oci.OciReference) -> oci.OciRepository:
    """Open an OCI repository with the credentials of `SVC_OCI_USER`, else with those of `docker login`."""
    hosts = os.environ.get("SVC_OCI_TOKEN_HOST", "").lower().split(",")
    token_hosts = {host.strip() for host in hosts if host.strip()}
    user, password = os.environ.get("SVC_OCI_USER"), os.environ.get("SVC_OCI_PASSWORD", "")
    host = reference.origin.partition("://")[2]

    def get_credentials() -> OciCredentials | None:
        if user is not None:
            return OciCredentials(user, password)
        return find_credentials(host, reference.repository, os.environ)

    repository: oci.OciRepository = plugins.load("bundles", "oci").OciRepository(
        reference, get_credentials, token_hosts
    )
    return repository
