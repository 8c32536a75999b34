"""Policies in files for other programs: ONNX, StableHLO and NumPy."""
