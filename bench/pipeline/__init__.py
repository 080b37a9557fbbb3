"""The parts of the benchmarks of the pipeline on Spark."""
