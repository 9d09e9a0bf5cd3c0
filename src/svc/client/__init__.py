"""The client's side: what an application uses to reach models and bundles."""
