"""The gateway under accidents: hostile bytes, dying processes, hours of churn."""
