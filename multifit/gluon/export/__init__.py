"""The net as files: Gluon's symbol and parameters, or ONNX."""
