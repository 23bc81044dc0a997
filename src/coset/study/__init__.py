"""What a study is: presets, claims, findings; how it is found, run and shown.

Figures are drawn with ``coset.figures``. What studies share lies in ``coset.study.networks`` (trained networks),
``coset.study.posteriors`` and ``coset.study.images``.
"""

from coset.study._claims import Claim, Estimate, Judgement, Results, Verdict
from coset.study._discovery import broken_studies, studies
from coset.study._findings import Findings, Scalar, Table, prose
from coset.study._report import StudyRun
from coset.study._run import render_study, run_study, show_study
from coset.study._study import PRESETS, Context, Study, study

__all__ = [
    "PRESETS",
    "Claim",
    "Context",
    "Estimate",
    "Findings",
    "Judgement",
    "Results",
    "Scalar",
    "Study",
    "StudyRun",
    "Table",
    "Verdict",
    "broken_studies",
    "prose",
    "render_study",
    "run_study",
    "show_study",
    "studies",
    "study",
]
