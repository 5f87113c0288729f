"""Average precision of boxes, masks and keypoints (COCO, LVIS, VOC), and the analysis of detection errors."""
