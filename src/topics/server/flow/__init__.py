"""What gives way under load: small writes are gathered, writes held back, deliveries ordered. Never a record."""
