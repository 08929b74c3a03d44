"""What a filter does to judged queries, and whether its guarantee can be trusted."""
