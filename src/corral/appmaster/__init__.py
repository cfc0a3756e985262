"""The AppMaster of a job: a sans-I/O core that owns the state machine of the job's tasks."""
