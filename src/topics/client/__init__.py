"""What talks to a running server: the Python library, on which the commands are written too.

Everything here uses the HTTP API like any other client and knows nothing of how the server works. What the library does
is written once, as operations without input and output (`operation`), and runs in threads (`client`, `topic`) and on
asyncio (`async_client`, `async_topic`); `transport` is HTTP. docs/python.md shows how to use it.
"""
