"""Multi-task training: several tasks on one backbone."""

from opabinia.tasks.multitask.task import Multitask as Multitask
