"""How commands show predictions: a presenter for each kind of them, see :class:`opabinia.contracts.Presenter`."""
