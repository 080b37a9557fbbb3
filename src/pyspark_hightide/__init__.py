"""Where Spark looks for the data source that is called hightide."""
