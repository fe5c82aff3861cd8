"""Bytes to requests and answers to bytes, over HTTP/1.1 and HTTP/2. Knows nothing of topics: an app is handed to it."""
