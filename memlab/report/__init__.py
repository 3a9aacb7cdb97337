"""What people read: the only place that formats. Programs read bytes and seconds; people read GiB."""
