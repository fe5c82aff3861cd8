"""Bytes and fsync: what was acknowledged is there after a crash, and what is damaged is named exactly.

Everything goes through one Disk, and whatever may wait for it is handed out as a Job. Knows neither topics' rules nor
threads, sockets or the event loop: a record is bytes with a seq, and a frame a kind with a payload.
"""
