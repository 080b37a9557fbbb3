"""Record batches ⇄ Arrow at native speed: what lies between a broker's bytes and Spark's rows.

    schema        the columns of Spark's Kafka source, as Arrow and as DDL
    decode        record batches → `pa.RecordBatch`
    encode        `pa.RecordBatch` → record batches
    partitioner   keys → partitions, as Kafka's default partitioner
    plain         all of it without numba
    kernels       the loops over bytes, compiled by numba where it is installed

The loops are Python that numba compiles when they are first used.  A compiled module of our own
would have to be built for every platform, and vectorised numpy cannot follow numbers of variable
length: where a record begins is known only when the one before it has been read.  numba comes as a
wheel, needs no compiler, and without it the plain decoder of `hightide.wire.batch` stands in.
"""
