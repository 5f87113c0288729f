"""The metrics log of a run and the loggers that show it: terminal, TensorBoard, Weights & Biases, MLflow."""
