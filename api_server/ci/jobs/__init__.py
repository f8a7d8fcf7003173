"""CI jobs (endpoints 1 to 11 of the document) with their logs, artifacts and test reports."""
