"""The steps before and after an ONNX model that `model_metadata.json` names."""
