"""How records enter and leave a topic: checked, given their seqs, logged, and shown once their class is satisfied.

Guarantees that seq order, WAL order and the order of visibility are the same, and that a write that raises has changed
nothing. Knows no queue and no router.
"""
