"""A small asyncio client of the Kafka protocol, built on `hightide.wire` alone.

The command line and the console use it as an admin client, Spark reads and writes with it, and
brokers talk to each other through it.  It works against any Kafka broker: nothing in it depends on
how Hightide's brokers are built.

    connection    one connection to one broker; security and sasl open it
    routing       finds the controller, leaders and coordinators of a cluster, and retries
    admin/        the requests of an admin client, by noun; model/ holds their plain results
    producer      writes record batches to one partition
    fetcher       reads a range of one partition
    transactional drives a transaction from several processes
    retry         the one backoff
"""
