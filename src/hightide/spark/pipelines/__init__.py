"""Running the apps of `hightide.spark.streams`: loading, planning, running, watching, explaining.

What an app means is the business of `streams`; here is what a person who runs one wants to see.
"""
