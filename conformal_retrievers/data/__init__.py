"""What users bring: judged and scored queries, their files, and documents cut into windows."""
