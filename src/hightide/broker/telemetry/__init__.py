"""The shell around the machines of `core/telemetry`: payloads, subscriptions, last values."""
