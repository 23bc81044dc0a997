"""Training recipes by name; ``dataclasses.replace`` shortens or varies them.

Those called ``godfrey-…`` are of published work, as far as the settings of a recipe go; ``mnist-mlp`` is our own.
"""

from coset.train._recipe import Recipe

RECIPES: dict[str, Recipe] = {
    # Godfrey et al. 2022, "On the Symmetries of Deep Learning Models and their Internal Representations", D.1:
    # Myrtle CNN, ResNet20 and ResNet18 on CIFAR-10. Adam with PyTorch's defaults.
    "godfrey-cifar": Recipe(
        epochs=50,
        batch_size=32,
        optimizer="adam",
        learning_rate=1e-3,
        schedule="step",
        drops=4,
        drop_factor=0.5,
        augmentation="shift-flip",
        shift=2,
        keep="best",
    ),
    # The same, D.4: Compact Convolutional Transformers with the recipe of Hassani et al. 2021 (their published
    # configuration for 300 epochs on CIFAR-10 gives the batch, warm-up, smoothing and the α of mixup and CutMix).
    # That configuration also has RandAugment and resized crops, here replaced by shifts and flips, and it stops the
    # cosine at 1e-5, here at 0.
    "godfrey-cct": Recipe(
        epochs=300,
        batch_size=128,
        optimizer="adamw",
        learning_rate=55e-5,
        weight_decay=6e-2,
        schedule="cosine",
        warmup_epochs=10,
        label_smoothing=0.1,
        mixup=0.8,
        cutmix=1.0,
        augmentation="shift-flip",
        shift=2,
    ),
    # The same, F.3: ResNet-50 on ImageNet with the cyclic schedule of FFCV (Leclerc et al. 2022), whose published
    # configuration for 88 epochs gives the momentum, and whose rate peaks after two epochs. It takes the batch per
    # device, of which it has eight, spares batch normalisation the decay, and crops images as it loads them.
    "godfrey-imagenet": Recipe(
        epochs=88,
        batch_size=512,
        optimizer="sgd",
        learning_rate=1.7,
        momentum=0.9,
        weight_decay=1e-4,
        schedule="triangular",
        peak=2 / 88,
        label_smoothing=0.1,
    ),
    # Our own, for an MLP on MNIST in a minute. Adam at 1e-3 with batches of 500 is of Git Re-Basin (Ainsworth et al.
    # 2023), which trains a hundred epochs at a constant rate; here ten epochs with a rate that falls to 0.
    "mnist-mlp": Recipe(epochs=10, batch_size=500, optimizer="adam", learning_rate=1e-3, schedule="linear"),
}
