"""Tracking: a detector, a re-identification model and a tracker on the frames of videos."""
