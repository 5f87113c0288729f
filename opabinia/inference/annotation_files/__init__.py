"""Drafts of annotations for tools in which people correct them: CVAT, Label Studio and LabelMe."""
