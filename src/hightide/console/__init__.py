"""The console: a web page that shows a cluster live."""
