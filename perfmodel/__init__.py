"""DP-perf: predicted run times per machine (to come)."""
