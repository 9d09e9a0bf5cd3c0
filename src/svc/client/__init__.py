"""The client library: applications use it to call models and to load bundles."""
