"""Pure state machines, one folder per part: facts and a time go in, decisions come out.

Nothing here uses sockets, files, clocks or the event loop, so the broker, the simulator and the
property tests drive the same objects.
"""
