"""CAGE Challenge 2, Scenario2: an independent model of the game that agrees with CybORG 2.1 step by step.

`rules.Cage2Game` says what is played, `rollout.rollout` plays blocks of episodes with a policy in the loop, `env` has
the Gymnasium environments, and `replay` compares the model with recorded episodes.

What CybORG does and a reader would not expect is kept:

- Once Op_Server0 was restored, Impact still succeeds but stops its service no more (`Cage2Game.restore_quirk`).
- The decoy Vsftpd listens on 80 but asks whether 21 is free: it can be placed again and again, and blocks Apache.
- A scan of a host that cannot be reached succeeds and finds nothing; Meander never scans that host again.
- A decoy placed in a step hides a small scan or an undetected shell on that host from blue, and makes a hit on a decoy
  look like an exploit (`Cage2Game.observation` has the variant in which it hides nothing).
- Entries about one host are read together: green's scan can make red's exploit look like a scan.
- EternalBlue on Enterprise1 and 2 and BlueKeep on User3 find a port but no service behind it, and fail unseen.
- Red's foothold on User0 survives Restore; User-level sessions cost nothing; `done` never comes before the last step.

One thing is not: Meander with nothing left to do, which stops CybORG with an error, sleeps here.
"""

from __future__ import annotations

ENVIRONMENT_ID = "fanfold/Cage2-v0"


def register() -> None:
    """Make the environment known to Gymnasium, which needs nothing of this package but its name for that."""
    import gymnasium

    if ENVIRONMENT_ID not in gymnasium.registry:
        where = f"{__name__}.env"
        gymnasium.register(ENVIRONMENT_ID, f"{where}:Cage2", vector_entry_point=f"{where}:Cage2Vector")
