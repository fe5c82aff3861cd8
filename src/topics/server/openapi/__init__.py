"""The reference of the API: what every route takes and answers (the OPENAPI rules).

`/v0/openapi.json` is for machines, `/v0/docs` for people.
"""
