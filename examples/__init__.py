"""Programs that use Hightide as anyone would: the demo of `make run`, and two pipelines."""
