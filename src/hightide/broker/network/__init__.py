"""Sockets and requests: listeners, connections, dispatch, and the size of fetch responses."""
