"""Raw files and archives of repositories, sent to users, or to the external storage that sends them to users."""
