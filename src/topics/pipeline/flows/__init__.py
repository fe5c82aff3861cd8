"""Flows: archives and transforms that run for long, several in one application, kept running and reported.

`flows` reads what a file asks for, a `keeper` keeps one flow running, the `supervisor` all of them, and the `reporter`
reports to the server how they are doing. `lone_flow` is a pipeline that one command runs.
"""
