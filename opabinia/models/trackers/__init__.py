"""Trackers: functions that join the detections of successive frames to tracks, and the state that they keep.

A tracker is a function of its state and the detections of a frame (:data:`opabinia.contracts.tracking.Tracker`), with
arrays in and track numbers out. :mod:`sequences` runs one by class and over whole sequences; :mod:`kalman`,
:mod:`association` and :mod:`table` are shared by the built-in ones.
"""
