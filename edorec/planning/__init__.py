"""Which ids get rows, and in which formats, inside a memory budget.

``value`` measures what ids are worth, ``costs`` what storing them smaller costs, ``choice`` finds
the cheapest loss that fits the budget, ``plan`` applies it to a configuration, ``show`` prints it.
"""
