"""What groups share whose partitions the log assigns: sets of partitions, assignors, subscriptions, deadlines."""
