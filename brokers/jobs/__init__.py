"""What is done beside the event loop: jobs, the threads that do them, and operations that await them."""
