"""Streams groups (KIP-1071): the log knows what an application of Kafka Streams is made of, and assigns its tasks."""
