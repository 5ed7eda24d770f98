"""What users import, and the only place where parts are put together."""
