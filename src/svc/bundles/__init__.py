"""What a model is: the `.xyb` archive, its metadata, references and platforms, safe extraction, signatures."""
