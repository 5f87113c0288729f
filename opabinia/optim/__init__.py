"""Optimizers and schedules. A schedule is a pure function of the clock: there is nothing to save."""
