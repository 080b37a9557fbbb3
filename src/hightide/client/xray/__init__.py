"""The X-ray of a partition: what its replicas look like at a moment, and what happened over time.

    looks      a cluster, looked at again and again
    frames     one look at a partition as a value
    timeline   pure: ribbons, failovers by phase, and truncations, from frames and events
    replay     frames of the past, from events alone
    page       a self-contained HTML file that shows them

The console shows it live, and the report of a failed test writes it to a file.
"""
