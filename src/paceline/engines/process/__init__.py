"""The engine over real processes; `local` and `ray` provide the processes and devices."""
