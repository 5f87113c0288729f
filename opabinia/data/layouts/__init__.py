"""Recognising what lies in a folder of data: layouts, and the sources that read them."""
