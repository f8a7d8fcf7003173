"""What jobs report of their tests (`artifacts:reports:junit`), read when somebody asks for it."""
