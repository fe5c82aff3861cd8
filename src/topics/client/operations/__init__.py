"""What the library does, written once: operations without input and output, which threads and asyncio both run.

`operation` says what an operation is and runs it; a `call` is one request with its retries. On it are built what can be
asked of a topic and of a server (`topic_calls`, `server_calls`), and what the objects of the library do inside: `read`
and `watch` for readers and followers, `consumption` for consumers, `outbox` for producers. Knows `transport`, and none
of those objects.
"""
