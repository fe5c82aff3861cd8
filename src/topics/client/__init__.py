"""What talks to a running server: the Python library, on which the commands are written too.

Everything here uses the HTTP API like any other client and knows nothing of how the server works. The modules of this
folder are what a program holds, for threads and for asyncio: clients, topics, readers, followers, consumers, producers
and workers. What they do is written once for both, in `operations`; `transport` is HTTP. docs/python.md shows the use.
"""
