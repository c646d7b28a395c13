"""Who connects and what they may do: TLS, SASL, the users' credentials, access control lists and quotas."""
