"""CI jobs, endpoints 1 to 11 of the document, with their logs, their artifacts and the reports of their tests."""
