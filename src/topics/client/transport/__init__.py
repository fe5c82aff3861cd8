"""HTTP/1.1 as a client: one parser, one form of a request, and two ways to wait, for threads and for asyncio.

What is sent and how an answer is read are the same for both and touch no socket (`request`, `answer`, `events`,
`address`); `blocking` and `waiting` only move bytes and keep time. It knows nothing of topics.
"""
