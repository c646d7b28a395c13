"""The Kafka protocol: frames, one module per API, error codes. Bytes and structs; no sockets, files or asyncio."""
