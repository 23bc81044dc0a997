"""Means over data against sums by hand; the model is left alone."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from architectures import CASES, made, randomized
from coset.distribution import Delta, MeanField
from coset.errors import InputError
from coset.landscape import Functional, accuracy, error, evaluate, loss, on

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(23, 4, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.randint(3, (23,), generator=GENERATOR)


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
        return nn.Sequential(*layers).double()


def params(seed=1):
    return randomized(network(), torch.Generator().manual_seed(seed))


def outputs(weights, x=X):
    model = network().eval()
    model.load_state_dict(weights)
    return model(x).detach()


@pytest.mark.parametrize("batch_size", [1, 5, 23, 100])
def test_loss_and_error_are_means_over_single_examples(batch_size):
    weights = params()
    logits = outputs(weights)
    by_hand = [math.log(sum(math.exp(v) for v in row)) - row[y] for row, y in zip(logits.tolist(), LABELS, strict=True)]
    wrong = [max(range(3), key=row.__getitem__) != int(y) for row, y in zip(logits.tolist(), LABELS, strict=True)]
    functionals = {
        "loss": loss(network(), (X, LABELS), batch_size=batch_size),
        "error": error(network(), (X, LABELS), batch_size=batch_size),
        "accuracy": accuracy(network(), (X, LABELS), batch_size=batch_size),
    }
    assert 0 < sum(wrong) < 23
    values = evaluate(functionals, weights)
    assert values["loss"] == pytest.approx(math.fsum(by_hand) / 23, rel=1e-13)
    assert values["error"] == pytest.approx(sum(wrong) / 23, rel=1e-13)
    assert values["accuracy"] == pytest.approx(1 - sum(wrong) / 23, rel=1e-13)
    assert {name: item(weights) for name, item in functionals.items()} == values
    assert evaluate(functionals, Delta(weights)) == values


def test_a_loader_weighs_batches_by_their_examples():
    weights, whole = params(), loss(network(), (X, LABELS))
    uneven = [(X[:2], LABELS[:2]), [X[2:20], LABELS[2:20], "index"], (X[20:], LABELS[20:])]
    shuffled = DataLoader(TensorDataset(X, LABELS), batch_size=5, shuffle=True)
    for data in (uneven, shuffled):
        assert loss(network(), data)(weights) == pytest.approx(whole(weights), rel=1e-13)


def test_regression_and_binary_targets():
    weights = params()
    targets = torch.randn(23, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    f = outputs(weights)
    found = evaluate(on(network(), criterion="mse", batch_size=7, test=(X, targets)), weights)
    assert found == {"test loss": pytest.approx(float((f - targets).square().sum()) / (23 * 3), rel=1e-13)}
    bits = (targets > 0).double()
    found = evaluate(on(network(), criterion="binary-cross-entropy", batch_size=7, test=(X, bits)), weights)
    p = f.sigmoid()
    nll = -(bits * p.log() + (1 - bits) * (1 - p).log())
    assert found["test loss"] == pytest.approx(float(nll.mean()), rel=1e-12)
    assert found["test error"] == pytest.approx(float(((p > 0.5) != (bits > 0.5)).double().mean()), rel=1e-13)


def test_a_criterion_of_ones_own_gives_a_mean_or_one_value_each():
    weights = params()
    expected = float(functional.cross_entropy(outputs(weights), LABELS, label_smoothing=0.1))
    mean = nn.CrossEntropyLoss(label_smoothing=0.1)
    each = nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none")
    for criterion in (mean, each):
        found = evaluate(on(network(), criterion=criterion, batch_size=6, test=(X, LABELS)), weights)
        assert found == {"test loss": pytest.approx(expected, rel=1e-13)}


def test_the_loss_of_a_float32_network_is_exact_in_its_outputs():
    # Three confident answers: in float32 log-softmax rounds each of these losses to 0 or loses most of its digits.
    model = nn.Identity()
    logits = torch.tensor([[20.0, 0.0], [25.0, 0.0], [18.0, 0.0]])
    holder = nn.Sequential(nn.Linear(2, 2, bias=False), model)
    found = loss(holder, (logits, torch.zeros(3, dtype=torch.long)))({"0.weight": torch.eye(2)})
    assert found == pytest.approx(sum(math.log1p(math.exp(-t)) for t in (20, 25, 18)) / 3, rel=1e-12)


def test_inputs_take_the_type_of_the_weights():
    model = network().float()
    weights = {name: t.float() if t.is_floating_point() else t for name, t in params().items()}
    assert loss(model, (X, LABELS))(weights) == loss(model, (X.float(), LABELS))(weights)


def test_forward_passes_are_shared():
    calls = []
    model = network()
    model.register_forward_hook(lambda module, args, output: calls.append(len(args[0])))
    functionals = on(model, batch_size=10, train=(X, LABELS), test=(X[:4], LABELS[:4]))
    functionals["train accuracy"] = accuracy(model, (X, LABELS), batch_size=10)
    assert list(evaluate(functionals, params())) == [*functionals]
    assert sorted(calls) == [3, 4, 10, 10]


class Counting(nn.Module):
    """Writes to its buffers in every forward pass, evaluation mode or not."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("largest", torch.zeros(()))
        self.register_buffer("unsaved", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.calls += 1
        self.unsaved += 1
        self.largest.copy_(x.max())
        return self.linear(x)


@pytest.mark.parametrize("build", [network, lambda: Counting().double()])
def test_model_and_weights_stay_as_they_are(build):
    model = build()
    model.train()
    if isinstance(model, nn.Sequential):
        model[1].eval()
    weights = randomized(model, torch.Generator().manual_seed(3))
    before, kept = copy.deepcopy(dict(model.named_buffers()) | dict(model.named_parameters())), copy.deepcopy(weights)
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    evaluate(on(model, test=(X, LABELS)), weights)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in (dict(model.named_buffers()) | dict(model.named_parameters())).items():
        assert torch.equal(tensor, before[name])
    assert all(torch.equal(weights[name], kept[name]) for name in kept)


def test_no_graph_is_kept_and_ones_own_functional_may_want_one():
    plain, seen = params(), []
    weights = {name: t.clone().requires_grad_(t.is_floating_point()) for name, t in plain.items()}

    def criterion(f, y):
        seen.append(f.requires_grad)
        return functional.cross_entropy(f, y)

    loss(network(), (X, LABELS), criterion)(weights)
    assert seen == [False]

    def squared_gradient(point):
        w = point["0.weight"].detach().requires_grad_()
        return torch.autograd.grad((w**2).sum(), w)[0].square().sum()

    norm = Functional("gradient", squared_gradient)
    assert evaluate({"g": norm}, weights)["g"] == pytest.approx(4 * float(plain["0.weight"].square().sum()))


@pytest.mark.parametrize("name", CASES)
def test_every_architecture_can_be_evaluated(name):
    model, _, shape = made(name)
    weights = randomized(model, torch.Generator().manual_seed(0))
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = model(x).detach() + 1
    direct = copy.deepcopy(model)
    direct.load_state_dict(weights)
    expected = float((direct(x) - y).square().mean().detach())
    # As they come from a file: tied weights are separate tensors.
    apart = {key: tensor.clone() for key, tensor in weights.items()}
    for point in (weights, direct.state_dict(), apart):
        assert loss(model, (x, y), "mse", batch_size=2)(point) == pytest.approx(expected, rel=1e-12)


# Refusals ---------------------------------------------------------------------------------------------------------


def test_weights_of_another_model_are_refused_by_name():
    weights, item = params(), loss(network(), (X, LABELS))
    with pytest.raises(InputError, match="'odd' is not a parameter of the model"):
        item(weights | {"odd": X})
    with pytest.raises(InputError, match=r"'0.bias' has shape \(3,\); the model expects \(8,\)"):
        item(weights | {"0.bias": weights["4.bias"]})
    for missing in ("4.bias", "1.running_mean"):
        with pytest.raises(InputError, match=f"'{missing}' of the model is not among the parameters"):
            item({name: tensor for name, tensor in weights.items() if name != missing})
    # Counters of batches may be left out.
    assert item({n: t for n, t in weights.items() if n != "1.num_batches_tracked"}) == item(weights)
    with pytest.raises(InputError, match="the point is a MeanField; expected a dict of parameters or a Delta"):
        item(MeanField(weights, {}))


def test_ties_that_are_broken_are_refused():
    model, _, shape = made("tied embeddings")
    weights = randomized(model, torch.Generator().manual_seed(0))
    weights["head.weight"] = weights["head.weight"] + 1
    with pytest.raises(InputError, match=r"'head.weight' and 'embed.weight' are one tensor in the model and differ"):
        loss(model, (torch.randn(2, *shape).double(), X), "mse")(weights)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X[:0], LABELS[:0]), "test loss: data holds inputs of shape .* at least one"),
        ((X, LABELS[:-1]), r"test loss: data holds inputs of shape \(23, 4\) and targets of shape \(22,\)"),
        ([], "test loss: data holds no batches; expected at least one"),
        ([(X[:0], LABELS[:0])], "test loss: data holds no examples; expected at least one"),
        (
            [(X, LABELS[:-1])],
            r"test loss: a batch of data holds inputs of shape \(23, 4\) and targets of shape \(22,\)",
        ),
        ([X], "test loss: batch 0 of data is a Tensor; expected tensors"),
        ((X[:, :3], LABELS), r"test loss: data: the model cannot take inputs of shape \(examples, 3\)"),
        ((X, LABELS + 1), "test loss: targets has labels from 1 to 3, the model's 3 outputs allow 0 to 2"),
        ((X, X), "test loss: targets has shape .* expects integer labels"),
    ],
)
def test_data_that_do_not_fit_are_refused(data, message):
    with pytest.raises(InputError, match=message):
        evaluate(on(network(), test=data), params())


def test_data_that_can_be_read_once_are_refused_at_once():
    with pytest.raises(InputError, match="the data of 'train loss' is a generator, which can be read only once"):
        on(network(), train=((X, LABELS) for _ in range(3)))


def test_criteria_that_do_not_fit_are_refused():
    with pytest.raises(
        InputError, match="criterion is 'nll'; expected cross-entropy, mse, binary-cross-entropy, shares or a f"
    ):
        loss(network(), (X, LABELS), "nll")
    with pytest.raises(InputError, match="criterion is 'mse', which classifies nothing; expected cross-entropy or bin"):
        error(network(), (X, LABELS), "mse")
    with pytest.raises(InputError, match=r"criterion gave a value of shape \(3,\) for 23 examples"):
        loss(network(), (X, LABELS), lambda f, y: f.mean(0))(params())
    with pytest.raises(InputError, match="criterion gave a value of type float"):
        loss(network(), (X, LABELS), lambda f, y: 1.0)(params())
    with pytest.raises(InputError, match="better is 'more' for 'f'; expected 'lower' or 'higher'"):
        Functional("f", float, better="more")
    with pytest.raises(InputError, match="on has no data"):
        on(network())
    with pytest.raises(InputError, match="batch_size is 0"):
        loss(network(), (X, LABELS), batch_size=0)(params())
