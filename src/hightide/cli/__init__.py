"""The command line: a client of a cluster like any other, and a starter of brokers.

It never imports the broker.  One file per noun; commands are functions from arguments to
rows, and `render` alone prints them.
"""
