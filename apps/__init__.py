"""The Flower app: ServerApp, ClientApp, configuration, command line and reports."""
