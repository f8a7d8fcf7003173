"""The admin area: pages for administrators below `/admin`."""
