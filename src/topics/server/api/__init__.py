"""The HTTP API: request bodies in, one call of the engine, answers out, exactly as documented.

Handlers decide nothing that is the engine's to decide. They know neither streams (`delivery`) nor the process.
"""
