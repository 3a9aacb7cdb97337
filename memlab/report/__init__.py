"""Reports for people. Only this package formats: all other code keeps bytes and seconds, people read GiB."""
