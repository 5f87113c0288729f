"""Backbones, heads and layers. They are built from facts handed over, know no loss and no config."""
