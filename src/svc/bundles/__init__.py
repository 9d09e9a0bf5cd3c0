"""Define models: the `.xyb` archive, its metadata, references, platforms, safe extraction and signatures."""
