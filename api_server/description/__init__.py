"""The API's description in OpenAPI, made from what the routes declare."""
