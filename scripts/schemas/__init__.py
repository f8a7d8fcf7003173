"""Makes api_server/description/schemas/entities.json out of what PostgreSQL understands of entities.sql."""
