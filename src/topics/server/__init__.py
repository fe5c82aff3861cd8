"""The network side of `topics`: connections, routes, auth and limits. asyncio lives here and only here."""
