"""The metrics log (``metrics.jsonl``) and the loggers that show it elsewhere: terminal, TensorBoard, Weights & Biases,
MLflow. A new logger is a module here with a part of the family ``logger``."""
