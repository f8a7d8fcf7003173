"""Raw files and archives of repositories, served to users, or to the external storage that serves them."""
