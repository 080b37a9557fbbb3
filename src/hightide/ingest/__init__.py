"""Lines of files, of HTTP requests and of stdin into a topic.

lines            bytes into lines, and lines into events
file_identity    recognise a file after it was renamed, copied or truncated
file_follower    follow files that match a pattern, across rotation
records          a line as the key, value and headers of a record
sender           records to the topic, then the positions: at least once, or exactly once
positions        where positions are stored: in a file, or in a topic
collector        the loops of `ingest files` and `ingest stdin`
http_server      the server of `ingest http`
http_connection  one of its connections
"""
