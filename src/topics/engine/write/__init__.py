"""How records enter and leave a topic: checked, given their seqs, logged, and shown once their class is satisfied.

Knows no queue and no router.
"""
