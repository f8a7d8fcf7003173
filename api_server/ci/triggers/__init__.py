"""Pipeline triggers, whose tokens start pipelines: managing them (`handlers`) and using them (`firing`)."""
