"""The fake replica and the load client: C, because the measuring side must cost little."""
