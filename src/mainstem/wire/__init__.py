"""The Kafka protocol: frames, one module per API, error codes. Bytes <-> frozen structs;
no sockets, files or asyncio.
"""
