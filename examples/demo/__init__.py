"""The demo: a shop on three brokers and a Spark pipeline, with a broker killed on demand.

    traffic ──▶ orders, clicks, users ──▶ pipeline on Spark ──▶ orders-enriched, revenue,
       │                                                        dead letters, a Delta table
       └──▶ order check: acknowledged orders ◀── compared with ── orders read back ◀┘

All parts are real: brokers are processes, the pipeline is an app of `hightide.spark.streams`, and
the view shows what the brokers answer.

    python -m examples.demo [options]      start it
    python -m examples.demo kill [BROKER]  from another terminal: kill a broker
"""
