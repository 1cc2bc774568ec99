"""The `echelon doctor` command."""

from server.doctor.facts import gather
from server.doctor.findings import advice, findings, shown
from server.launcher.options import DoctorOptions


def doctor(options: DoctorOptions) -> int:
    """Prints what there is and what is wrong; 1 where something keeps Echelon from serving."""
    facts = gather(options.port)
    found = findings(facts)
    print(shown(found))
    if any(finding.level == "problem" for finding in found):
        return 1
    print("\nWhat this machine can do:\n" + "\n".join(f"  {line}" for line in advice(facts)))
    return 0
