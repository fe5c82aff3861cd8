"""HTTP/1.1 and HTTP/2: bytes to requests and answers back to bytes, in order, within limits, on time.

It serves any `exchange.App` and knows nothing of topics: it imports no other part of the server, nor engine or storage.
"""
