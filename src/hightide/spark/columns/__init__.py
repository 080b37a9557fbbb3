"""Record batches ⇄ Arrow at native speed: between a broker's bytes and Spark's rows.

    record_schema   the columns of Spark's Kafka source, as Arrow and as DDL
    decode          record batches → `pa.RecordBatch`; arrow_buffers are what it fills
    encode          `pa.RecordBatch` → record batches; arrow_input is what it reads
    partitioner     keys → partitions, as Kafka's default partitioner
    without_numba   all of it in plain Python
    kernels         the loops over bytes, compiled by numba if it is installed

The loops are Python that numba compiles on first use. A compiled extension would have to be built
for every platform. Vectorised numpy cannot follow varints: where a record begins is known only when
the one before it has been read. numba comes as a wheel and needs no compiler; without it, the
decoder of `hightide.wire.batch` is used.
"""
