"""The commands that talk to a running server: `topics ls`, `show`, `publish` and `tail`.

They use the HTTP API like any other client and know nothing of how the server works.
"""
