"""Studies: one file each, that reproduces a figure or table of a paper and writes numbers, a plot and a page.

A module of this package without a leading underscore is a study; it registers itself with ``@study``.
"""

from coset.studies._report import StudyRun
from coset.studies._run import run_study, show_study
from coset.studies._study import PRESETS, Context, Findings, Scalar, Study, Table, studies, study

__all__ = [
    "PRESETS",
    "Context",
    "Findings",
    "Scalar",
    "Study",
    "StudyRun",
    "Table",
    "run_study",
    "show_study",
    "studies",
    "study",
]
