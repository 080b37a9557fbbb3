"""The demonstration: a shop on three brokers and a pipeline, watched while a broker is killed.

    traffic ──▶ orders, clicks, users ──▶ the pipeline, on Spark ──▶ orders-enriched, revenue,
       │                                                             dead letters, a table
       └──▶ ledger: what was acknowledged ◀── compared with ──── what is read back ◀┘

All parts are the real ones, as anybody would start them: brokers are processes, the pipeline is a
file of `hightide.spark.streams`, and what the view shows was asked of the brokers.
"""
