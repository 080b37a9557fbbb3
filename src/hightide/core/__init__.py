"""The pure machines: facts and a time go in, what must be done comes out.

Nothing here knows of sockets, files, clocks or the event loop, so the broker, the simulator and the
property tests drive the same objects.
"""
