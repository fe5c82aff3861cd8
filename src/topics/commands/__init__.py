"""The commands that talk to a server, and what they share: which server, what a failure says, how things are printed.

Every command is written on the Python library (`topics.client`) and does nothing that another program could not do. One
noun is one file, and a file is loaded when its command runs: `cli` names them all and imports none, so that `topics
--help` takes as long with thirty commands as with three. docs/cli.md shows how to use them.
"""
