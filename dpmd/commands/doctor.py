"""Whether this machine can compute, on what, and what is missing.

Shows versions, processor, MPI and GPUs, and evaluates a small model that comes with dpmd on every device
against stored numbers.  Exit code 0 if the CPU computes right.  Put the output into bug reports.
"""


def add_arguments(parser):
    """The command line of ``dpmd doctor``."""


def run(options):
    """Print all findings."""
    from dpmd.doctor import BAD, GOOD, examine

    sections = examine()
    width = max(len(finding.name) for _, findings in sections for finding in findings)
    for title, findings in sections:
        print(f"{title}")
        for finding in findings:
            print(f"  {finding.status}  {finding.name:{width}s}  {finding.text}")
            if finding.remedy:
                print(f"  {'':{width + 4}s}  -> {finding.remedy}")
        print()
    findings = [finding for _, group in sections for finding in group]
    works = all(f.status == GOOD for f in findings if f.name.startswith("cpu,"))
    bad = [f.name for f in findings if f.status == BAD]
    if works:
        print("dpmd computes right on this machine's CPU." + (f" To repair: {', '.join(bad)}." if bad else ""))
    else:
        print(f"dpmd does not work on this machine: see {', '.join(bad) or 'cpu'}.")
    return 0 if works else 1
