"""The network side of `topics`: one process that serves one data directory over HTTP.

The modules here are the process: `server.py` (from bind to exit), `assembly.py` (which object gets what), `app.py` and
`routes.py` (from a head to its handler), `driver.py` (turns and threads) and `auth.py` (keys). Below them, each knowing
only what is further down: `delivery`, `api`, then `flow` and `http`. asyncio is used here and nowhere else.
"""
