"""The shell: sockets, files and time around the pure machines."""
