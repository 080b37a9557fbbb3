"""Running the apps of `hightide.spark.streams`: load, plan, run, watch, explain, reset.

`streams` defines what an app means; this package is for the user who runs one.
"""
