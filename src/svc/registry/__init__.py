"""Serve bundles over HTTP: index, downloads, publishing, and pull-through from another registry."""
