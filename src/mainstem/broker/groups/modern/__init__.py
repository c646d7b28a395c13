"""What groups share whose partitions the log assigns: how their state changes and is stored, their records, sets of
partitions, assignors, subscriptions, deadlines.
"""
