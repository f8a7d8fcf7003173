"""The examples of the API's description, as a service has really answered them:

python -m scripts.api_examples >api_server/description/examples.json
"""
