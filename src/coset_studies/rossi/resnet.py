"""ResNet20 with FRN on CIFAR-10: the barrier between two mean-field posteriors, with and without alignment."""

from coset.studies._rossi_pair import PairConfig, pair_findings

from coset.landscape import Profiles
from coset.study import Context, Findings, study
from coset_studies.rossi._report import SPLITS, Compared, verdict
from coset_studies.rossi._residual import IMAGES, INFERENCE, MEASURE, NETWORK


@study(
    name="rossi-resnet",
    title="Barriers between posteriors of ResNet20",
    reference="Rossi et al. 2023, fig. 4 (ResNet20 with FRN on CIFAR-10), appendix C",
    paper="""
    Between two posteriors found by variational inference there is a barrier. After alignment it is nearly zero for
    ResNet20 on CIFAR-10, on train and test images; the barriers on test images are smaller.
    """,
    presets={
        preset: PairConfig(IMAGES[preset], network, INFERENCE[preset], MEASURE[preset])
        for preset, network in NETWORK.items()
    },
)
def run(config: PairConfig, context: Context) -> Findings:
    """The pair, aligned, and its barriers."""
    return pair_findings(config, context, judge)


def judge(one: Compared) -> str:
    """Of alignment, and of the test barriers, which are the smaller ones in the paper."""
    smaller = [path for path, profiles in one.profiles.items() if _test_is_smaller(profiles)]
    splits = {
        2: "On both paths the test barrier is smaller than the train barrier, as there.",
        1: f"""Only on the {" ".join(smaller)} path the test barrier is smaller than the train barrier by more than the
        Monte Carlo error; there on both.""",
        0: """The test barriers are not smaller than the train barriers by more than the Monte Carlo error; there they
        are.""",
    }
    return f"{verdict(one)} {splits[len(smaller)]}"


def _test_is_smaller(profiles: Profiles) -> bool:
    train, test = (profiles[f"{split} log-likelihood"] for split in SPLITS)
    error = max(profile.barrier_error or 0.0 for profile in (train, test))
    return train.barrier - test.barrier > error
