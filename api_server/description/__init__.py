"""The OpenAPI description of the API, made from the declarations of its routes."""
