"""The built-in hooks, one module each; a new hook is a module here with a part of the family ``hook``.

The order in which hooks act is part of the contract: see :func:`opabinia.engine.hooks.order.order_hooks`, which has the
reason for each place.
"""
