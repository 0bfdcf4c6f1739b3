"""What an evaluator is: a fingerprint that is equal only where everything that may decide a result is equal.

Covered are the code (without comments, formatting and docstrings), the state of objects, closures, defaults, partials,
and the values and functions of the project's own modules that the code reaches by name.  What belongs to the standard
library, to installed packages or to Fanfold counts by its name only, and so does not change with their versions.  What
cannot be written down makes a fingerprint unknown: nobody can say whether it is equal to another.

Nothing of the user's is called on the way, except an attribute `fingerprint`, which decides for its object.  Where that
is a text, `fingerprint_of` may hold the settings it stands for: they decide nothing, and say what changed.
"""

from fanfold.fingerprints.modules import SCRIPTS
from fanfold.fingerprints.walk import CODE, REST, Fingerprint, Unknown, fingerprint

__all__ = ["CODE", "REST", "SCRIPTS", "Fingerprint", "Unknown", "fingerprint"]
