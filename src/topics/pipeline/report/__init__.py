"""The page that `topics pipeline report` writes about a lake: what it shows, how it looks, and its plots."""
