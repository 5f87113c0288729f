"""Metrics of detectors: average precision by the rules of COCO, LVIS and Pascal VOC, error tables, mean losses."""
