"""The place of the backbone in a task of a multi-task run."""

from opabinia.config import register
from opabinia.contracts import Backbone


@register.backbone
def shared(channels: int, /) -> Backbone:
    """The backbone of the multi-task run that a task belongs to; configs need not name it.

    Args:
        channels: channels of the images.

    Raises:
        ValueError: the task does not belong to a multi-task run.
    """
    raise ValueError("shared is the backbone of a multi-task run; a task by itself has its own, such as timm")
