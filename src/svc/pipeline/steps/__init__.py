"""What happens to data before and after an ONNX model: the steps that `model_metadata.json` names."""
