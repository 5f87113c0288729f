"""Decoding of image and video files, the cache of decoded images, and packed datasets."""
