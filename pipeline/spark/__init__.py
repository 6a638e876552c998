"""The Spark source and sink `millpond`: planning, reading and writing of streams."""
