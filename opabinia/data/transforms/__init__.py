"""Transforms of a sample: torchvision's transforms v2 under their own names, and additional ones.

They take the whole sample: the image changes together with its annotations (boxes, masks, keypoints), and the other
values pass through.
"""
