"""Git LFS: a project's large files, and the API by which git-lfs brings and fetches them."""
