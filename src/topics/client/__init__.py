"""The commands that talk to a running server: `topics ls`, `show`, `publish` and `tail`.

They speak the HTTP API like any other client and know nothing of the server's insides.
"""
