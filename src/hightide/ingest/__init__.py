"""Where a pipeline begins: lines of files, of HTTP requests and of stdin into a topic.

lines       bytes into lines, and lines into events
identity    which file it is, after it was renamed, copied or cut
following   files that match a pattern, across rotation
records     a line as the key, value and headers of a record
sending     records to the topic, and only then the positions: at least once, or exactly once
positions   where positions are kept: in a file, or in a topic
collecting  the loops of `ingest files` and `ingest stdin`
http_server the server of `ingest http`; http_connection one of its connections
"""
