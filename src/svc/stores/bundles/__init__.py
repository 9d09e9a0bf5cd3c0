"""Where bundles and their records lie: `base` is the seam, `folder` a folder on disk, `s3` a bucket."""
