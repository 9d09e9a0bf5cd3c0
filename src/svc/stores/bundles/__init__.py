"""Store bundles and their records: `base` is the interface, `folder` a folder on disk, `s3` a bucket."""
