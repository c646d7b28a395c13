"""SHARE: asyncio server, dispatch, handlers/ (one module per API), groups/, transactions/. Joins wire to log."""
