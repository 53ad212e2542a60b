"""Export of the net to files: Gluon's symbol and parameters, ONNX, or PyTorch."""
